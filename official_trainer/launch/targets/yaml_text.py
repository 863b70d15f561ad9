"""Plain values as YAML that every engine reads alike.

Owns: which texts are quoted. Does not own: configurations, which have their own (`config/dump.py`).

Engines have parsers of their own, which follow several versions of YAML: `y` is true for one, `1e3` a number for
another, where PyYAML would write both as they are.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_SAFE_START = re.compile(r"-{0,2}[A-Za-z]|/")
_WORDS = frozenset(("y", "n"))


class _Dumper(yaml.SafeDumper):
    """Lists stand further in than their key; a text that could be a number has quotes."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    if "\n" in value:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    is_plain = _SAFE_START.match(value) and value.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_plain else "'")


def _list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.SequenceNode:
    is_short = all(isinstance(value, int) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


def dump(value: dict[str, Any]) -> str:
    """Returns a document, with keys in their order and a line for each text."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9))
