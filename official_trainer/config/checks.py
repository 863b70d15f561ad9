"""Checks of a whole configuration: rules across fields, settings without effect.

Owns: these checks, for values from files, flags and Python alike.
Does not own: single values, which `decode.py` has refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from official_trainer.config import fields, limits
from official_trainer.config.components import Component
from official_trainer.config.declaration import Config, OneOf
from official_trainer.config.decode import normalised
from official_trainer.config.errors import Origin, Problem
from official_trainer.config.provenance import Trail, around, is_inside

Sections = Sequence[tuple[str, Config]]
"""The sections in force, each with its path."""


def rules(sections: Sections, trail: Trail, problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yields the `problems()` of every section in force, except for fields that are already in `problems`."""
    bad = {problem.path for problem in problems}
    bad |= {fields.join(problem.path.rpartition(".")[0], problem.near) for problem in problems if problem.near}
    for path, section in sections:
        try:
            said = list(section.problems())
        except (TypeError, ValueError, AttributeError):
            if not bad:
                raise
            continue  # a value of another type, which is reported; those of Python code may be of any
        for field, what, *others in said:
            wrong, *involved = (f"{path}.{name}" if path else name for name in (field, *others))
            if bad.intersection([wrong, *involved]):
                continue  # follows from a value that could not be read
            is_required = isinstance(section, Component) or "." in field  # and may be missing in what the user wrote
            near = wrong.rpartition(".")[0] if is_required else wrong
            touched = trail.touched()
            inside = [inner for inner in touched if is_inside(inner, near)]
            outside = [outer for outer in around(wrong) if outer in touched]
            origin, cause = trail.origin(wrong), _cause([wrong, *involved, *inside, *outside], trail)
            if origin.kind == "experiment" and cause != origin:
                what = f"{what} ({field} is set by {origin.brief})"
            yield Problem(what, wrong, origin=cause)


def unused(sections: Sections, trail: Trail, problems: Sequence[Problem]) -> Iterator[tuple[Problem, bool]]:
    """Yields a problem for each branch of a one-of that a file or a flag has set and `type` does not select.

    Skips one-ofs whose `type` could not be read, which is in `problems`. With each, whether it is for a warning only:
    of a one-of of Model Garden, and where a later file or flag has chosen another branch.
    """
    bad = {problem.path for problem in problems}
    touched = [path for path in trail.touched() if trail.origin(path).by_user]
    holders = {inner for path in touched for inner in around(path)}
    for path, section in sections:
        if not isinstance(section, OneOf):
            continue
        type_path = fields.join(path, "type")
        for name in fields.hints(type(section)):
            branch = fields.join(path, name)
            if name in ("type", section.type) or branch not in holders or type_path in bad:
                continue
            inside = [inner for inner in touched if is_inside(inner, branch)]
            is_allowed = section.is_read_as_garden(name) or all(
                trail.is_overruled(inner, type_path) for inner in inside
            )
            chosen = f"{type_path} is '{section.type}'" if section.type else f"{type_path} is not set"
            more = len(inside) - 1
            also = f", like {more} other field{'s' if more > 1 else ''} of '{name}'" if more else ""
            fix = f"set that to '{name}', or remove {'this' if len(inside) == 1 else 'these'}"
            what = f"has no effect{also}: {chosen}"
            yield Problem(what, inside[0], fix=fix, origin=trail.origin(inside[0])), is_allowed


def too_large(config: Config, trail: Trail) -> Iterator[Problem]:
    """Yields a problem if what a run writes of this configuration would be too much to be read again."""
    total = 0
    for path, value in fields.in_force(config):
        total += limits.size(value) + (not path.endswith("]"))  # an item of a list has no name
        if total > limits.MAX_SIZE:
            what = f"with this value the configuration exceeds {limits.MAX_SIZE} values, defaults included"
            yield Problem(what, path, fix="put large tables into files of their own", origin=trail.origin(path))
            return


def warnings(config: Config, sections: Sections, trail: Trail) -> Iterator[Problem]:
    """Yields settings by files and flags that are allowed but have no effect, or not the declared type."""
    first = {outer: path for path in reversed(trail.touched()) for outer in around(path)}
    for path, section in sections:
        for name, what, *_ in section.ignored():
            setter = first.get(ignored := fields.join(path, name))
            if setter is not None and trail.origin(setter).by_user:
                yield Problem(what, ignored, origin=trail.origin(setter))
    for problem in dict.fromkeys(_of_other_types(config, trail)):
        origin = trail.origin(problem.path)
        keys = fields.parse_path(problem.path)
        holder, value = fields.at(config, keys[:-1]), fields.at(config, keys)
        what, fix = f"{problem.what}, and its code receives {fields.show(value)}", ""
        if fields.is_section(holder):
            declared = fields.hints(type(holder))[fields.field_name(keys[-1])]
            what = f"must be {fields.describe(declared)}, and its code receives {fields.show(value)}"
            if isinstance(value, str):
                fix = f"write [{value!r}], or each letter counts as an item"
                if any(map(fields.is_section_type, fields.arms(declared))):
                    fix = f"write {{type: {value!r}}}, or its code finds no type in a text"
        yield Problem(f"in Model Garden's class it {what}", problem.path, fix=fix, origin=origin)


def _of_other_types(config: Config, trail: Trail) -> Iterator[Problem]:
    """Yields what is wrong with values that were read nevertheless: only Model Garden's sections allow that."""
    for path in trail.touched():
        keys = fields.parse_path(path)
        holder = fields.at(config, keys[:-1])
        value = fields.at(config, keys) if fields.is_section(holder) else Ellipsis
        if fields.is_section(holder) and value is not Ellipsis and trail.origin(path).by_user:
            declared = fields.hints(type(holder))[fields.field_name(keys[-1])]
            yield from normalised(value, declared, path)[1]


def sections_in_force(config: Config) -> Iterator[tuple[str, Config]]:
    """Yields every section in force, with its path: all except the branches that a one-of does not select."""
    yield from ((path, part) for path, part in fields.in_force(config) if fields.is_section(part))


def _cause(paths: Iterable[str], trail: Trail) -> Origin | None:
    """Returns what set the first of these fields that the user set, or else the first field; None for a default."""
    origins = [trail.origin(path) for path in paths]
    origin = next((origin for origin in origins if origin.by_user), origins[0])
    return None if origin.kind == "default" else origin
