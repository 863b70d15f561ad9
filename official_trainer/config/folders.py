"""Names of folders in a run directory that a config may choose.

Owns: the names that the run uses itself, and what a chosen name may look like. Does not own: the fields (`schema.py`,
actions), paths outside of the run directory.

What writes there also deletes there: a name that leads out of the run directory, or into another part's folder, would
delete checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Collection

RESERVED = (
    *("best", "commands", "continuous_eval", "export", "hparams", "intermediates", "mlartifacts", "non_finite"),
    *("optimizer", "predictions", "time", "train", "validation", "wandb", "workers"),
)
"""Folders that the run, or a part of it, uses under this very name."""

_OWN_FILES = re.compile(r"(checkpoint|ckpt-.*|from-.*|.*\.(json|jsonl|yaml|gin|txt|db)|PROFILE)", re.DOTALL)


def folder_problem(name: str, *, own: str | None = None, reserved: Collection[str] = RESERVED) -> str | None:
    """Returns what is wrong with the name of a folder in the run directory, or None.

    Args:
      name: what the config says.
      own: the reserved name that is this field's own default.
      reserved: names that other parts use.
    """
    if problem := _shape_problem(name):
        return problem
    if name != own and (name in reserved or _OWN_FILES.fullmatch(name)):
        return f"is {name!r}, which the run uses itself; name another folder"
    return None


def _shape_problem(name: str) -> str | None:
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        return f"is {name!r}; it must be the name of one folder"
    if len(name.encode()) > 200:
        return f"is a name of {len(name.encode())} bytes; at most 200 are allowed"
    return None
