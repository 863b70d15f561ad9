"""Configurations as text: YAML that every reader takes the same way, and a digest.

Owns: writing values and whole configurations; `digest`.
Does not own: reading them back (`layers.py`). Reading a dump onto the same experiment gives an equal configuration.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.config import fields, values
from official_trainer.config.declaration import Config, OneOf
from official_trainer.config.provenance import Resolved

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+@-]*(?:://[A-Za-z0-9_./+@-]+)?")
_WORDS = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n", "none", "inf", "nan", "infinity"])
"""Words that some reader of YAML takes for something else than text."""
_UNSAFE = re.compile("[^\x20-\x7e\xa1-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

Comment = Callable[[str], str]


def dump(config: Config | Resolved, *, origins: bool = False) -> str:
    """Returns a configuration as YAML, with the selected branch of each one-of.

    Args:
      config: a configuration, or what `resolve` returned.
      origins: whether the first line names the experiment and values set by files and flags say so in a comment;
        needs what `resolve` returned.
    """
    if not isinstance(config, Resolved):
        assert not origins, "only a Resolved knows who set what"
        return "".join(f"{line}\n" for line in _lines(config, "", lambda path: ""))

    def comment(path: str) -> str:
        origin = config.trail.origin(path) if origins else None
        return f"  # {_one_line(origin.brief)}" if origin and origin.by_user else ""

    head = [f"# experiment: {_one_line(config.experiment)}"] if origins and config.experiment else []
    return "".join(f"{line}\n" for line in [*head, *_lines(config.config, "", comment)])


def digest(config: Config) -> str:
    """Returns 12 hexadecimal digits that are equal for configurations that mean the same."""
    plain = values.normalise(config, type(config), "", lambda problem: None).as_dict()
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def flow(value: Any) -> str:
    """Returns a value on one line of YAML."""
    if fields.is_section(value) or isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {flow(part)}" for key, part in _parts(value)) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(flow, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return _float(value)
    return str(value) if isinstance(value, int) else _text(str(value))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    for key, part in fields.children(value):
        if not isinstance(value, OneOf) or key in ("type", value.type):
            yield str(key), part


def _lines(value: Any, path: str, comment: Comment) -> Iterator[str]:
    """Yields a section or mapping in block style, not indented."""
    for key, part in _parts(value):
        place = fields.join(path, key)
        if _is_block(part) and not isinstance(part, tuple):
            yield f"{_text(key)}:"
            yield from (f"  {line}" for line in _lines(part, place, comment))
        elif _is_block(part):
            yield f"{_text(key)}:{comment(place)}"
            yield from (f"  {line}" for line in _items(part, place, comment))
        else:
            yield f"{_text(key)}: {flow(part)}{comment(place)}"


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
    return next(_parts(value), None) is not None if fields.is_section(value) or isinstance(value, dict) else False


def _float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text  # YAML 1.1 reads 1e-07 as text


def _text(text: str) -> str:
    """Returns text, quoted wherever some reader of YAML would take it for something else."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if not _UNSAFE.search(text):
        return "'" + text.replace("'", "''") + "'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_UNSAFE.sub(_escape, escaped)}"'


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in "\n\t":
        return "\\n" if match[0] == "\n" else "\\t"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _one_line(text: str) -> str:
    return _UNSAFE.sub("?", text)
