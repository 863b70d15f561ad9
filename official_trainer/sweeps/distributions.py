"""The language of a space: `log(1e-5, 1e-1)`, `choice(a, b)`, `list(1, 3, int(32, 256, 32))`.

Owns: reading a distribution as dimensions, what is wrong with its text, writing a value that was drawn.
Does not own: whether the experiment takes the values (`space.py`), drawing (`study.py`).

Named choices are a mapping, `choice: {small: …, large: …}`; everything else is text.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, Problem, flow, scalars
from official_trainer.config.errors import best_match

Value = str | int | float
"""A value that was drawn: a number, or the text or the name of a choice."""

Written = str | Mapping[str, Mapping[str, Any]]
"""A distribution as it is in the file of a sweep."""

FORMS = {
    "float": "float(low, high) or float(low, high, step)",
    "int": "int(low, high) or int(low, high, step)",
    "log": "log(low, high)",
    "logint": "logint(low, high)",
    "choice": "choice(a, b, …)",
    "list": "list(shortest, longest, DISTRIBUTION)",
}
INTEGERS = ("int", "logint")
LOGARITHMIC = ("log", "logint")
_LONGEST_LIST = 100
_MOST_CHOICES = 1000  # each is checked with the whole config of the experiment, which takes milliseconds
_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[\[{(\]}),]|[^\[{(\]}),'"]+|['"]""", re.DOTALL)
_BETWEEN = 0.6180339887  # a point that is no integer, whatever the bounds are


@dataclasses.dataclass(frozen=True)
class Dimension:
    """Something that is drawn: a field, the length of a list or an item of it.

    Attributes:
      path: of the field as it is written in the space; `PATH[length]` and `PATH[0]` of a list.
      kind: `float`, `int`, `log`, `logint` or `choice`.
      low: the lowest number.
      high: the highest number.
      step: the distance of two numbers; None for any number.
      choices: the texts of a choice, or its names.
      texts: the value of each choice as a flag takes it, where that is another text.
      needs: (path of another dimension, its values with which this one is drawn).
      of_list: path of the list that this is the length or an item of.
    """

    path: str
    kind: str
    low: float = 0
    high: float = 0
    step: float | None = None
    choices: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    needs: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    of_list: str = ""

    @property
    def is_length(self) -> bool:
        """Whether this is the length of a list."""
        return bool(self.of_list) and self.path == f"{self.of_list}[length]"

    def text(self, value: Value) -> str:
        """Returns a value as a flag takes it."""
        if self.kind != "choice":
            return flow(value)
        return self.texts[self.choices.index(str(value))] if self.texts else str(value)

    def holds(self, value: object) -> bool:
        """Returns whether a value can be drawn."""
        if self.kind == "choice":
            return value in self.choices
        is_number = isinstance(value, int if self.kind in INTEGERS else (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high  # type: ignore[operator] # a number

    def settled(self, value: Value) -> Value:
        """Returns a number with a step as its bounds would be written: 0.3, not 0.30000000000000004."""
        if self.kind != "float" or self.step is None:
            return value
        return float(_exact(self.low) + _exact(self.step) * round((float(value) - self.low) / self.step))

    @property
    def tried(self) -> Iterator[Value]:
        """The values that are checked before anything starts."""
        if self.kind == "choice":
            yield from self.choices
        elif self.kind in INTEGERS:
            yield from (int(self.low), int(self.high))
        else:
            between = self.low + (self.high - self.low) * _BETWEEN
            yield from (self.low, self.high, self.settled(between))


def read(path: str, written: Written) -> list[Dimension]:
    """Returns the dimensions of a distribution.

    Args:
      path: of the field.
      written: its distribution.

    Raises:
      ConfigError: it is wrong; a problem has the wrong word of its text as `got`, which is empty for all of it.
    """
    if isinstance(written, str):
        return _call(path, written)
    if set(written) != {"choice"}:
        what, allowed = "is no distribution", "choice: {NAME: VALUE, …}, or a text"
        raise ConfigError(
            Problem(what, got=name, allowed=allowed, near=best_match(name, ["choice"]))
            for name in written or [""]
            if name != "choice"
        )
    choices = written["choice"]
    if len(choices) < 2:
        raise _wrong("needs two choices or more")
    return _choice(path, tuple(choices), tuple(map(flow, choices.values())))


def _wrong(what: str, **parts: Any) -> ConfigError:
    return ConfigError([Problem(what, **parts)])


def _call(path: str, text: str) -> list[Dimension]:
    call = _CALL.fullmatch(text)
    if call is None or call[1] not in FORMS:
        word, near = (call[1], best_match(call[1], FORMS)) if call else ("", "")
        raise _wrong("is no distribution", got=word, allowed="" if near else ", ".join(FORMS.values()), near=near)
    kind, words = call[1], split(call[2])
    if kind == "choice":
        if len(words) < 2 or len(set(words)) < len(words) or not all(words):
            raise _wrong("needs two choices or more, all different")
        return _choice(path, tuple(words), ())
    if kind == "list":
        return _list(path, words)
    if len(words) not in ((2, 3) if kind in ("int", "float") else (2,)):
        raise _wrong(f"write {FORMS[kind]}")
    numbers, problems = _numbers(words, int if kind in INTEGERS else float)
    if problems:
        raise ConfigError(problems)
    low, high, *step = numbers
    if not low < high:
        raise _wrong("has an empty range; the first bound must be below the second")
    if kind in LOGARITHMIC and low <= 0:
        other = "int" if kind in INTEGERS else "float"
        raise _wrong("needs bounds above 0", fix=f"write {other}(low, high), or another bound")
    if step and (step[0] <= 0 or (_exact(high) - _exact(low)) % _exact(step[0]) != 0):
        raise _wrong("needs a step above 0 that leads from one bound to the other")
    return [Dimension(path, kind, low, high, step[0] if step else 1 if kind in INTEGERS else None)]


def _exact(number: float) -> decimal.Decimal:
    return decimal.Decimal(repr(number))


def _choice(path: str, choices: tuple[str, ...], texts: tuple[str, ...]) -> list[Dimension]:
    if len(choices) > _MOST_CHOICES:
        what = f"has {len(choices):,} choices, each of which is checked; at most {_MOST_CHOICES:,} are allowed"
        fix = "write a range for numbers, such as int(low, high, step)"
        raise _wrong(what, got=choices[_MOST_CHOICES], fix=fix)
    return [Dimension(path, "choice", choices=choices, texts=texts)]


def _list(path: str, words: Sequence[str]) -> list[Dimension]:
    if len(words) != 3:
        raise _wrong(f"write {FORMS['list']}")
    inner = _CALL.fullmatch(words[2])
    if inner is not None and inner[1] == "list":
        what = "draws the items of a list from another list"
        raise _wrong(what, got=words[2], fix="choose among whole lists")
    bounds, problems = _numbers(words[:2], int)
    if not problems and not 0 <= bounds[0] <= bounds[1] <= _LONGEST_LIST:
        what = f"needs lengths from 0 to {_LONGEST_LIST}, the shorter one first"
        problems.append(Problem(what, got=", ".join(words[:2])))
    try:
        (item,) = _call(path, words[2])
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    low, high = map(int, bounds)
    length = Dimension(f"{path}[length]", "int", low, high, 1, of_list=path)
    found = [length]
    for index in range(high):
        needs = ((length.path, tuple(range(max(low, index + 1), high + 1))),)
        found.append(dataclasses.replace(item, path=f"{path}[{index}]", needs=needs, of_list=path))
    return found


def _numbers(words: Sequence[str], kind: type[int] | type[float]) -> tuple[list[Any], list[Problem]]:
    """Returns the numbers that words are, and what is wrong with those that are none."""
    found: list[Any] = []
    problems: list[Problem] = []
    for word in words:
        try:
            found.append(scalars.value_of(word, kind, quoted=False))
            if not math.isfinite(found[-1]):
                problems.append(Problem("needs finite bounds", got=word))
        except scalars.MisreadError as error:
            problems += _wrong(**error.parts, got=word).problems
    return found, problems


def split(text: str) -> list[str]:
    """Splits at the commas that are outside of brackets and quotes."""
    words, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "[{(") - (token in "]})")
        if token == "," and depth == 0:
            words.append("")
        else:
            words[-1] += token
    return [word.strip() for word in words]
