"""Configurations as text: YAML that every reader takes the same way, and a digest.

Owns: writing whole configurations; `flat`; `digest`.
Does not own: writing single values (`text.py`), reading any of it back (`layers.py`).

Reading a dump onto the same experiment gives an equal configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.config import fields, values
from official_trainer.config.declaration import Config
from official_trainer.config.provenance import Resolved
from official_trainer.config.text import flow, one_line, parts, quoted

Comment = Callable[[str], str]


def dump(config: Config | Resolved, *, origins: bool = False) -> str:
    """Returns a configuration as YAML, with the selected branch of each one-of.

    Args:
      config: a configuration, or what `resolve` returned.
      origins: whether the first line names the experiment, and each value that is not a class default says in a
        comment who set it; needs what `resolve` returned.
    """
    if not isinstance(config, Resolved):
        assert not origins, "only a Resolved knows who set what"
        return "".join(f"{line}\n" for line in _lines(config, "", lambda path: ""))

    def comment(path: str) -> str:
        origin = config.trail.origin(path) if origins else None
        if origin is None or origin.kind == "default":
            return ""
        return f"  # {one_line(origin.brief)}" if origin.by_user else "  # experiment"

    head = [f"# experiment: {one_line(config.experiment)}"] if origins and config.experiment else []
    return "".join(f"{line}\n" for line in [*head, *_lines(config.config, "", comment)])


def flat(config: Config) -> dict[str, Any]:
    """Returns every value by its path, as trackers take parameters: scalars, and lists of them as one line of YAML."""
    return dict(_values(config, ""))


def digest(config: Config) -> str:
    """Returns 12 hexadecimal digits that are equal for configurations that mean the same."""
    plain = values.normalise(config, type(config), "", lambda problem: None).as_dict()
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    for key, part in enumerate(value) if isinstance(value, tuple) else parts(value):
        place = fields.join(path, key)
        if fields.is_section(part) or isinstance(part, dict) or _is_block(part):
            yield from _values(part, place)
        else:
            yield place, flow(part) if isinstance(part, tuple) else part


def _lines(value: Any, path: str, comment: Comment) -> Iterator[str]:
    """Yields a section or mapping in block style, not indented."""
    for key, part in parts(value):
        place = fields.join(path, key)
        if _is_block(part) and not isinstance(part, tuple):
            yield f"{quoted(key)}:"
            yield from (f"  {line}" for line in _lines(part, place, comment))
        elif _is_block(part):
            yield f"{quoted(key)}:{comment(place)}"
            yield from (f"  {line}" for line in _items(part, place, comment))
        else:
            yield f"{quoted(key)}: {flow(part)}{comment(place)}"


def _items(items: tuple[Any, ...], path: str, comment: Comment) -> Iterator[str]:
    for i, item in enumerate(items):
        place = fields.join(path, i)
        if isinstance(item, tuple) or not _is_block(item):
            yield f"- {flow(item)}{comment(place)}"
            continue
        for number, line in enumerate(_lines(item, place, comment)):
            yield f"{'  ' if number else '- '}{line}"


def _is_block(value: Any) -> bool:
    """Whether a value is written over several lines: it has fields, or items that have."""
    if isinstance(value, tuple):
        return any(fields.is_section(item) or isinstance(item, dict) for item in value)
    return next(parts(value), None) is not None if fields.is_section(value) or isinstance(value, dict) else False
