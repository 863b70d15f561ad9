"""Names in messages: the known names nearest to a misspelt one, and long text cut to fit a line.

Owns: how near two names are. Does not own: messages (`errors.py`, `config/errors.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, options: Iterable[str]) -> list[str]:
    """Returns up to three of `options` that `word` may have been meant to be, best first."""
    found: list[tuple[int, int, str]] = []
    meant, limit = word.lower(), max(1, len(word) // 3)
    for position, option in enumerate(options):
        right = option.lower()
        distance = _edits(meant, right) if abs(len(meant) - len(right)) <= limit else limit + 1
        if distance <= limit or _alike(meant, right) or _alike(_sorted_parts(meant), _sorted_parts(right)):
            found.append((distance, position, option))
    return [option for *_, option in sorted(found)[:3]]


def shorten(text: str, limit: int = 60) -> str:
    """Returns `text` on one line, cut in the middle when it is long."""
    text = text.replace("\n", "\\n")
    return text if len(text) <= limit else f"{text[: limit - 12]}…{text[-10:]}"


def _alike(a: str, b: str) -> bool:
    matcher = difflib.SequenceMatcher(None, a, b)
    return matcher.real_quick_ratio() >= 0.75 and matcher.quick_ratio() >= 0.75 and matcher.ratio() >= 0.75


def _sorted_parts(name: str) -> str:
    """Returns `steps_train` as `train_steps`, and the other way round."""
    return "_".join(sorted(name.split("_")))


def _edits(a: str, b: str) -> int:
    """Counts insertions, deletions, substitutions and swaps of neighbours between two words."""
    before: Sequence[int] = ()
    row: list[int] = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, last[j] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[-1] = min(row[-1], before[j - 2] + 1)
        before = last
    return row[-1]
