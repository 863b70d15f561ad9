"""The tasks: importing this registers them."""

from tasks import level  # noqa: F401
