"""The space of a sweep: for fields of an experiment, from which values they are drawn.

Owns: which dimensions are drawn together, checking each bound and each choice against the experiment's config, and what
was drawn as overrides.
Does not own: the language of distributions (`distributions.py`), drawing (`study.py`), what the config allows
(`config/`).

A field in a branch of a one-of is drawn where that branch is chosen, by the experiment or by another field of the
space. There is no other condition.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import config as configuration
from official_trainer.config import Config, ConfigError, OneOf, Problem, Resolved, fields
from official_trainer.config.errors import Origin, source_lines
from official_trainer.config.provenance import is_inside
from official_trainer.sweeps import distributions
from official_trainer.sweeps.distributions import Dimension, Value, Written

Resolve = Callable[[Sequence[str]], Resolved]
"""Returns the experiment's config with overrides `PATH=VALUE` above everything else."""

Place = Callable[[Sequence[fields.Key]], Origin | None]
"""Returns where something of a space is written: `(path,)` or `(path, "choice", name, key, …)`."""


@dataclasses.dataclass(frozen=True)
class Space:
    """All that is drawn.

    Attributes:
      dimensions: what another one needs comes before it.
    """

    dimensions: tuple[Dimension, ...]

    def draw(self, choose: Callable[[Dimension], Value]) -> dict[str, Value]:
        """Returns a value for each dimension whose needs are met; `choose` returns that of one dimension."""
        drawn: dict[str, Value] = {}
        for each in self.dimensions:
            if all(drawn.get(path) in values for path, values in each.needs):
                drawn[each.path] = each.settled(choose(each))
        return drawn

    def overrides(self, values: Mapping[str, Value]) -> list[str]:
        """Returns what was drawn as `PATH=VALUE`."""
        return [f"{path}={text}" for path, text in self.texts(values)]

    def objects(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Returns what was drawn as values of Python, a list as one value."""
        numbers = {each.path for each in self.dimensions if each.kind != "choice" and not each.of_list}
        return {path: values[path] if path in numbers else _object(text) for path, text in self.texts(values)}

    def texts(self, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
        """Yields each field with what was drawn for it as one line of YAML."""
        for each in self.dimensions:
            if each.is_length and each.path in values:
                items = [item for item in self.dimensions if item.of_list == each.of_list and not item.is_length]
                drawn = [item.text(values[item.path]) for item in items if item.path in values]
                yield each.of_list, f"[{', '.join(drawn)}]"
            elif not each.of_list and each.path in values:
                yield each.path, each.text(values[each.path])


def read(written: Mapping[str, Written], place: Place, resolve: Resolve) -> Space:
    """Reads a space, and checks it against the experiment.

    Args:
      written: path of a field → its distribution.
      place: where each of them is written.
      resolve: resolves the experiment's config.

    Raises:
      ConfigError: with all problems, each at its place.
    """
    return _Reading(written, place, resolve).space()


def read_free(written: Mapping[str, Written], place: Place) -> Space:
    """Reads a space of which there is no config.

    Args:
      written: name → its distribution.
      place: where each of them is written.

    Raises:
      ConfigError: with all problems, each at its place.
    """
    reported = _Reported(written, place)
    found = [each for path in written for each in reported.dimensions(path)]
    for each in found:
        for value in each.choices:
            try:
                _object(each.text(value))
            except ConfigError as error:
                reported.refused(each.of_list or each.path, value, error)
    reported.check()
    return Space(tuple(found))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Free(Config):
    """A value of any type.

    Attributes:
      value: the value.
    """

    value: Any = None


def _object(text: str) -> Any:
    return configuration.resolve(_Free(), sets=[f"value={text}"]).config.value


class _Reported:
    """The problems of a space, in the order of its file."""

    def __init__(self, written: Mapping[str, Written], place: Place) -> None:
        self._written, self._place = written, place
        self._found: dict[str, list[Problem]] = {path: [] for path in written}

    def dimensions(self, path: str) -> list[Dimension]:
        """Returns the dimensions of a distribution; reports what is wrong with its text."""
        try:
            return distributions.read(path, self._written[path])
        except ConfigError as error:
            for each in error.problems:
                self.mistake(path, each)
        return []

    def mistake(self, path: str, mistake: Problem) -> None:
        """Reports a mistake at its word."""
        written, word = self._written[path], mistake.got
        got = word or (written if isinstance(written, str) else "")
        problem = dataclasses.replace(mistake, path=path, got=f"'{got}'" if got else "")
        self._found[path].append(self._at_word(problem, path, word))

    def refused(self, path: str, value: object, error: ConfigError, *, fix: str = "", inside: str = "") -> None:
        """Reports why the config refuses a value.

        Args:
          path: of the field.
          value: as it is written.
          error: what the config says.
          fix: in place of the one there.
          inside: path of the field in the config, if the parts of a named choice have places of their own.
        """
        is_named = not isinstance(self._written[path], str)
        for each in error.problems:
            same = (path, inside, f"{inside}.type", "value")
            where = "" if each.path in same or each.path.startswith(f"{path}[") else f"{each.path}: "
            problem = dataclasses.replace(
                each, what=f"with {value}, {where}{each.what}", path=path, fix=fix or each.fix
            )
            if not is_named:
                self._found[path].append(self._at_word(problem, path, str(value)))
                continue
            below = fields.parse_path(each.path) if fields.is_path(each.path) and is_inside(each.path, inside) else ()
            keys = below[len(fields.parse_path(inside)) :]
            origin = self._place((path, "choice", str(value), *keys))
            self._found[path].append(dataclasses.replace(problem, origin=origin, length=1))

    def says(self, path: str, problem: Problem) -> None:
        """Reports a problem with a field as a whole."""
        self._found[path].append(self._at_word(dataclasses.replace(problem, path=path), path, ""))

    def has(self, path: str) -> bool:
        """Returns whether a problem was reported of a field."""
        return bool(self._found[path])

    def check(self) -> None:
        """Raises all problems."""
        if problems := [problem for each in self._found.values() for problem in each]:
            raise ConfigError(problems)

    def _at_word(self, problem: Problem, path: str, word: str) -> Problem:
        """Returns a problem at a word of the text of a field, or at the text if that is not known on its line."""
        origin, written = self._place((path,)), self._written[path]
        if origin is None or not isinstance(written, str):
            return dataclasses.replace(problem, origin=origin, length=1)
        lines = source_lines(origin.text)
        line = lines[origin.line - 1] if 0 < origin.line <= len(lines) else ""
        inside = re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", written) if word else None
        at, length = (inside.start(), len(word)) if inside is not None else (0, len(written))
        if line[origin.column - 1 :].startswith(written):
            return dataclasses.replace(problem, origin=origin.moved(0, at), length=length)
        return dataclasses.replace(problem, origin=origin, length=1)


@dataclasses.dataclass(frozen=True)
class _Field:
    """A field that is drawn: as it is written, where it is in the config, its dimensions."""

    path: str
    place: str
    dimensions: tuple[Dimension, ...]

    @property
    def choice(self) -> Dimension | None:
        """The dimension, if it chooses among values of the field."""
        first = self.dimensions[0]
        return first if first.kind == "choice" and not first.of_list else None


class _Reading:
    """Checks a space against an experiment, outer fields before those inside of them."""

    def __init__(self, written: Mapping[str, Written], place: Place, resolve: Resolve) -> None:
        self._written, self._resolve = written, resolve
        self._reported = _Reported(written, place)
        self._config = resolve(()).config
        self._fields: dict[str, _Field] = {}
        self._unread: list[str] = []
        """Places of fields whose distributions cannot be read."""
        self._chosen: dict[tuple[str, str], tuple[Resolved, str]] = {}
        """(path of a field, its choice) → the config with it, and the override that makes it."""

    def space(self) -> Space:
        """Returns the checked space."""
        found = [field for path in self._written if (field := self._field(path)) is not None]
        drawn: list[Dimension] = []
        for each in sorted(found, key=lambda field: len(fields.parse_path(field.place))):
            needs = self._needs(each)
            if needs is None:
                continue
            own = tuple(dataclasses.replace(one, needs=(*needs, *one.needs)) for one in each.dimensions)
            drawn += own
            self._fields[each.path] = each = dataclasses.replace(each, dimensions=own)
            self._check_alone(each, dict(needs))
            before = self._before(needs)
            if each.choice is not None:
                self._check_choices(each, each.choice, before)
            elif own[0].of_list:
                self._check_list(each, before)
            else:
                for value in own[0].tried:
                    sets = [*before, f"{each.path}={own[0].text(value)}"]
                    if self._try(each, value, sets, _fix(own[0], value)) is None:
                        break
        self._reported.check()
        return Space(tuple(drawn))

    def _field(self, path: str) -> _Field | None:
        found = self._reported.dimensions(path)
        try:
            fields.find(self._config, path)
        except ConfigError as error:
            self._reported.says(path, error.problems[0])
            return None
        keys = fields.settle(self._config, fields.parse_path(path))
        if keys[-1] == "type" and isinstance(fields.at(self._config, keys[:-1]), OneOf):
            keys = keys[:-1]
        field = _Field(path, fields.path_of(keys), tuple(found))
        if not found:
            self._unread.append(field.place)
            return None
        if field.place in (each.place for each in self._fields.values()):
            self._reported.says(path, Problem("is drawn twice; keep one of the two"))
            return None
        self._fields[path] = field
        return field

    # Conditions.

    def _needs(self, field: _Field) -> tuple[tuple[str, tuple[Value, ...]], ...] | None:
        """Returns what a field needs to be drawn; None if it never is, which is reported."""
        needs: dict[str, tuple[Value, ...]] = {}
        for one_of, branch in _branches(self._config, field.place):
            usual = fields.find(self._config, one_of).type
            types: dict[str, dict[Value, str | None]] = {}  # of the fields around, with each of their choices
            for (path, value), (resolved, _) in self._chosen.items():
                around = self._fields.get(path)
                if around is not None and path != field.path and is_inside(one_of, around.place):
                    types.setdefault(path, {})[value] = fields.find(resolved.config, one_of).type
            deciding = {path: found for path, found in types.items() if set(found.values()) != {usual}}
            for path, found in deciding.items():
                allowed = tuple(value for value, chosen in found.items() if chosen == branch)
                needs[path] = tuple(value for value in allowed if value in needs.get(path, allowed))
            if all(needs[path] for path in deciding) if deciding else usual == branch:
                continue
            wrong = [each.place for each in self._fields.values() if self._reported.has(each.path)]
            if not any(is_inside(one_of, place) for place in (*self._unread, *wrong)):
                fix = f"add '{one_of}: choice({usual}, {branch})' to the space, or remove this"
                what = f"is never drawn: {one_of}.type is never '{branch}'"
                self._reported.says(field.path, Problem(what, fix=fix))
            del self._fields[field.path]
            return None
        return tuple(needs.items())

    def _before(self, needs: Iterable[tuple[str, tuple[Value, ...]]]) -> list[str]:
        """Returns the overrides with which a field is drawn that needs these."""
        found: list[str] = []
        for path, values in needs:
            (each,) = self._fields[path].dimensions
            found += [*self._before(each.needs), f"{path}={each.text(values[0])}"]
        return list(dict.fromkeys(found))

    def _check_alone(self, field: _Field, needs: Mapping[str, tuple[Value, ...]]) -> None:
        """Reports a field that another one sets too."""
        for other in list(self._fields.values()):
            if other.path == field.path or not is_inside(field.place, other.place):
                continue
            if other.choice is None:
                what = f"is a part of {other.path}, which is drawn as a whole; keep one of them"
                self._reported.says(field.path, Problem(what))
                return
            for value in needs.get(other.path, other.choice.choices):
                resolved, override = self._chosen.get((other.path, str(value)), (None, ""))
                origins = [(path, resolved.trail.last(path)) for path in resolved.trail.touched()] if resolved else []
                if any(
                    origin is not None and (origin.kind, origin.text) == ("flag", override)
                    for path, origin in origins
                    if is_inside(path, field.place) or is_inside(field.place, path)
                ):
                    what = f"is also set by {other.path}, where that is {value}"
                    self._reported.says(field.path, Problem(what, fix="leave it out of one of them"))
                    return

    # Values.

    def _try(self, field: _Field, value: object, sets: Sequence[str], fix: str = "") -> Resolved | None:
        """Returns the config with overrides; None if it refuses them, which is reported."""
        try:
            return self._resolve(sets)
        except ConfigError as error:
            self._reported.refused(field.path, value, error, fix=fix, inside=field.place)
        return None

    def _check_choices(self, field: _Field, choice: Dimension, before: Sequence[str]) -> None:
        earlier: dict[str, Any] = {}
        for value in choice.choices:
            override = f"{field.path}={choice.text(value)}"
            if (resolved := self._try(field, value, [*before, override])) is None:
                continue
            self._chosen[field.path, value] = resolved, override
            held = fields.find(resolved.config, field.place)
            other = next((name for name, each in earlier.items() if each == held), None)
            if other is not None:
                self._reported.mistake(field.path, Problem(f"{other} and {value} are the same value", got=value))
            earlier[value] = held

    def _check_list(self, field: _Field, before: Sequence[str]) -> None:
        length, *items = field.dimensions
        usual = [item.text(next(item.tried)) for item in items]
        shortest, longest = int(length.low), int(length.high)
        for count in dict.fromkeys((max(shortest, 1), shortest, longest)):
            sets = [*before, f"{field.path}=[{', '.join(usual[:count])}]"]
            if self._try(field, f"{count} item{'' if count == 1 else 's'}", sets) is None:
                return
        for index, item in enumerate(items):
            for value in item.tried:
                texts = [*usual[:index], item.text(value), *usual[index + 1 :]][: max(shortest, index + 1)]
                if self._try(field, value, [*before, f"{field.path}=[{', '.join(texts)}]"], _fix(item, value)) is None:
                    return


def _fix(each: Dimension, value: Value) -> str:
    """Returns what to write where a number with a fraction is refused, and its bounds may be fine."""
    if isinstance(value, float) and value not in (each.low, each.high):
        return f"write {'logint' if each.kind == 'log' else 'int'}({each.low:g}, {each.high:g})"
    return ""


def _branches(config: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the one-ofs around a field, outermost first, with the branch that the field is in."""
    value, place = config, ""
    for key in fields.parse_path(path):
        if isinstance(value, OneOf) and key != "type":
            yield place, str(key)
        value, place = fields.child(value, key), fields.join(place, key)
