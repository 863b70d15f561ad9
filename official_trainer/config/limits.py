"""How much a configuration may hold, and which values it cannot hold.

Owns: the limits of files, texts and values, so that a mistaken or hostile one is refused in seconds, with its place.
Does not own: refusing; each limit is checked where its text is read (`reading.py`, `overrides.py`, `decode.py`).
"""

from __future__ import annotations

import re
from typing import Any

MAX_BYTES = 32 << 20
"""Of one file. A dump of the largest configuration, with a comment on each line, has less."""
MAX_FLAG_CHARACTERS = 1 << 20
"""Of the text of one flag."""
MAX_FILES = 100
"""Of one configuration, those that `base:` includes counted."""
MAX_DEPTH = 64
"""Sections, lists and mappings inside each other; Python's own limit is near 150."""
MAX_SIZE = 50_000
"""Of all files and flags together, with what aliases repeat, and of the configuration that they make; see `size`."""
MAX_OVERRIDES = 1000
"""Items of all `--params_override` and `--set` together."""
MAX_REFERENCES = 1000
"""Values that refer to other fields."""
MAX_PROBLEMS = 50
"""After so many, nothing more is read."""

LEAST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1
INTEGERS = f"between {LEAST_INTEGER} and {LARGEST_INTEGER}"

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def size(value: Any) -> int:
    """Returns how much one value, name, list or mapping counts: 1, and 1 more for every 64 characters of a text."""
    return 1 + (len(value) // 64 if isinstance(value, str) else 0)


def unstorable(value: Any) -> str:
    """Returns what is wrong with a number or text that no file could give back; empty if nothing is."""
    if isinstance(value, int) and not LEAST_INTEGER <= value <= LARGEST_INTEGER:
        return f"must be {INTEGERS}"
    if isinstance(value, str) and (match := _LONE_SURROGATE.search(value)):
        return f"must be text that UTF-8 can hold, which character {match.start() + 1} is not"
    return ""
