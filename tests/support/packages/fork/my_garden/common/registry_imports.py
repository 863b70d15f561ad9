"""All modules of the package that register something, as Model Garden's module of this name."""

from my_garden.configs import lines as lines_configs  # noqa: F401
from my_garden.tasks import lines  # noqa: F401
