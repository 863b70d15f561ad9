"""All experiments of the package."""

from my_project.experiments import sine  # noqa: F401 - it registers its experiments
