"""What the steps of a job have noted: when each was made, and on which examples.

Owns: the form of a note, and what follows from many: which of them are the final history, how many steps were computed
again, which examples were read twice or never. Does not own: noting (`goodput_job.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

BATCH, EXAMPLES = 64, 6400

NOTE = np.dtype([("step", np.int32), ("seconds", np.float64), ("ids", np.int32, BATCH)])
"""A note: the number of the step from 0, the time on the system's clock that only rises, the examples."""

Notes = Any
"""`[n]` of `NOTE`, in the order in which they were made."""


def read(path: Path, first: int = 0) -> Notes:
    """Returns the notes of a file from number `first` on; none if there is no file."""
    count = count_in(path)
    return np.fromfile(path, NOTE, count - first, offset=first * NOTE.itemsize) if count > first else np.empty(0, NOTE)


def count_in(path: Path) -> int:
    """Returns how many notes a file holds."""
    return path.stat().st_size // NOTE.itemsize if path.exists() else 0


def final_history(notes: Notes) -> Notes:
    """Returns the last note of each step up to the step that was noted last: what the weights came from."""
    last = {int(step): place for place, step in enumerate(notes["step"])}
    return notes[[place for step, place in sorted(last.items()) if step <= notes["step"][-1]]]


def misread(history: Notes) -> float:
    """Returns how many of 1,000 examples of whole epochs were read twice or more, or never, in their epoch."""
    steps = EXAMPLES // BATCH
    found = total = 0
    for epoch in range(len(history) // steps):
        counts = np.bincount(history["ids"][epoch * steps : (epoch + 1) * steps].ravel(), minlength=EXAMPLES)
        found += int(np.sum(counts != 1))
        total += EXAMPLES
    return 1000 * found / total if total else 0.0


def after(notes: Notes, seconds: float) -> tuple[float, int] | None:
    """Returns how long after a moment the next step was made, and how many steps it repeats; None without one."""
    place = int(np.searchsorted(notes["seconds"], seconds))
    if place == len(notes):
        return None
    before = int(notes["step"][:place].max()) if place else -1
    return float(notes["seconds"][place] - seconds), before + 1 - int(notes["step"][place])
