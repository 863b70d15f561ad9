"""YAML files and texts as nodes, within the limits of `limits.py`.

Owns: reading files and strings with PyYAML's parser, duplicate keys, tags, aliases, merge keys, `base:` includes.
Does not own: what the nodes mean (`decode.py`), the override language (`overrides.py`).

The parser's events are read one by one: PyYAML's own trees are built by recursion, in C, where depth ends the process.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

import yaml

from official_trainer import files
from official_trainer.config import expressions, limits, scalars
from official_trainer.config.errors import ConfigError, Origin, Problem, near_file, source_lines
from official_trainer.config.nodes import Node
from official_trainer.errors import shorten

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STANDARD = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    f"{_STANDARD}{name}"
    for name in ["map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp", "value", "python/tuple"]
}
_OPERATIONS = {"!replace": ":=", "!append": "+=", "!remove": "-="}
_TOO_DEEP = f"here lists and sections are nested more than {limits.MAX_DEPTH} levels deep"
_FEWER_LEVELS = "write fewer levels"
_HINTS = (
    ("mapping values are not allowed", "quote the value if it holds ': ', or correct the indentation"),
    ("could not find expected ':'", "a field needs 'name: value'"),
    ("did not find expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("did not find expected key", "correct the indentation, or the quotes before this place"),
    ("found unexpected end of stream", "a quote is not closed"),
)
MARK = "#official-trainer: "
"""Begins a line of a `params.yaml` that Model Garden's parser takes for a comment: a field that only we have."""
_MARKED = re.compile(rf"^( *){MARK}", re.MULTILINE)
_JSON_PAIR = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)
"""An escape in JSON; with groups, a character beyond 16 bits, which JSON writes as two."""


class Reader:
    """Reads the files and texts of one configuration.

    Attributes:
      problems: receives what is wrong, and what is too much.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self._size = 0
        self._files = 0

    def text(self, text: str, start: Origin) -> Node | None:
        """Reads YAML that begins at `start`; returns None for an empty document, and after adding a problem."""
        if self.refuses(text, start):
            return None
        composer = _Composer(start, self.problems, self._size)
        try:
            return composer.document(text)
        except _RefusedError as refused:
            self.problems.append(refused.problem)
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(text, start, error))
        finally:
            self._size = composer.size
        return None

    def refuses(self, text: str, place: Origin) -> bool:
        """Whether a text is too long, or holds what no file can; adds a problem then."""
        wrong, fix = limits.unstorable(text), "write it as UTF-8"
        if place.kind == "flag" and len(text) > limits.MAX_FLAG_CHARACTERS:
            wrong = f"is a text of {len(text)} characters; at most {limits.MAX_FLAG_CHARACTERS} are allowed"
            fix = "write it into a file and name that"
        if wrong:
            self._fail(wrong, place, fix=fix)
        return bool(wrong)

    def file(self, name: str, named_at: Origin | None = None, _open: tuple[str, ...] = ()) -> list[Node]:
        """Reads a configuration file and the files that its `base:` names.

        Args:
          name: path of a YAML or JSON file.
          named_at: where the file is named, when that is another file.

        Returns:
          One mapping for each file, in the order in which they apply: bases first, depth first.
        """
        text = self._file_text(name, named_at)
        path = os.path.realpath(name) if text is not None else ""
        if path in _open:
            chain = " → ".join(os.path.basename(p) for p in (*_open[_open.index(path) :], path))
            self._fail(f"files include each other in a circle: {chain}", named_at, path="base")
            return []
        root = None if text is None else self.text(text, Origin("file", name, 1, 1, text))
        if root is None or (root.kind == "scalar" and not root.value and not root.quoted):
            return []
        if root.kind != "mapping":
            held = "a list" if root.kind == "list" else "one value"
            self.problems.append(root.problem(f"a configuration file holds fields (name: value), not {held}"))
            return []
        bases = [value for key, value in root.value if key.value == "base"]
        own = tuple(pair for pair in root.value if pair[0].value != "base" and not pair[0].value.startswith("x-"))
        found = [node for value in bases for node in self._bases(name, value, (*_open, path))]
        return [*found, dataclasses.replace(root, value=own)]

    def _bases(self, name: str, value: Node, chain: tuple[str, ...]) -> Iterator[Node]:
        for item in value.value if value.kind == "list" else [value]:
            if item.kind != "scalar" or not item.value:
                self.problems.append(item.problem("must be a file or a list of files", "base"))
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(name), os.path.expanduser(item.value)))
            yield from self.file(file, item.origin, chain)

    def _file_text(self, name: str, named_at: Origin | None) -> str | None:
        self._files += 1
        if self._files > limits.MAX_FILES:
            if self._files == limits.MAX_FILES + 1:
                what = f"is one more than the {limits.MAX_FILES} configuration files that may be read"
                self._fail(f"'{shorten(name)}' {what}", named_at, fix="put some of them into one")
            return None
        try:
            text = files.read_regular_text(name, limits.MAX_BYTES)
        except FileNotFoundError:
            self._fail(f"there is no configuration file '{shorten(name)}'", named_at, near=near_file(name))
        except UnicodeDecodeError as error:
            what = f"configuration file '{shorten(name)}' is not UTF-8 text (byte {error.start})"
            self._fail(what, named_at, fix="save it as UTF-8")
        except OSError as error:
            self._fail(f"cannot read configuration file '{shorten(name)}': {error.strerror}", named_at)
        else:
            return _yaml_of_json(text) if name.endswith(".json") else _unmarked(text)
        return None

    def _fail(self, what: str, origin: Origin | None, path: str = "", near: str = "", fix: str = "") -> None:
        self.problems.append(Problem(what, path, near=near, fix=fix, origin=origin))


def plain(text: str, name: str) -> Any:
    """Returns the plain data (dicts, lists and scalars) that a file called `name` holds.

    Raises:
      ConfigError: it cannot be read.
    """
    reader, text = Reader([]), _unmarked(text)
    root = reader.text(text, Origin("file", name, 1, 1, text))
    if reader.problems:
        raise ConfigError(reader.problems)
    return None if root is None else _plain(root)


def _unmarked(text: str) -> str:
    """Returns a text with our own fields as fields; lines keep their numbers."""
    return _MARKED.sub(r"\1", text)


def _plain(node: Node) -> Any:
    if node.kind == "list":
        return [_plain(item) for item in node.value]
    if node.kind == "mapping":
        return {key.value: _plain(item) for key, item in node.value}
    try:
        return scalars.read(expressions.unescaped(node.value), Any, quoted=node.quoted)
    except scalars.MisreadError as error:
        raise ConfigError([node.problem(got=node.shown, **error.parts)]) from error


def _yaml_of_json(text: str) -> str:
    """Returns JSON as YAML, its superset except for tabs in the indentation, and characters written as two escapes."""

    def one(escape: re.Match[str]) -> str:
        high, low = escape[1], escape[2]
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00) if high else escape[0]

    return _JSON_PAIR.sub(one, text.replace("\t", " "))


# Text.


class _RefusedError(Exception):
    """Ends the reading of a text; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class _Composer:
    """Turns the events of PyYAML's parser into nodes.

    Attributes:
      size: of all that was read so far, as `limits.MAX_SIZE` counts it.
    """

    def __init__(self, start: Origin, problems: list[Problem], size: int) -> None:
        self._start = start
        self._problems = problems
        self.size = size
        self._anchored: dict[str, tuple[Node, int]] = {}
        self._open: set[str] = set()

    def document(self, text: str) -> Node | None:
        """Returns what the only document of `text` holds, or None if there is none."""
        self._events = yaml.parse(text, Loader=_Loader)
        root = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._refuse("a second document begins here", event, "remove the '---' line")
                root = self._node(next(self._events), 1)
        return root

    def _node(self, event: Any, depth: int) -> Node:
        if depth > limits.MAX_DEPTH:
            raise self._refuse(_TOO_DEEP, event, _FEWER_LEVELS)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self.size
        if event.anchor:
            self._open.add(event.anchor)
        node = self._new(event, depth)
        if event.anchor:
            self._open.discard(event.anchor)
            self._anchored[event.anchor] = node, self.size - before
        return node

    def _new(self, event: Any, depth: int) -> Node:
        origin, op = self._place(event), self._operation(event)
        if isinstance(event, yaml.ScalarEvent):
            self._count(limits.size(event.value), event)
            quoted = event.style in ("'", '"', "|", ">")  # plain is '' in libyaml and None in pure Python
            length = 1 if event.style in ("|", ">") else _columns(event, event)
            return Node("scalar", event.value, origin, length, quoted, op)
        self._count(limits.size(None), event)
        if isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self._items(depth))
            return Node("list", items, origin, _columns(event, self._last), op=op)
        pairs = tuple(self._pairs(depth))
        return Node("mapping", pairs, origin, _columns(event, self._last), op=op)

    def _items(self, depth: int) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, yaml.CollectionEndEvent):
                self._last = event
                return
            yield self._node(event, depth + 1)

    def _alias(self, event: Any) -> Node:
        name = shorten(event.anchor)
        if event.anchor in self._open:
            raise self._refuse("an alias must not contain itself", event, "remove it")
        if event.anchor not in self._anchored:
            raise self._refuse(f"nothing before this place is called &{name}", event, "define it there")
        node, size = self._anchored[event.anchor]
        self._count(size, event)
        return node

    def _count(self, size: int, event: Any) -> None:
        self.size += size
        if self.size > limits.MAX_SIZE:
            what = f"here the configuration exceeds {limits.MAX_SIZE} values, those that aliases repeat included"
            raise self._refuse(what, event, "put large tables into files of their own")

    def _refuse(self, what: str, event: Any, fix: str) -> _RefusedError:
        return _RefusedError(Problem(what, origin=self._place(event), length=_columns(event, event), fix=fix))

    def _place(self, event: Any) -> Origin:
        return self._start.moved(event.start_mark.line, event.start_mark.column)

    def _operation(self, event: Any) -> str:
        tag = event.tag
        if tag in _OPERATIONS:
            return _OPERATIONS[tag]
        if tag not in (None, "!") and tag not in _PLAIN_TAGS:
            shown = shorten(tag.replace(_STANDARD, "!!"))
            fix = "write plain data" if "python" in tag else "only !append, !remove and !replace are allowed"
            what = f"the tag {shown} is not allowed in a configuration"
            self._problems.append(Problem(what, fix=fix, origin=self._place(event)))
        return "="

    def _pairs(self, depth: int) -> Iterator[tuple[Node, Node]]:
        merged: dict[str, tuple[Node, Node]] = {}
        own: dict[str, tuple[Node, Node]] = {}
        nodes = self._items(depth)
        for key in nodes:
            item = next(nodes)
            if key.kind != "scalar":
                self._problems.append(key.problem("a field name must be one word"))
            elif key.value == "<<" and not key.quoted:
                self._merge(item, merged)
            elif key.value in own:
                first = own[key.value][0].origin.line
                what = f"'{shorten(key.value)}' appears twice in one section, first on line {first}"
                self._problems.append(key.problem(what, fix="keep one"))
            else:
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


def _columns(first: Any, last: Any) -> int:
    """Returns the columns from the start of one event to the end of another; rendering stops at the line's end."""
    start, end = first.start_mark, last.end_mark
    return end.column - start.column if end.line == start.line else 200


def _syntax_problem(text: str, start: Origin, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable characters"
    if mark is None:
        return Problem(f"cannot be read as YAML: {reason}", origin=Origin(start.kind, start.name))
    lines = source_lines(text)
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent:
        origin = start.moved(mark.line, indent.index("\t"))
        return Problem("a tab in the indentation, where YAML allows spaces only", fix="replace it", origin=origin)
    if "maximum nesting depth" in reason:  # of libyaml, which reads ahead of the place where ours is reached
        return Problem(_TOO_DEEP, fix=_FEWER_LEVELS, origin=start.moved(mark.line, mark.column))
    fix = next((hint for words, hint in _HINTS if words in reason or words in str(error)), "")
    if "${" in line:
        fix = "inside brackets, write a reference in quotes"
    return Problem(f"cannot be read as YAML: {reason}", fix=fix, origin=start.moved(mark.line, mark.column))
