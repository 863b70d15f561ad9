"""The space of a sweep: for fields of an experiment, from which values they are drawn.

Owns: the language of distributions (`log(1e-5, 1e-1)`), checking each bound and each choice against the experiment's
config, and which fields are drawn together.
Does not own: drawing (`study.py`), what the config allows (`config/`).

A field in a branch of a one-of is drawn where that branch is chosen, by the experiment or by another field of the
space. There is no other condition.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, OneOf, Problem, Resolved, fields, format_override, scalars
from official_trainer.config.errors import Origin, best_match

Resolve = Callable[[Sequence[str]], Resolved]
"""Returns the experiment's config with overrides `PATH=VALUE` above everything else."""

Value = str | int | float
"""A value that was drawn: a number, or the text of a choice."""

_FORMS = {
    "float": "float(low, high)",
    "int": "int(low, high) or int(low, high, step)",
    "log": "log(low, high)",
    "choice": "choice(a, b, …)",
}
_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[\[{(\]}),]|[^\[{(\]}),'"]+|['"]""", re.DOTALL)
_BETWEEN = 0.6180339887  # a point that is no integer, whatever the bounds are


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A field that is drawn.

    Attributes:
      path: of the field.
      kind: `float`, `int`, `log` or `choice`.
      low: the lowest number.
      high: the highest number.
      step: the distance of two integers.
      choices: the texts of a choice.
      branches: (path of the `type` of a one-of, the branch that the field is in), outermost first.
    """

    path: str
    kind: str
    low: float = 0
    high: float = 0
    step: int = 1
    choices: tuple[str, ...] = ()
    branches: tuple[tuple[str, str], ...] = ()

    def override(self, value: Value) -> str:
        """Returns `PATH=VALUE` for a value that was drawn."""
        return f"{self.path}={value}" if self.kind == "choice" else format_override(self.path, value)

    @property
    def tried(self) -> Iterator[Value]:
        """The values that are checked before anything starts."""
        if self.kind == "choice":
            yield from self.choices
        elif self.kind == "int":
            yield from (int(self.low), int(self.high))
        else:
            yield from (self.low, self.high, self.low + (self.high - self.low) * _BETWEEN)


@dataclasses.dataclass(frozen=True)
class Space:
    """All fields that are drawn.

    Attributes:
      dimensions: what chooses a branch comes before what is in it.
      chosen: path of the `type` of a one-of → the branch that the experiment chooses.
    """

    dimensions: tuple[Dimension, ...]
    chosen: Mapping[str, str | None]

    def draw(self, choose: Callable[[Dimension], Value]) -> dict[str, Value]:
        """Returns a value for each field that is in a chosen branch; `choose` returns that of one field."""
        drawn: dict[str, Value] = {}
        for each in self.dimensions:
            if all(drawn.get(path, self.chosen.get(path)) == branch for path, branch in each.branches):
                drawn[each.path] = choose(each)
        return drawn

    def overrides(self, values: Mapping[str, Value]) -> list[str]:
        """Returns values as `PATH=VALUE`."""
        return [each.override(values[each.path]) for each in self.dimensions if each.path in values]


def read(texts: Mapping[str, str], origins: Mapping[str, Origin], resolve: Resolve) -> Space:
    """Reads a space, and checks it against the experiment.

    Args:
      texts: path of a field → its distribution.
      origins: path of a field → where that is written.
      resolve: resolves the experiment's config.

    Raises:
      ConfigError: with all problems, each at the place of its distribution.
    """
    config = resolve(()).config
    problems: list[Problem] = []
    found: list[Dimension] = []
    places: dict[str, Origin] = {}
    for path, text in texts.items():
        try:
            found.append(_dimension(config, path, text))
            if found[-1].path in places:
                raise _refusal(found[-1].path, "is drawn twice; keep one of the two")
            places[found[-1].path] = origins[path]
        except ConfigError as error:
            problems += (dataclasses.replace(each, origin=origins[path]) for each in error.problems)
    found.sort(key=lambda each: len(each.branches))
    chosen = {path: fields.find(config, path) for each in found for path, _ in each.branches}
    space = Space(tuple(found), chosen)
    for each in found if not problems else ():
        problems += (dataclasses.replace(one, origin=places[each.path]) for one in _problems(each, space, resolve))
    if problems:
        raise ConfigError(problems)
    return space


def _dimension(config: Any, path: str, text: str) -> Dimension:
    value = fields.find(config, path)
    if isinstance(value, OneOf):
        path = fields.join(path, "type")
    call = _CALL.fullmatch(text)
    if call is None or call[1] not in _FORMS:
        near = best_match(call[1], _FORMS) if call else ""
        raise _refusal(path, "is no distribution", got=f"'{text}'", allowed=", ".join(_FORMS.values()), near=near)
    kind, words = call[1], _split(call[2])
    branches = tuple(_branches(config, path))
    if kind == "choice":
        if len(words) < 2 or len(set(words)) < len(words) or not all(words):
            raise _refusal(path, "needs two choices or more, all different", got=f"'{text}'")
        return Dimension(path, kind, choices=tuple(words), branches=branches)
    if len(words) not in ((2, 3) if kind == "int" else (2,)):
        raise _refusal(path, f"write {_FORMS[kind]}", got=f"'{text}'")
    low, high, *step = (_number(path, word, int if kind == "int" else float) for word in words)
    if not low < high:
        raise _refusal(path, "has an empty range; the first bound must be below the second", got=f"'{text}'")
    if kind == "log" and low <= 0:
        raise _refusal(path, "needs bounds above 0", got=f"'{text}'", fix="write float(low, high), or another bound")
    if step and (step[0] < 1 or (high - low) % step[0]):
        raise _refusal(path, "needs a step of at least 1 that leads from one bound to the other", got=f"'{text}'")
    return Dimension(path, kind, low, high, int(step[0]) if step else 1, branches=branches)


def _number(path: str, text: str, kind: type[int] | type[float]) -> Any:
    try:
        number = scalars.read(text, kind, quoted=False)
    except scalars.MisreadError as error:
        what, parts = error.parts["what"], {name: error.parts[name] for name in ("fix", "allowed", "near")}
        raise _refusal(path, what, got=f"'{text}'", **parts) from error
    if not math.isfinite(number):
        raise _refusal(path, "needs finite bounds", got=f"'{text}'")
    return number


def _branches(config: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the one-ofs around a field, with the branch that the field is in."""
    value, place = config, ""
    for key in fields.settle(config, fields.parse_path(path)):
        if isinstance(value, OneOf) and key != "type":
            yield fields.join(place, "type"), str(key)
        value, place = fields.child(value, key), fields.join(place, key)


def _problems(each: Dimension, space: Space, resolve: Resolve) -> Iterator[Problem]:
    """Yields what the config does not allow, and a branch that is never chosen."""
    drawn = {other.path: other for other in space.dimensions}
    for path, branch in each.branches:
        choices = drawn[path].choices if path in drawn else (space.chosen[path],)
        if branch not in choices:
            fix = f"add '{path}: choice({space.chosen[path]}, {branch})' to the space, or remove this"
            yield Problem(f"is never drawn: {path} is never '{branch}'", each.path, fix=fix)
            return
    inside = [other for other in drawn if other != each.path and each.path.startswith((f"{other}.", f"{other}["))]
    if inside:
        yield Problem(f"is a part of {inside[0]}, which is drawn as a whole; keep one of them", each.path)
        return
    before = [f"{path}={branch}" for path, branch in each.branches if path in drawn]
    for value in each.tried:
        try:
            resolve([*before, each.override(value)])
        except ConfigError as error:
            first = error.problems[0]
            is_fraction = isinstance(value, float) and value not in (each.low, each.high)
            fix = f"write int({each.low:g}, {each.high:g})" if is_fraction else first.fix
            where = "" if first.path == each.path else f"{first.path}: "
            yield dataclasses.replace(first, what=f"with {value}, {where}{first.what}", path=each.path, fix=fix)
            return


def _split(text: str) -> list[str]:
    """Splits at the commas that are outside of brackets and quotes."""
    words, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "[{(") - (token in "]})")
        if token == "," and depth == 0:
            words.append("")
        else:
            words[-1] += token
    return [word.strip() for word in words]


def _refusal(path: str, what: str, *, got: str = "", allowed: str = "", near: str = "", fix: str = "") -> ConfigError:
    return ConfigError([Problem(what, path, got, allowed, near, fix)])
