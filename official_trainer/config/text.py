"""Values as text: one line of YAML that every reader reads in the same way.

Owns: how a value of a configuration is written, which text is quoted, and the short names of fields.
Does not own: whole configurations (`dump.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from official_trainer.config import fields, reference_text
from official_trainer.shown import escaped

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+@-]*(?:://[A-Za-z0-9_./+@-]+)?")
_WORDS = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n", "none", "inf", "nan", "infinity"])
"""Words that some YAML readers do not read as text."""
_UNSAFE = re.compile(
    "[^\x20-\x7e\xa1-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd"
    "\U00010000-\U0010ffff]"
)
"""Characters that some YAML reader refuses, or that a terminal obeys instead of showing."""


def flow(value: Any) -> str:
    """Returns a value on one line of YAML."""
    if fields.is_section(value) or isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)}: {flow(part)}" for key, part in written_items(value)) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(flow, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text  # YAML 1.1 reads 1e-07 as text
    return str(value) if isinstance(value, int) else quoted(reference_text.escaped(str(value)))


def written_items(value: Any) -> Iterable[tuple[str, Any]]:
    """Returns the fields of a section or mapping that are written."""
    return value.written_items() if fields.is_section(value) else ((str(key), part) for key, part in value.items())


def is_block(value: Any) -> bool:
    """Whether a value is written over several lines: it has fields, or items that have."""
    if isinstance(value, tuple | list):
        return any(fields.is_section(item) or isinstance(item, dict) for item in value)
    has_fields = fields.is_section(value) or isinstance(value, dict)
    return has_fields and any(True for _ in written_items(value))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value that is written by its path; a list of values is one."""
    for key, part in enumerate(value) if isinstance(value, tuple | list) else written_items(value):
        inner = fields.join(path, key)
        if is_block(part):
            yield from leaves(part, inner)
        else:
            yield inner, part


def quoted(text: str) -> str:
    """Returns text, in quotes if some YAML reader would not read it as text without them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if not _UNSAFE.search(text):
        return "'" + text.replace("'", "''") + "'"
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{_UNSAFE.sub(lambda match: escaped(match[0]), text)}"'


def one_line(text: str) -> str:
    """Returns text without anything that would break a comment."""
    return _UNSAFE.sub("?", text)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Returns the shortest end of each path that no other one has.

    Example:
      >>> from official_trainer.config.text import short_names
      >>> short_names(["trainer.train_steps", "task.train_data.seed", "runtime.seed"])
      {'trainer.train_steps': 'train_steps', 'task.train_data.seed': 'train_data.seed', 'runtime.seed': 'runtime.seed'}
    """
    distinct = list(dict.fromkeys(paths))
    counts: dict[str, int] = {}
    for path in distinct:
        for end in _ends(path):
            counts[end] = counts.get(end, 0) + 1
    return {path: next((end for end in _ends(path) if counts[end] == 1), path) for path in distinct}


def _ends(path: str) -> list[str]:
    names = path.split(".")
    longest_start = max(0, len(names) - (2 if names[-1] == "type" else 1))  # `type` alone says nothing
    return [".".join(names[start:]) for start in range(longest_start, -1, -1)]
