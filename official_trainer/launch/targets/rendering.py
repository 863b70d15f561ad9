"""The text that schedulers read: plain values as YAML, and shell scripts from the `.sh` templates in this folder.

Owns: which YAML values are quoted; how a template is filled. Does not own: quoting a user's words for a shell (each
target does it with `shlex.quote`), configurations (`config/dump.py`).

Schedulers have their own YAML parsers, for several versions of YAML: `y` is true for one, `1e3` a number for another.
PyYAML would write both without quotes.
"""

from __future__ import annotations

import pathlib
import re
import string
from collections.abc import Collection, Mapping
from typing import Any

import yaml

_SAFE_START = re.compile(r"-{0,2}[A-Za-z]|/")
_WORDS = frozenset(("y", "n"))
_BLOCK = re.compile(r"^#if (\w+)\n(.*?)^#end\n", flags=re.MULTILINE | re.DOTALL)


class _Template(string.Template):
    """`@@name` and `@@{name}` are filled, so that `$` stays the shell's."""

    delimiter = "@@"


def script(file: str, /, blocks: Collection[str] = (), **values: object) -> str:
    """Returns the shell script of a template.

    Args:
      file: the template, in this folder.
      blocks: names of the optional parts (from `#if NAME` to `#end`) that the script has.
      **values: for `@@name`; words of a user are quoted for the shell already.
    """
    text = (pathlib.Path(__file__).parent / file).read_text(encoding="utf-8")
    return _Template(_BLOCK.sub(lambda match: match[2] if match[1] in blocks else "", text)).substitute(values)


def filled(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section without the fields that have no value: None, or an empty text, list or section."""
    return {name: value for name, value in section.items() if value is not None and value not in ("", [], {})}


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and quotes text that a parser could read as a number."""

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


def dump_yaml(value: dict[str, Any]) -> str:
    """Returns a YAML document with keys in their order and each text on one line."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9))
