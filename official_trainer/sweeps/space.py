"""The space of a sweep: the fields of an experiment that are drawn, checked against its config.

Owns: the order of the fields, in which branch one is drawn, and trying their bounds and choices in the config.
Does not own: the language of distributions (`distributions.py`), drawing (`study.py`), what the config allows
(`config/`).

A field in a branch of a one-of is drawn where that branch is chosen, by the experiment or by another field of the
space. There is no other condition. Values that the experiment does not take together are found when they are drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, OneOf, Problem, Resolved, fields
from official_trainer.config.errors import Origin
from official_trainer.config.provenance import is_inside
from official_trainer.sweeps import distributions
from official_trainer.sweeps.distributions import Field, Value, Written

Resolve = Callable[[Sequence[str]], Resolved]
"""Returns the experiment's config with overrides `PATH=VALUE` above everything else."""


class Space:
    """All that is drawn.

    Attributes:
      fields: what is inside of another field comes after it.
    """

    def __init__(self, drawn: Sequence[Field], resolve: Resolve) -> None:
        self.fields = tuple(drawn)
        self._config = functools.lru_cache(lambda *sets: resolve(sets).config)

    def is_drawn(self, field: Field, values: Mapping[str, Value]) -> bool:
        """Returns whether a field is drawn, now that others have these values."""
        if not field.branches:
            return True
        around = [other for other in self._deciding(field) if other.path in values]
        try:
            config = self._config(*(f"{other.path}={other.text(values[other.path])}" for other in around))
        except ConfigError:  # of a choice that is wrong by itself, or with the others, which is said elsewhere
            return False
        return all(fields.find(config, one_of).type == branch for one_of, branch in field.branches)

    def around(self, field: Field) -> dict[str, Value] | None:
        """Returns values of others with which a field is drawn; None if there are none."""
        deciding = self._deciding(field)
        for values in itertools.product(*(other.texts for other in deciding)):
            chosen: dict[str, Value] = {other.path: value for other, value in zip(deciding, values, strict=True)}
            if self.is_drawn(field, chosen):
                return chosen
        return None

    def overrides(self, values: Mapping[str, Value]) -> list[str]:
        """Returns what was drawn as `PATH=VALUE`."""
        return [f"{path}={text}" for path, text in texts(self.fields, values)]

    def _deciding(self, field: Field) -> list[Field]:
        """Returns the choices of the space by which a branch around a field is chosen."""
        return [
            other
            for other in self.fields
            if other.texts
            and other.path != field.path
            and any(other.path == f"{one_of}.type" or is_inside(one_of, other.path) for one_of, _ in field.branches)
        ]


def texts(drawn: Sequence[Field], values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """Yields each field that has a value, with that value as an override has it."""
    for field in drawn:
        if field.path in values:
            yield field.path, field.text(values[field.path])


def read(written: Mapping[str, Written], origin_of: Callable[[str], Origin | None], resolve: Resolve) -> Space:
    """Reads a space, and checks it against the experiment.

    Args:
      written: path of a field → its distribution.
      origin_of: returns where the distribution of a field is written.
      resolve: resolves the experiment's config.

    Raises:
      ConfigError: with the problems, each at its place.
    """
    base = resolve(()).config
    drawn: dict[str, Field] = {}
    problems: list[Problem] = []
    for path, distribution in written.items():
        try:
            field, config = distributions.read(path, distribution), _config_with(base, path, resolve)
            fields.find(config, path)
        except ConfigError as error:
            problems += [dataclasses.replace(problem, path=path, origin=origin_of(path)) for problem in error.problems]
            continue
        field_path = _field_path(config, path)
        if field_path in drawn:
            problems.append(Problem("is drawn twice; keep one of the two", path, origin=origin_of(path)))
        drawn[field_path] = dataclasses.replace(field, branches=tuple(_branches(config, field_path)))
    if problems:
        raise ConfigError(problems)
    ordered = sorted(drawn, key=lambda field_path: len(fields.parse_path(field_path)))
    space = Space([drawn[field_path] for field_path in ordered], resolve)
    problems = [dataclasses.replace(problem, origin=origin_of(problem.path)) for problem in _problems(space, resolve)]
    if problems:
        raise ConfigError(problems)
    return space


def _config_with(config: Any, path: str, resolve: Resolve) -> Any:
    """Returns a config; with the section of a plug-in that a path leads into, such as a schedule's."""
    value, section = config, ""
    for key in fields.parse_path(path):
        plugins = value.PLUGINS if isinstance(value, OneOf) and fields.child(value, key) is Ellipsis else None
        if plugins and key in plugins.names():
            return resolve([f"{section}.type={key}"]).config
        value, section = fields.child(value, key), fields.join(section, key)
    return config


def _field_path(config: Any, path: str) -> str:
    """Returns the path of a field, which for the `type` of a one-of is that of the one-of."""
    keys = fields.settle(config, fields.parse_path(path))
    if keys[-1] == "type" and isinstance(fields.at(config, keys[:-1]), OneOf):
        keys = keys[:-1]
    return fields.path_of(keys)


def _branches(config: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the one-ofs around a field, outermost first, with the branch that the field is in."""
    value, section = config, ""
    for key in fields.parse_path(path):
        if isinstance(value, OneOf):
            yield section, str(key)
        value, section = fields.child(value, key), fields.join(section, key)


def _problems(space: Space, resolve: Resolve) -> Iterator[Problem]:
    """Yields what the experiment says about the bounds, the choices, and fields that are never drawn.

    All lowest values are tried together, and all highest ones. Where the config refuses these, each of them is tried
    alone, as are those of other branches: what is still refused is wrong by itself.
    """
    for field in space.fields:
        if space.around(field) is None:
            one_of, branch = field.branches[-1]
            what = f"is never drawn: {one_of}.type is never '{branch}'"
            yield Problem(what, field.path, fix=f"add '{one_of}.type: choice(…, {branch})', or remove this")
    for edge in (0, 1):
        values: dict[str, Value] = {}
        for field in space.fields:
            if space.is_drawn(field, values):
                values[field.path] = field.edges[edge]
        try:
            resolve(space.overrides(values))
        except ConfigError:
            values = {}
        for field in space.fields:
            if field.path not in values:
                yield from _refused(space, field, field.edges[edge], resolve)
    for field in space.fields:
        for value in [*field.texts][1:-1]:
            yield from _refused(space, field, value, resolve)


def _refused(space: Space, field: Field, value: Value, resolve: Resolve) -> Iterator[Problem]:
    """Yields why the experiment refuses a value of a field, if that is not about another field."""
    if (around := space.around(field)) is None:
        return
    try:
        resolve(space.overrides({**around, field.path: value}))
    except ConfigError as error:
        inside = field.path.removesuffix(".type")
        for problem in error.problems:
            if not problem.path or is_inside(problem.path, inside) or problem.path == "value":
                where = "" if problem.path in (field.path, f"{inside}.type") else f"{problem.path}: "
                yield dataclasses.replace(problem, what=f"with {value}, {where}{problem.what}", path=field.path)
                return
