"""YAML text as a tree of nodes with their places. Nothing has a type yet: `1e-4` is four characters.

Owns: reading files and strings with PyYAML's composer, duplicate keys, tags, merge keys, `base:` includes.
Does not own: what the nodes mean; `decode.py` reads them by the types of the fields.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from official_trainer.config import fields, scalars
from official_trainer.config.errors import Origin, Problem, near_file
from official_trainer.errors import shorten

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STANDARD = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    f"{_STANDARD}{name}"
    for name in ["map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp", "value", "python/tuple"]
}
_OPERATIONS = {"!replace": ":=", "!append": "+=", "!remove": "-="}
_HINTS = (
    ("mapping values are not allowed", "quote the value if it holds ': ', or correct the indentation"),
    ("could not find expected ':'", "a field needs 'name: value'"),
    ("did not find expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("did not find expected key", "correct the indentation, or the quotes before this place"),
    ("found unexpected end of stream", "a quote is not closed"),
    ("expected a single document", "remove the '---' line"),
    ("undefined alias", "define it with & before this place"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A piece of configuration text.

    Attributes:
      kind: `scalar` (value: text), `list` (value: nodes), `mapping` (value: pairs of nodes).
      value: see kind.
      origin: where it starts.
      length: columns it takes on its first line.
      quoted: whether a scalar was quoted.
      op: `=` set or merge, `:=` replace, `+=` append, `-=` remove, `~` reset.
      is_part: whether it is a mapping with one key of a path, for one part of what is there; all else stays as it is.
    """

    kind: Literal["scalar", "list", "mapping"]
    value: Any
    origin: Origin
    length: int = 1
    quoted: bool = False
    op: str = "="
    is_part: bool = False

    @property
    def is_glued(self) -> bool:
        """Whether text looks like a name and a value without the space between."""
        name, colon, value = self.value.partition(":")
        return bool(colon and value and not self.quoted and fields.is_path(name))

    @property
    def is_null(self) -> bool:
        """Whether it is null, or nothing at all."""
        return self.kind == "scalar" and not self.quoted and self.value in scalars.NULLS

    @property
    def shown(self) -> str:
        """The node as messages show it."""
        if self.kind == "scalar":
            if self.is_null:
                return "null" if self.value else "nothing"
            return ("the quoted text " if self.quoted else "") + f"'{shorten(self.value)}'"
        return "a list" if self.kind == "list" else "a mapping"

    def problem(self, what: str, path: str = "", **parts: str) -> Problem:
        """Returns a problem at the place of this node."""
        return Problem(what, path, origin=self.origin, length=self.length, **parts)


def node_at(keys: Sequence[fields.Key], mark: Node, node: Node) -> Node:
    """Returns what puts `node` at `keys`, a path that is written at `mark`; all else stays as it is."""
    for key in reversed(keys):
        at = dataclasses.replace(mark, value=key, quoted=True)
        node = Node("mapping", ((at, node),), node.origin, node.length, is_part=True)
    return node


def compose(text: str, start: Origin, problems: list[Problem]) -> Node | None:
    """Reads YAML that begins at `start`; returns None for an empty document, and after adding a syntax error."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(text, start, error))
        return None
    return None if root is None else _Converter(start, problems).node(root)


def _syntax_problem(text: str, start: Origin, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable characters"
    if mark is None:
        return Problem(f"cannot be read as YAML: {reason}", origin=Origin(start.kind, start.name))
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent:
        origin = start.moved(mark.line, indent.index("\t"))
        return Problem("a tab in the indentation, where YAML allows spaces only", fix="replace it", origin=origin)
    fix = next((hint for words, hint in _HINTS if words in reason or words in str(error)), "")
    return Problem(f"cannot be read as YAML: {reason}", fix=fix, origin=start.moved(mark.line, mark.column))


class _Converter:
    """Turns PyYAML's nodes into ours."""

    def __init__(self, start: Origin, problems: list[Problem]) -> None:
        self._start = start
        self._problems = problems
        self._open: set[int] = set()

    def node(self, raw: yaml.Node) -> Node:
        origin, length = self._place(raw)
        if id(raw) in self._open:
            self._problems.append(Problem("an alias must not contain itself", origin=origin, length=length))
            return Node("scalar", "", origin)
        self._open.add(id(raw))
        op = self._operation(raw, origin)
        try:
            if isinstance(raw, yaml.ScalarNode):
                quoted = raw.style in ("'", '"', "|", ">")  # plain is '' in libyaml and None in pure Python
                return Node("scalar", raw.value, origin, length, quoted, op)
            if isinstance(raw, yaml.SequenceNode):
                return Node("list", tuple(self.node(item) for item in raw.value), origin, length, op=op)
            assert isinstance(raw, yaml.MappingNode), "YAML has no other nodes"
            return Node("mapping", tuple(self._pairs(raw)), origin, length, op=op)
        finally:
            self._open.discard(id(raw))

    def _place(self, raw: yaml.Node) -> tuple[Origin, int]:
        start, end = raw.start_mark, raw.end_mark
        if isinstance(raw, yaml.ScalarNode) and raw.style in ("|", ">"):
            return self._start.moved(start.line, start.column), 1
        length = end.column - start.column if end.line == start.line else 200  # rendering stops at the line's end
        return self._start.moved(start.line, start.column), length

    def _operation(self, raw: yaml.Node, origin: Origin) -> str:
        tag = raw.tag or ""
        if tag in _OPERATIONS:
            return _OPERATIONS[tag]
        if tag not in _PLAIN_TAGS:
            shown = tag.replace(_STANDARD, "!!")
            fix = "write plain data" if "python" in tag else "only !append, !remove and !replace are allowed"
            self._problems.append(Problem(f"the tag {shown} is not allowed in a configuration", fix=fix, origin=origin))
        return "="

    def _pairs(self, raw: yaml.MappingNode) -> Iterator[tuple[Node, Node]]:
        merged: dict[str, tuple[Node, Node]] = {}
        own: dict[str, tuple[Node, Node]] = {}
        for raw_key, raw_value in raw.value:
            key = self.node(raw_key)
            if key.kind != "scalar":
                self._problems.append(key.problem("a field name must be one word"))
            elif key.value == "<<" and not key.quoted:
                self._merge(self.node(raw_value), merged)
            elif key.value in own:
                first = own[key.value][0].origin.line
                what = f"'{key.value}' appears twice in one section, first on line {first}"
                self._problems.append(key.problem(what, fix="keep one"))
            else:
                item = self.node(raw_value)
                if item.value == "" and not item.quoted:  # it ends on another line
                    item = dataclasses.replace(item, origin=key.origin, length=key.length)
                own[key.value] = key, item
        yield from (pair for name, pair in merged.items() if name not in own)
        yield from own.values()

    def _merge(self, value: Node, merged: dict[str, tuple[Node, Node]]) -> None:
        for part in value.value if value.kind == "list" else [value]:
            if part.kind != "mapping":
                self._problems.append(Problem("'<<' takes a section or a list of sections", origin=part.origin))
                continue
            for key, item in part.value:
                merged.setdefault(key.value, (key, item))


# Files.


def load(
    name: str, problems: list[Problem], *, named_at: Origin | None = None, _open: tuple[str, ...] = ()
) -> list[Node]:
    """Reads a configuration file and the files that its `base:` names.

    Args:
      name: path of a YAML or JSON file.
      problems: receives what is wrong.
      named_at: where the file is named, when that is another file.

    Returns:
      One mapping for each file, in the order in which they apply: bases first, depth first.
    """
    path = os.path.realpath(name)
    if path in _open:
        chain = " → ".join(os.path.basename(p) for p in (*_open[_open.index(path) :], path))
        problems.append(Problem(f"files include each other in a circle: {chain}", "base", origin=named_at))
        return []
    text = _read(name, problems, named_at)
    if text is None:
        return []
    if name.endswith(".json"):
        text = text.replace("\t", " ")  # JSON indents with tabs; YAML, its superset in all else, does not
    root = compose(text, Origin("file", name, 1, 1, text), problems)
    if root is None or (root.kind == "scalar" and not root.value and not root.quoted):
        return []
    if root.kind != "mapping":
        held = "a list" if root.kind == "list" else "one value"
        problems.append(root.problem(f"a configuration file holds fields (name: value), not {held}"))
        return []
    bases = [value for key, value in root.value if key.value == "base"]
    own = tuple(pair for pair in root.value if pair[0].value != "base" and not pair[0].value.startswith("x-"))
    found = [node for value in bases for node in _load_bases(name, value, problems, (*_open, path))]
    return [*found, dataclasses.replace(root, value=own)]


def _load_bases(name: str, value: Node, problems: list[Problem], chain: tuple[str, ...]) -> Iterator[Node]:
    for item in value.value if value.kind == "list" else [value]:
        if item.kind != "scalar" or not item.value:
            problems.append(item.problem("must be a file or a list of files", "base"))
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(name), os.path.expanduser(item.value)))
        yield from load(file, problems, named_at=item.origin, _open=chain)


def _read(name: str, problems: list[Problem], named_at: Origin | None) -> str | None:
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        problems.append(Problem(f"there is no configuration file '{name}'", near=near_file(name), origin=named_at))
    except UnicodeDecodeError as error:
        what = f"configuration file '{name}' is not UTF-8 text (byte {error.start})"
        problems.append(Problem(what, fix="save it as UTF-8", origin=named_at))
    except OSError as error:
        problems.append(Problem(f"cannot read configuration file '{name}': {error.strerror}", origin=named_at))
    return None
