"""The names that a mistyped word may mean.

Owns: how near two words are, and the end of a message that offers the nearest. Does not own: which names are allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# As `difflib` measures it: 1 for the same word. Where two of three letters are swapped, two thirds are left.
_LIKENESS, _LIKENESS_OF_THREE, _LIKENESS_OF_MODULES = 0.73, 0.66, 0.82


def nearest(word: str, options: Iterable[str]) -> list[str]:
    """Returns up to three of `options` that `word` may be a misspelling of, best first.

    Of a word of one or two letters, every letter has to be in it: too much is as near to it.
    """
    return _alike(word, options, _LIKENESS_OF_THREE if len(word) == 3 else _LIKENESS)


def mistyped(word: str, options: Iterable[str]) -> str:
    """Returns the one of `options` that `word` is but for a letter or two; "" if there is none.

    For names of modules, of which many are there, and what was meant may not be.
    """
    near = _alike(word, options, _LIKENESS_OF_MODULES)
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


def _alike(word: str, options: Iterable[str], least: float) -> list[str]:
    lower = {option.lower(): option for option in options}
    return [lower[near] for near in difflib.get_close_matches(word.lower(), lower, cutoff=least)]
