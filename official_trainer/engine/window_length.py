"""How many steps a window may have, so that a run answers and shows its progress in time.

Owns: the longest time of a window, and how windows grow. Does not own: where something is due (`triggers.py`).
"""

from __future__ import annotations

MAX_WINDOW_SECONDS = 1.0
"""Windows are kept shorter than this, or one step long, so that signals are seen and progress is shown in time."""

WINDOW_GROWTH = 10
"""A window is at most this many times as long as the last one: the first, which traces, says little about speed."""


def next_length(steps: int, seconds: float) -> int:
    """Returns how many steps the window after one of `steps` may have, which took `seconds`."""
    per_step = max(seconds / steps, 1e-9)
    return max(1, min(steps * WINDOW_GROWTH, int(MAX_WINDOW_SECONDS / per_step)))
