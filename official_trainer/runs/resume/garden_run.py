"""A run directory that Model Garden's driver left: whether one is, and what has changed since by its `params.yaml`.

Owns: knowing such a directory, and which of its recorded values are compared. Does not own: its checkpoints
(`checkpoints/garden.py`), what a change means (`config_changes.py`).
"""

from __future__ import annotations

from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.config import ConfigError
from official_trainer.config.reading import plain
from official_trainer.files import PARAMS_FILE, RUN_FILE

HEADER = b"# experiment: "
"""The first words of our `params.yaml`; Model Garden's begins with its first section."""

_SECTIONS = {"task", "trainer", "runtime"}
_NOT_COMPARED = ("runtime", "trainer.best_checkpoint_export_subdir")
"""Fields whose defaults differ there, so that the same command gives another value here."""


def is_one(model_dir: str) -> bool:
    """Whether Model Garden's driver has run in a directory, and this package has not."""
    if files.exists(files.join(model_dir, RUN_FILE)) or not files.is_dir(model_dir):
        return False
    return params(model_dir) is not None or bool(manifest.committed_steps(model_dir))


def params(model_dir: str) -> dict[str, Any] | None:
    """Returns the config that Model Garden's driver wrote down; None without one."""
    path = files.join(model_dir, PARAMS_FILE)
    if not files.exists(path) or (content := files.read_bytes(path)).startswith(HEADER):
        return None
    try:
        config = plain(content.decode(), path)
    except (ConfigError, ValueError):
        return None
    return config if isinstance(config, dict) and config.keys() >= _SECTIONS else None


def is_compared(path: str) -> bool:
    """Whether a field of an earlier run by Model Garden is compared with that of this one."""
    return not any(path == field or path.startswith(f"{field}.") for field in _NOT_COMPARED)
