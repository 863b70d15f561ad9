"""Names of folders in a run directory that a config may choose.

Owns: the names that the run uses itself, and what another name may look like. Does not own: the fields (`schema.py`,
actions), paths outside of the run directory.

What writes there also deletes there: a name that leads out of the run directory, or to a folder that the run uses
itself, would delete checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Collection

RESERVED = (
    *("best", "commands", "continuous_eval", "export", "hparams", "intermediates", "mlartifacts", "non_finite"),
    *("optimizer", "predictions", "time", "train", "validation", "wandb", "workers"),
)
"""Folders that the run, or a part of it, uses under this very name."""

_FILES = re.compile(r"(checkpoint|ckpt-.*|from-.*|.*\.(json|jsonl|yaml|gin|txt|db)|PROFILE)", re.DOTALL)


def folder_problem(name: str, *, default: str | None = None, reserved: Collection[str] = RESERVED) -> str | None:
    """Returns what is wrong with the name of a folder in the run directory, or None.

    Args:
      name: what the config says.
      default: the reserved name that is the default of this field.
      reserved: names that others use.
    """
    if name[:1] in ("", ".") or not name.isprintable() or set(name) & set("/\\") or len(name.encode()) > 200:
        return f"is {name!r}; it must be the name of one folder, of at most 200 bytes"
    if name != default and (name in reserved or _FILES.fullmatch(name)):
        return f"is {name!r}, which the run uses itself; name another folder"
    return None
