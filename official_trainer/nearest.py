"""The names that a mistyped word may mean.

Owns: how near two words are, and the end of a message that offers the nearest. Does not own: which names are allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, options: Iterable[str]) -> list[str]:
    """Returns up to three of `options` that `word` may be a misspelling of, best first.

    A word of one or two letters is no misspelling: too much is as near to it.
    """
    found: list[tuple[int, int, str]] = []
    meant, limit = word.lower(), len(word) // 3
    for position, option in enumerate(options):
        right = option.lower()
        distance = _edits(meant, right) if abs(len(meant) - len(right)) <= limit else limit + 1
        if distance <= limit or _alike(meant, right) or _alike(_sorted_parts(meant), _sorted_parts(right)):
            found.append((distance, position, option))
    return [option for *_, option in sorted(found)[:3]]


def mistyped(word: str, options: Iterable[str]) -> str:
    """Returns the one of `options` that `word` is but for one letter, or two of a long word; "" if there is none.

    For names of modules, of which many are there, and what was meant may not be.
    """
    most = min(2, len(word) // 4)
    near = [option for option in nearest(word, options) if _edits(word.lower(), option.lower()) <= most]
    return near[0] if near else ""


def did_you_mean(word: str, options: Iterable[str], *, prefix: str = "", otherwise: str = "") -> str:
    """Returns `; did you mean …?` with the options nearest to a word, for the end of a message.

    Args:
      word: that is none of the options.
      options: the words that are allowed.
      prefix: is put before each option.
      otherwise: the answer if no option is near.
    """
    near = [prefix + option for option in nearest(word, options)]
    return f"; did you mean {' or '.join(near)}?" if near else otherwise


def no_choice(value: object, choices: Sequence[str]) -> str:
    """Returns what is wrong with a value that is none of a few words; empty if it is one."""
    if value in choices:
        return ""
    near = did_you_mean(str(value), choices)
    return f"not one of the choices, got {value!r}; allowed: {', '.join(choices)}{near}"


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
