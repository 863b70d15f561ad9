"""The fields of a `params.yaml` as the lines that they stand on, without reading the file as YAML.

Owns: `lines`, for tables over many runs: to read 500 files as YAML takes many seconds, to split them into lines a tenth
of one. Does not own: writing such a file (`dump.py`), reading it as a configuration (`layers.py`).

It takes files that `dump` or PyYAML has written, which have one field per line.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from official_trainer.config import limits
from official_trainer.config.errors import ConfigError
from official_trainer.config.reading import MARK, plain

_LINE = re.compile(r"( *)((?:- )*)(\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^\s'\"#:\[{][^:]*?):(?: +(.*))?")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'", re.DOTALL)
_COMMENT = re.compile(r"\s#.*")
_MANY = limits.MAX_SIZE
"""No config has more lines; if fewer were kept, a large one would push out those that the next one has too."""


def lines(text: str) -> dict[str, str]:
    r"""Returns each field of a file by its path, as the text after its name.

    Example:
      >>> from official_trainer.config.lines import lines, value
      >>> found = lines("trainer:\n  train_steps: 500  # --set\n")
      >>> found, value(found["trainer.train_steps"])
      ({'trainer.train_steps': '500  # --set'}, 500)
    """
    found: dict[str, str] = {}
    open_sections: list[tuple[int, str]] = []
    counts: dict[str, int] = {}
    last, is_open = "", False
    for line in text.replace(MARK, "").splitlines():
        parts = None if is_open else _parts(line)
        if parts is None:
            if last and line.strip() and not line.lstrip().startswith("#"):  # the rest of a long value, or an item
                found[last] = f"{found.get(last, '')}\n{line}"
                is_open = _is_open(found[last])
            continue
        indent, dashes, key, rest, is_open = parts
        while open_sections and open_sections[-1][0] >= indent + (dashes > 0):
            open_sections.pop()
        if dashes:
            place = open_sections[-1][1] if open_sections else ""
            counts[place] = counts.get(place, -1) + 1
            open_sections.append((indent + 1, f"{place}[{counts[place]}]"))
            indent += dashes
        before = open_sections[-1][1] if open_sections else ""
        last = f"{before}.{key}" if before else key
        if rest is None:
            open_sections.append((indent, last))
        else:
            found[last] = rest
    return found


@functools.lru_cache(_MANY)  # runs have most lines in common
def _parts(line: str) -> tuple[int, int, str, str | None, bool] | None:
    """Returns indent, width of the dashes of an item, name and text, and whether the text ends on a later line.

    None if no field begins here; without a text the line begins a section.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    spaces, dashes, key, rest = match.groups()
    if rest is None or rest.startswith("#"):
        return len(spaces), len(dashes), key, None, False
    return len(spaces), len(dashes), key, rest, _is_open(rest)


def _is_open(text: str) -> bool:
    """Whether the list, mapping or quoted text that begins here ends on a later line."""
    if not text.startswith(("[", "{", "'", '"')):
        return False
    bare = _COMMENT.sub("", _QUOTED.sub("", text))
    if text[0] in "[{":
        return bare.count("[") + bare.count("{") > bare.count("]") + bare.count("}")
    return bare.startswith(text[0])


def comment(text: str) -> str:
    """Returns the comment behind a field, given as `lines` returns it; empty without one.

    Example:
      >>> from official_trainer.config.lines import comment
      >>> comment("500  # --set"), comment("'a  # b'"), comment("'a  # b'  # experiment")
      ('--set', '', 'experiment')
    """
    _, mark, found = text.rpartition("  # ")
    is_inside = found.count("'") % 2 or found.count('"') % 2  # the rest of a quoted text
    return "" if not mark or is_inside or "\n" in found else found


@functools.lru_cache(_MANY)
def value(line: str | None) -> Any:
    """Returns the value of a field, given as `lines` returns it; None if it is not there or is no YAML."""
    try:
        return plain(line or "", "params.yaml")
    except ConfigError:
        return None
