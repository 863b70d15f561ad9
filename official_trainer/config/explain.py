"""Explains fields for a terminal: their meanings, their values, and of one field what set it.

Owns: the text of `explain`; `settings`, every field as it is set.
Does not own: the origins of values (`provenance.py`), the documentation (`fields.py` reads it from docstrings), the
layout of settings in a help (`cli/help_text.py`).
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer.config import fields
from official_trainer.config.declaration import Config, OneOf, spelling
from official_trainer.config.dump import recorded
from official_trainer.config.errors import Origin
from official_trainer.config.provenance import Resolved
from official_trainer.config.text import flow, written_items
from official_trainer.shown import printable

_WIDTH = 100
_LONGEST_SHOWN = 24


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field, as `PATH=VALUE` sets it.

    Attributes:
      path: such as `trainer.train_steps`.
      section: the path of the section that has the field.
      value: its value, on one line of YAML.
      kind: its type in words, with what is allowed.
      meaning: its documentation; may be empty.

    Example:
      >>> from official_trainer.config import ExportConfig, settings
      >>> setting = next(settings(ExportConfig()))
      >>> setting.path, setting.value, setting.kind
      ('at_end', 'true', 'true or false')
    """

    path: str
    section: str
    value: str
    kind: str
    meaning: str


def explain(resolved: Resolved, path: str) -> str:
    """Returns type, documentation, default, value and origin of a field, or the fields of a section.

    Control characters, which keys of a mapping may have, are shown as escapes.

    Args:
      resolved: what `resolve` returned.
      path: the field or section, such as `trainer.train_steps`; empty for the whole configuration.

    Raises:
      ConfigError: there is no such field; names the nearest.

    Example:
      >>> from official_trainer.config import ExperimentConfig, explain, resolve
      >>> resolved = resolve(ExperimentConfig(), experiment="digits", sets=["trainer.train_steps=500"])
      >>> print(explain(resolved, "trainer.train_steps"), end="")
      trainer.train_steps: an integer at least 0
        global step at which training ends.
      <BLANKLINE>
        value    500
        default  0
        set by   --set, column 21
    """
    value = fields.find(resolved.config, path)
    keys = fields.settle(resolved.config, fields.parse_path(path))
    inner = fields.path_of(keys)
    lines = _section(value, inner) if fields.is_section(value) else _value(resolved, value, keys, inner)
    return printable("\n".join(lines) + "\n")


def _told(origin: Origin) -> str:
    """Returns the place that set a value; for one that a run has recorded, where it came from then, and the record."""
    before = recorded(origin)
    return str(origin) if before is None else f"{before} ({origin})"


def settings(config: Any, path: str = "") -> Iterator[Setting]:
    """Yields the fields of a configuration: of each section its values first, then those of the sections in it.

    A one-of is a value that chooses; the fields of what it has chosen follow.

    Args:
      config: a section, or a list or mapping that holds sections.
      path: its place in the configuration; empty for the whole.

    Example:
      >>> from official_trainer.config import ExportConfig, settings
      >>> [f"{setting.path}={setting.value}" for setting in settings(ExportConfig(best=True))]
      ['at_end=true', 'checkpoint=latest', 'best=true', 'max_to_keep=1', 'formats=[]', 'max_difference=0.02']
    """
    inside: list[tuple[str, Any]] = []
    for key, part in enumerate(config) if isinstance(config, tuple) else written_items(config):
        inner = fields.join(path, key)
        if isinstance(part, OneOf):
            yield _setting(config, key, inner, path, part.type, Literal[tuple(fields.choices(type(part)))])
            inside += [(fields.join(inner, part.type), part.get())] if part.type else []
        elif (fields.is_section(part) and not part.IS_WHOLE) or (
            isinstance(part, dict | tuple) and any(fields.is_section(item) for _, item in fields.children(part))
        ):
            inside.append((inner, part))
        else:
            yield _setting(config, key, inner, path, part, _type(config, key))
    for inner, part in inside:
        yield from settings(part, inner)


def _setting(holder: Any, key: fields.Key, path: str, section: str, value: Any, tp: Any) -> Setting:
    kind = fields.describe(tp)
    sections = [arm for arm in fields.arms(tp) if fields.is_section_type(arm)]
    if value is None and (named := [spelling(name) for arm in sections for name in fields.hints(arm)]):
        kind += f"; the section has {', '.join(named)}"
    return Setting(path, section, flow(value), kind, _meaning(holder, key))


def _type(holder: Any, key: fields.Key) -> Any:
    return fields.hints(type(holder))[fields.field_name(key)] if fields.is_section(holder) else Any


def _meaning(holder: Any, key: fields.Key) -> str:
    return fields.docs(type(holder)).get(fields.field_name(key), "") if fields.is_section(holder) else ""


def _section(section: Config, path: str) -> Iterator[str]:
    cls = type(section)
    yield f"{path or 'the whole configuration'}: {cls.__name__}"
    if doc := fields.summary(cls):
        yield f"  {doc}"
    yield ""
    shown = {}
    for name in fields.hints(cls):
        value = getattr(section, name)
        if isinstance(value, OneOf):
            shown[name] = value.type or "none"
        else:
            text = "…" if fields.is_section(value) else flow(value)
            shown[name] = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
    widths = max(map(len, shown), default=0), max(map(len, shown.values()), default=0)
    for name, text in shown.items():
        chosen = "*" if isinstance(section, OneOf) and name == section.type else " "
        left = f"{chosen} {name:<{widths[0]}}  {text:<{widths[1]}}  "
        meaning = textwrap.wrap(fields.docs(cls).get(name, ""), max(30, _WIDTH - len(left))) or [""]
        yield (left + meaning[0]).rstrip()
        yield from (" " * len(left) + line for line in meaning[1:])
    plugins = section.PLUGINS if isinstance(section, OneOf) else None
    if added := sorted(plugins.names().keys() - shown.keys()) if plugins else ():
        yield f"  of the workspace or a package: {', '.join(added)}"


def _value(resolved: Resolved, value: Any, keys: tuple[fields.Key, ...], path: str) -> Iterator[str]:
    holder = fields.at(resolved.config, keys[:-1])
    tp = _type(holder, keys[-1])
    yield f"{path}: {fields.describe(tp)}" if fields.is_section(holder) else path
    yield from (f"  {line}" for line in textwrap.wrap(_meaning(holder, keys[-1]), _WIDTH))
    yield ""
    yield f"  value    {flow(value)}"
    default = resolved.trail.default(path)
    if default is not Ellipsis:
        yield f"  default  {flow(default)}"
    reference = resolved.trail.references.get(path)
    yield f"  set by   {_told(resolved.origin(path))}" + (f", as {reference.shown}" if reference else "")
