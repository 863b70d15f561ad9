"""Which run a tracking service knows a run directory as.

Owns: the small file in which a tracker remembers that across restarts. Does not own: our own run's id (`record.py` of
the engine).
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

from official_trainer import files


def remembered(path: str) -> dict[str, Any]:
    """Returns what the file says, at least the identity `run`: a new one, which it says from now on, if there is none.

    It is written before the service hears of it, so that a process that dies in between is found again.
    """
    if files.exists(path):
        return json.loads(files.read_text(path))
    new = {"run": uuid.uuid4().hex}
    files.make_dirs(os.path.dirname(path) or ".")
    remember(path, new)
    return new


def remember(path: str, known: dict[str, Any]) -> None:
    """Replaces what the file says."""
    files.write_text_atomically(path, json.dumps(known) + "\n", durable=False)
