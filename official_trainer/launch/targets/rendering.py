"""The text that schedulers read: plain values as YAML, and shell scripts from the `.sh` templates in this folder.

Owns: how a template is filled, a form of YAML that every parser reads alike, and merging what a profile adds to it.
Does not own: quoting a user's words for a shell (each target does it with `shlex.quote`), configurations
(`config/dump.py`).
"""

from __future__ import annotations

import pathlib
import re
import string
from collections.abc import Mapping
from typing import Any

import yaml

_WORD = re.compile(r"[A-Za-z/-][\w./ :=-]*", re.ASCII)


class _Template(string.Template):
    """`@@name` and `@@{name}` are filled, so that `$` stays the shell's."""

    delimiter = "@@"


def script(file: str, /, **values: object) -> str:
    """Returns the shell script of a template.

    Args:
      file: the template, in this folder.
      **values: for `@@name`; words of a user are quoted for the shell already.
    """
    return _Template((pathlib.Path(__file__).parent / file).read_text(encoding="utf-8")).substitute(values)


def filled(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section without the fields that have no value: None, or an empty text, list or section."""
    return {name: value for name, value in section.items() if value is not None and value not in ("", [], {})}


class _Dumper(yaml.SafeDumper):
    """Quotes text that a parser of another version of YAML could read as a number or a switch, such as 1e3 or y."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    is_plain = _WORD.fullmatch(value) and value.lower() not in ("y", "n")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_plain else "'")


_Dumper.add_representer(str, _text)


def dump_yaml(value: Mapping[str, Any]) -> str:
    """Returns a YAML document with keys in their order and each text on one line."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9))


def merged(rendered: Any, fragment: Any) -> Any:
    """Returns a rendered value with a fragment of the user's merged into it; neither is changed.

    Mappings merge key by key, items of lists merge by `name` (mounts by `mountPath`), other items are appended, null
    removes a key, and any other value replaces.
    """
    if isinstance(fragment, Mapping):
        before = rendered if isinstance(rendered, Mapping) else {}
        both = {**before, **{key: merged(before.get(key), part) for key, part in fragment.items()}}
        return {key: value for key, value in both.items() if value is not None}
    if not isinstance(fragment, list | tuple):
        return fragment
    items = list(rendered) if isinstance(rendered, list) else []
    for part in fragment:
        number = next((i for i, item in enumerate(items) if _name(part) and _name(item) == _name(part)), None)
        if number is None:
            items.append(merged(None, part))
        else:
            items[number] = merged(items[number], part)
    return items


def _name(item: Any) -> str:
    """Returns what tells an item of a list from others; empty if nothing does."""
    return str(item.get("mountPath") or item.get("name") or "") if isinstance(item, Mapping) else ""
