"""The tests: `unit`, `integration` and `system`, by the package and module that they are about; see CONTRIBUTING.md."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
