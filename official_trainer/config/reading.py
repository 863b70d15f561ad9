"""YAML files and texts as nodes, which have a place and no type yet: `1e-4` is four characters.

Owns: `Node`; reading files and strings with PyYAML's parser, within the limits of `limits.py`; duplicate keys, tags,
aliases, merge keys, `base:` includes.
Does not own: what the nodes mean (`decode.py`), the override language (`overrides.py`).

The parser's events are read one by one: a tree that is built by recursion ends the process where a text is deep.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import yaml

from official_trainer import files
from official_trainer.config import fields, limits, reference_text, scalars
from official_trainer.config.errors import ConfigError, Origin, Problem, source_lines
from official_trainer.shown import shorten

_STANDARD = "tag:yaml.org,2002:"
_APPEND = "!append"
_TAGS = {
    *(None, "!", _APPEND),
    *(f"{_STANDARD}{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp")),
    *(f"{_STANDARD}{name}" for name in ("value", "python/tuple")),
}
_TOO_DEEP = f"here lists and sections are nested more than {limits.MAX_DEPTH} levels deep", "write fewer levels"
_SAID = (
    ("exceeded maximum nesting depth", *_TOO_DEEP),  # libyaml reads ahead of where our limit is reached
    ("mapping values are not allowed", "", "quote the value if it holds ': ', or correct the indentation"),
    ("could not find expected ':'", "", "a field needs 'name: value'"),
    ("did not find expected ',' or", "", "a bracket is not closed, or a comma is missing"),
    ("did not find expected key", "", "correct the indentation, or the quotes before this place"),
    ("found unexpected end of stream", "", "a quote is not closed"),
    ("found unknown escape character", "", "in double quotes write two backslashes for one, or take single quotes"),
)
"""What PyYAML says, what that means if its words do not say it, and the fix."""
MARK = "#official-trainer: "
"""Begins a line of a `params.yaml` that Model Garden's parser takes for a comment: a field that only we have."""
_MARKED = re.compile(rf"^( *){MARK}", re.MULTILINE)


@dataclasses.dataclass(slots=True)
class Node:
    """A piece of configuration text.

    Attributes:
      form: `scalar` (value: text), `list` (value: nodes), `mapping` (value: pairs of nodes), `reference` (value: a
        `Reference`; decoding makes it of a scalar with `${…}`), `python` (value: a section or a value of Python code).
      value: see form.
      start: where the text begins that it is in, if `line` and `column` are set; otherwise where itself begins.
      length: columns it takes on its first line.
      quoted: whether a scalar was quoted.
      appends: whether it is added to the list or mapping that is there.
      is_part: whether it is a mapping with one key of a path, for one part of what is there; all else stays as it is.
      line: lines between the start of the text and the node.
      column: columns before it in its line.
    """

    form: Literal["scalar", "list", "mapping", "reference", "python"]
    value: Any
    start: Origin
    length: int = 1
    quoted: bool = False
    appends: bool = False
    is_part: bool = False
    line: int = 0
    column: int = 0

    @property
    def origin(self) -> Origin:
        """Where it begins."""
        return self.start.moved(self.line, self.column, self.length)

    @property
    def is_null(self) -> bool:
        """Whether it is null, or nothing at all."""
        if self.form == "python":
            return self.value is None
        return self.form == "scalar" and not self.quoted and self.value in scalars.NULLS

    @property
    def is_nothing(self) -> bool:
        """Whether no value is written."""
        return self.value == "" and not self.quoted

    @property
    def shown(self) -> str:
        """The node as messages show it."""
        if self.form == "python":
            return fields.show(self.value)
        if self.form == "scalar":
            if self.is_null:
                return "null" if self.value else "nothing"
            return ("the quoted text " if self.quoted else "") + f"'{shorten(self.value)}'"
        if self.form == "reference":
            return f"'{self.value.shown}'"
        return "a list" if self.form == "list" else "a mapping"

    def problem(self, what: str, path: str = "", **more: str) -> Problem:
        """Returns a problem at the place of this node."""
        return Problem(what, path, origin=self.origin, **more)


def node_at(keys: Sequence[fields.Key], mark: Node, node: Node) -> Node:
    """Returns what puts `node` at `keys`, a path that is written at `mark`; all else stays as it is."""
    for key in reversed(keys):
        at = dataclasses.replace(mark, value=key, quoted=True)
        node = dataclasses.replace(node, form="mapping", value=((at, node),), quoted=False, appends=False, is_part=True)
    return node


class Reader:
    """Reads the files and texts of one configuration.

    Attributes:
      problems: receives what is wrong, and what is too much.
      warnings: receives files that set nothing.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.warnings: list[Problem] = []
        self._size = 0
        self._files = 0

    def text(self, text: str, start: Origin) -> Node | None:
        """Reads YAML that begins at `start`; returns None for an empty document, and after adding a problem."""
        if self.refuses(text, start):
            return None
        composer = _Composer(start, self.problems, self._size)
        try:
            return composer.node(text)
        except ConfigError as refused:
            self.problems += refused.problems
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(text, start, error))
        finally:
            self._size = composer.size
        return None

    def refuses(self, text: str, start: Origin) -> bool:
        """Whether a text is too long, or holds what no file can; adds a problem then."""
        wrong, fix = limits.unstorable(text), "write it as UTF-8"
        if start.kind == "flag" and len(text) > limits.MAX_FLAG_CHARACTERS:
            wrong = f"is a text of {len(text)} characters; at most {limits.MAX_FLAG_CHARACTERS} are allowed"
            fix = "write it into a file and name that"
        if wrong:
            self._fail(wrong, start, fix=fix)
        return bool(wrong)

    def file(self, name: str, named_at: Origin | None = None, _open: tuple[str, ...] = ()) -> list[Node]:
        """Reads a configuration file and the files that its `base:` names.

        Args:
          name: path of a YAML file.
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
        if root is None or root.is_nothing:
            what = "sets nothing: it is empty, or holds only comments"
            self.warnings.append(Problem(what, origin=Origin("file", name)))
            return []
        if root.form != "mapping":
            what = "a list" if root.form == "list" else "one value"
            self.problems.append(root.problem(f"a configuration file holds fields (name: value), not {what}"))
            return []
        bases = [value for key, value in root.value if key.value == "base"]
        set_here = tuple(pair for pair in root.value if pair[0].value != "base" and not pair[0].value.startswith("x-"))
        layers = []
        for item in (item for value in bases for item in (value.value if value.form == "list" else [value])):
            if item.form != "scalar" or not item.value:
                self.problems.append(item.problem("must be a file or a list of files", "base"))
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(name), os.path.expanduser(item.value)))
            layers += self.file(file, item.origin, (*_open, path))
        return [*layers, dataclasses.replace(root, value=set_here)]

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
            self._fail(f"there is no configuration file '{shorten(name)}'", named_at, near=files.near(name))
        except UnicodeDecodeError as error:
            what = f"configuration file '{shorten(name)}' is not UTF-8 text (byte {error.start})"
            self._fail(what, named_at, fix="save it as UTF-8")
        except OSError as error:
            self._fail(f"cannot read configuration file '{shorten(name)}': {error.strerror}", named_at)
        else:
            if not name.endswith(".py"):
                return _unmarked(text)
            fix = "give the name of an experiment that it registers, with --experiment"
            self._fail(f"'{shorten(name)}' is Python, and a configuration file is YAML", named_at, fix=fix)
        return None

    def _fail(self, what: str, origin: Origin | None, path: str = "", near: str = "", fix: str = "") -> None:
        self.problems.append(Problem(what, path, near=near, fix=fix, origin=origin))


def plain(text: str, name: str) -> Any:
    """Returns the plain data (dicts, lists and scalars) that a file called `name` holds.

    Raises:
      ConfigError: it cannot be read.
    """
    root = whole_text(text, name)
    return None if root is None else plain_value(root)


def whole_text(text: str, name: str) -> Node | None:
    """Returns what a file called `name` holds; None if that is nothing.

    Raises:
      ConfigError: it cannot be read.
    """
    reader, text = Reader([]), _unmarked(text)
    root = reader.text(text, Origin("file", name, 1, 1, text))
    if reader.problems:
        raise ConfigError(reader.problems)
    return root


def _unmarked(text: str) -> str:
    """Returns a text with our own fields as fields; lines keep their numbers."""
    return _MARKED.sub(r"\1", text) if MARK in text else text


def plain_value(node: Node) -> Any:
    """Returns a node as plain data.

    Raises:
      ConfigError: a number in it cannot be read.
    """
    if node.form == "list":
        return [plain_value(item) for item in node.value]
    if node.form == "mapping":
        return {key.value: plain_value(item) for key, item in node.value}
    try:
        return scalars.value_of(reference_text.unescaped(node.value), Any, quoted=node.quoted)
    except scalars.MisreadError as error:
        raise ConfigError([node.problem(got=node.shown, **error.details)]) from error


# Text.


class _Composer:
    """Makes nodes of the events of one text.

    Attributes:
      size: of all that was read so far, as `limits.MAX_SIZE` counts it.
    """

    def __init__(self, start: Origin, problems: list[Problem], size: int) -> None:
        self._start = start
        self._problems = problems
        self.size = size
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        """By its name, what aliases repeat, with its size; None while it is being read."""

    def node(self, text: str) -> Node | None:
        """Returns the root of a text; None if it holds nothing.

        Raises:
          ConfigError: it is too much, or an alias or a second document is wrong.
          yaml.YAMLError: it is no YAML.
        """
        loader = yaml.CSafeLoader(text) if yaml.__with_libyaml__ else yaml.SafeLoader(text)
        outer: list[tuple[Any, list[Node], int]] = []  # for each open list or mapping: its event, and what was before
        items: list[Node] = []  # of the innermost one
        while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.ScalarEvent):
                size = limits.size(event.value)
                self._count(size, event)
                items.append(self._made("scalar", event.value, event, event))
                if event.anchor:
                    self._anchors[event.anchor] = items[-1], size
            elif isinstance(event, yaml.CollectionStartEvent):
                if len(outer) >= limits.MAX_DEPTH:
                    raise self._refusal(event, *_TOO_DEEP)
                outer.append((event, items, self.size))
                items = []
                self._count(1, event)
                self._anchors[event.anchor or ""] = None
            elif isinstance(event, yaml.CollectionEndEvent):
                begin, around, before = outer.pop()
                if isinstance(begin, yaml.SequenceStartEvent):
                    node = self._made("list", tuple(items), begin, event)
                else:
                    node = self._made("mapping", tuple(self._pairs(items)), begin, event)
                items = around
                items.append(node)
                self._anchors[begin.anchor or ""] = node, self.size - before
            elif isinstance(event, yaml.AliasEvent):
                items.append(self._repeated(event))
            elif isinstance(event, yaml.DocumentStartEvent) and items:
                raise self._refusal(event, "a second document begins here", "remove the '---' line")
        return items[0] if items else None

    def _made(self, form: Any, value: Any, event: Any, last: Any) -> Node:
        """Returns the node that begins with one event and ends with another, or the same."""
        if event.tag not in _TAGS:
            fix = "write plain data" if "python" in event.tag else "only !append is allowed"
            what = f"the tag {shorten(event.tag.replace(_STANDARD, '!!'))} is not allowed in a configuration"
            self._problems.append(self._problem(event, what, fix))
        mark, style = event.start_mark, event.style if form == "scalar" else None
        length = 1 if style in ("|", ">") else _columns(event, last)
        quoted = style in ("|", ">", "'", '"')  # plain text has '' in libyaml and None in pure Python
        return Node(form, value, self._start, length, quoted, event.tag == _APPEND, False, mark.line, mark.column)

    def _repeated(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            raise self._refusal(event, "nothing before this place has the name of this alias", "define it there")
        if (repeated := self._anchors[event.anchor]) is None:
            raise self._refusal(event, "an alias must not contain itself", "remove it")
        node, size = repeated
        self._count(size, event)
        return node

    def _count(self, size: int, event: Any) -> None:
        self.size += size
        if self.size > limits.MAX_SIZE:
            what = f"here the configuration exceeds {limits.MAX_SIZE} values, those that aliases repeat included"
            raise self._refusal(event, what, "put large tables into files of their own")

    def _refusal(self, event: Any, what: str, fix: str) -> ConfigError:
        return ConfigError([self._problem(event, what, fix)])

    def _problem(self, event: Any, what: str, fix: str) -> Problem:
        origin = self._start.moved(event.start_mark.line, event.start_mark.column, _columns(event, event))
        return Problem(what, origin=origin, fix=fix)

    def _pairs(self, items: list[Node]) -> Iterator[tuple[Node, Node]]:
        """Yields the fields of a mapping; those that `<<` merges come first, and give way to the others."""
        merged: dict[str, tuple[Node, Node]] = {}
        written: dict[str, tuple[Node, Node]] = {}
        for key, item in zip(items[::2], items[1::2], strict=True):
            if key.form != "scalar":
                self._problems.append(key.problem("a field name must be one word"))
            elif key.value == "<<" and not key.quoted:
                for section in item.value if item.form == "list" else [item]:
                    if section.form != "mapping":
                        self._problems.append(section.problem("'<<' takes a section or a list of sections"))
                    else:
                        merged = {pair[0].value: pair for pair in section.value} | merged
            elif key.value in written:
                first = written[key.value][0].origin.line
                what = f"'{shorten(key.value)}' appears twice in one section, first on line {first}"
                self._problems.append(key.problem(what, fix="keep one"))
            else:
                if item.is_nothing:  # it ends on another line
                    item = dataclasses.replace(item, line=key.line, column=key.column, length=key.length)
                written[key.value] = key, item
        yield from (pair for name, pair in merged.items() if name not in written)
        yield from written.values()


def _columns(event: Any, last: Any) -> int:
    """Returns the columns from an event to the end of the last one; rendering stops at the line's end."""
    start, end = event.start_mark, last.end_mark
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
    what, fix = next(((what, fix) for words, what, fix in _SAID if words in str(error)), ("", ""))
    if "${" in line and not what:
        fix = "inside brackets, write a reference in quotes"
    what = what or f"cannot be read as YAML: {reason}"
    return Problem(what, fix=fix, origin=start.moved(mark.line, mark.column))
