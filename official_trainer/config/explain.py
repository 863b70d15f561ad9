"""Explains one field for a terminal: its meaning, its value and what set it.

Owns: the text of `explain`.
Does not own: the origins of values (`provenance.py`), the documentation (`fields.py` reads it from docstrings).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from official_trainer.config import fields
from official_trainer.config.declaration import Config, OneOf
from official_trainer.config.provenance import Resolved
from official_trainer.config.text import flow

_WIDTH = 100


def explain(resolved: Resolved, path: str) -> str:
    """Returns type, documentation, default, value, allowed values and origins of a field, or the fields of a section.

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
        allowed  at least 0
        set by   class default     0
                 --set, column 21  500
    """
    value = fields.find(resolved.config, path)
    keys = fields.settle(resolved.config, fields.parse_path(path))
    place = fields.path_of(keys)
    lines = _section(value, place) if fields.is_section(value) else _value(resolved, value, keys, place)
    return "\n".join(lines) + "\n"


def _section(section: Config, path: str) -> Iterator[str]:
    cls = type(section)
    yield f"{path or 'the whole configuration'}: {cls.__name__}"
    if doc := fields.summary(cls):
        yield f"  {doc}"
    yield ""
    shown = {name: _short(getattr(section, name)) for name in fields.hints(cls)}
    widths = max(map(len, shown), default=0), max(map(len, shown.values()), default=0)
    for name, text in shown.items():
        chosen = "*" if isinstance(section, OneOf) and name == section.type else " "
        left = f"{chosen} {name:<{widths[0]}}  {text:<{widths[1]}}  "
        meaning = textwrap.wrap(fields.docs(cls).get(name, ""), max(30, _WIDTH - len(left))) or [""]
        yield (left + meaning[0]).rstrip()
        yield from (" " * len(left) + line for line in meaning[1:])


def _value(resolved: Resolved, value: Any, keys: tuple[fields.Key, ...], path: str) -> Iterator[str]:
    holder = fields.at(resolved.config, keys[:-1])
    tp = fields.hints(type(holder))[fields.field_name(keys[-1])] if fields.is_section(holder) else Any
    yield f"{path}: {fields.describe(tp)}" if fields.is_section(holder) else path
    if fields.is_section(holder) and (doc := fields.docs(type(holder)).get(fields.field_name(keys[-1]))):
        yield from (f"  {line}" for line in textwrap.wrap(doc, _WIDTH))
    yield ""
    yield f"  value    {flow(value)}"
    default = resolved.trail.default(path)
    if default is not Ellipsis:
        yield f"  default  {flow(default)}"
    if allowed := fields.allowed(tp):
        yield f"  allowed  {', '.join([*allowed, *['null'] * (fields.NoneType in fields.arms(tp))])}"
    history = resolved.history(path)
    width = max(len(str(origin)) for origin, _ in history)
    for number, (origin, text) in enumerate(history):
        yield f"  {'set by' if number == 0 else '      '}   {origin!s:<{width}}  {text}"


def _short(value: Any) -> str:
    if isinstance(value, OneOf):
        return value.type or "none"
    if fields.is_section(value):
        return "…"
    text = flow(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
