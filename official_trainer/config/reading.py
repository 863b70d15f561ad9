"""YAML files and texts as nodes, which have a place and no type yet: `1e-4` is four characters.

Owns: `Node`; reading files and strings with PyYAML's parser, within the limits of `limits.py`; duplicate keys, tags,
aliases, merge keys, `base:` includes.
Does not own: what the nodes mean (`decode.py`), the override language (`overrides.py`).

The parser's events are read one by one: PyYAML's own trees are built by recursion, in C, where depth ends the process.
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
from official_trainer.config.errors import ConfigError, Origin, Problem, near_file, source_lines
from official_trainer.shown import shorten

_BASES: Any = (yaml.composer.Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)
_STANDARD = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    f"{_STANDARD}{name}"
    for name in ["map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp", "value", "python/tuple"]
}
_APPEND = "!append"
_DEPTH = "exceeded maximum nesting depth"
"""What libyaml says, which reads ahead of the place where our limit is reached."""
_SAID = (
    (_DEPTH, f"here lists and sections are nested more than {limits.MAX_DEPTH} levels deep", "write fewer levels"),
    ("but found another document", "a second document begins here", "remove the '---' line"),
    ("found undefined alias", "nothing before this place has the name of this alias", "define it there"),
    ("found duplicate anchor", "another place has the name of this anchor", "give it another name"),
    ("mapping values are not allowed", "", "quote the value if it holds ': ', or correct the indentation"),
    ("could not find expected ':'", "", "a field needs 'name: value'"),
    ("did not find expected ',' or", "", "a bracket is not closed, or a comma is missing"),
    ("did not find expected key", "", "correct the indentation, or the quotes before this place"),
    ("found unexpected end of stream", "", "a quote is not closed"),
)
"""What PyYAML says, what that means if its words do not say it, and the fix."""
MARK = "#official-trainer: "
"""Begins a line of a `params.yaml` that Model Garden's parser takes for a comment: a field that only we have."""
_MARKED = re.compile(rf"^( *){MARK}", re.MULTILINE)
_JSON_PAIR = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)
"""An escape in JSON; with groups, a character beyond 16 bits, which JSON writes as two."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A piece of configuration text.

    Attributes:
      kind: `scalar` (value: text), `list` (value: nodes), `mapping` (value: pairs of nodes), `reference` (value: a
        `Reference`; decoding makes it of a scalar with `${…}`).
      value: see kind.
      origin: where it starts.
      length: columns it takes on its first line.
      quoted: whether a scalar was quoted.
      appends: whether it is added to the list or mapping that is there.
      is_part: whether it is a mapping with one key of a path, for one part of what is there; all else stays as it is.
    """

    kind: Literal["scalar", "list", "mapping", "reference"]
    value: Any
    origin: Origin
    length: int = 1
    quoted: bool = False
    appends: bool = False
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
        if self.kind == "reference":
            return f"'{self.value.shown}'"
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
        reading = _Reading(start, self.problems, self._size)
        try:
            root = _Loader(text).get_single_node()
            return None if root is None else reading.node(root, root)
        except ConfigError as refused:
            self.problems += refused.problems
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(text, start, error))
        finally:
            self._size = reading.size
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
            what = "sets nothing: it is empty, or holds only comments"
            self.warnings.append(Problem(what, origin=Origin("file", name)))
            return []
        if root.kind != "mapping":
            held = "a list" if root.kind == "list" else "one value"
            self.problems.append(root.problem(f"a configuration file holds fields (name: value), not {held}"))
            return []
        bases = [value for key, value in root.value if key.value == "base"]
        own = tuple(pair for pair in root.value if pair[0].value != "base" and not pair[0].value.startswith("x-"))
        found = []
        for item in (item for value in bases for item in (value.value if value.kind == "list" else [value])):
            if item.kind != "scalar" or not item.value:
                self.problems.append(item.problem("must be a file or a list of files", "base"))
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(name), os.path.expanduser(item.value)))
            found += self.file(file, item.origin, (*_open, path))
        return [*found, dataclasses.replace(root, value=own)]

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
    return _MARKED.sub(r"\1", text)


def plain_value(node: Node) -> Any:
    """Returns a node as plain data.

    Raises:
      ConfigError: a number in it cannot be read.
    """
    if node.kind == "list":
        return [plain_value(item) for item in node.value]
    if node.kind == "mapping":
        return {key.value: plain_value(item) for key, item in node.value}
    try:
        return scalars.value_of(reference_text.unescaped(node.value), Any, quoted=node.quoted)
    except scalars.MisreadError as error:
        raise ConfigError([node.problem(got=node.shown, **error.parts)]) from error


def _yaml_of_json(text: str) -> str:
    """Returns JSON as YAML, its superset except for tabs in the indentation, and characters written as two escapes."""

    def one(escape: re.Match[str]) -> str:
        high, low = escape[1], escape[2]
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00) if high else escape[0]

    return _JSON_PAIR.sub(one, text.replace("\t", " "))


# Text.


class _Loader(*_BASES):  # type: ignore[misc]
    """PyYAML's own composer, on libyaml's parser if that is there, which refuses depth.

    The composer that is written in C ends the process at 100,000 levels where libyaml is older than 0.2.6.
    """

    def __init__(self, text: str) -> None:
        _BASES[-1].__init__(self, text)
        yaml.composer.Composer.__init__(self)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > limits.MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, _DEPTH, self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        return ""  # the type of the field says how its text is read


class _Reading:
    """Turns what PyYAML composes of a text into our nodes.

    Attributes:
      size: of all that was read so far, as `limits.MAX_SIZE` counts it.
    """

    def __init__(self, start: Origin, problems: list[Problem], size: int) -> None:
        self._start = start
        self._problems = problems
        self.size = size
        self._read: dict[yaml.Node, tuple[Node, int] | None] = {}
        """Each node with its size, because an alias is the node that it repeats; None while it is being read."""

    def node(self, found: yaml.Node, holder: yaml.Node) -> Node:
        """Returns a node of PyYAML's as one of ours; `holder` is the one that it is an item of."""
        if found in self._read:
            if (known := self._read[found]) is None:
                raise ConfigError([self._problem("an alias must not contain itself", holder, "remove it")])
            self._count(known[1], holder)
            return known[0]
        self._read[found], before = None, self.size
        self._count(limits.size(found.value), found)
        if found.tag not in ("", _APPEND, *_PLAIN_TAGS):
            fix = "write plain data" if "python" in found.tag else "only !append is allowed"
            shown = shorten(found.tag.replace(_STANDARD, "!!"))
            self._problems.append(self._problem(f"the tag {shown} is not allowed in a configuration", found, fix))
        kind: Literal["scalar", "list", "mapping"] = "scalar"
        quoted, length = False, _columns(found)
        if isinstance(found, yaml.ScalarNode):
            value = found.value
            is_block = found.style in ("|", ">")
            quoted = is_block or found.style in ("'", '"')  # plain is '' in libyaml and None in pure Python
            length = 1 if is_block else length
        elif isinstance(found, yaml.SequenceNode):
            kind, value = "list", tuple(self.node(item, found) for item in found.value)
        else:
            kind, value = "mapping", tuple(self._pairs(found))
        node = Node(kind, value, self._place(found), length, quoted, found.tag == _APPEND)
        self._read[found] = node, self.size - before
        return node

    def _count(self, size: int, found: yaml.Node) -> None:
        self.size += size
        if self.size > limits.MAX_SIZE:
            what = f"here the configuration exceeds {limits.MAX_SIZE} values, those that aliases repeat included"
            raise ConfigError([self._problem(what, found, "put large tables into files of their own")])

    def _place(self, found: yaml.Node) -> Origin:
        return self._start.moved(found.start_mark.line, found.start_mark.column)

    def _problem(self, what: str, found: yaml.Node, fix: str) -> Problem:
        return Problem(what, origin=self._place(found), length=_columns(found), fix=fix)

    def _pairs(self, found: yaml.Node) -> Iterator[tuple[Node, Node]]:
        merged: dict[str, tuple[Node, Node]] = {}
        own: dict[str, tuple[Node, Node]] = {}
        for key, item in ((self.node(key, found), self.node(item, found)) for key, item in found.value):
            if key.kind != "scalar":
                self._problems.append(key.problem("a field name must be one word"))
            elif key.value == "<<" and not key.quoted:
                for part in item.value if item.kind == "list" else [item]:
                    if part.kind != "mapping":
                        self._problems.append(Problem("'<<' takes a section or a list of sections", origin=part.origin))
                    else:
                        for name, pair in ((pair[0].value, pair) for pair in part.value):
                            merged.setdefault(name, pair)
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


def _columns(found: yaml.Node) -> int:
    """Returns the columns of a node; rendering stops at the line's end."""
    start, end = found.start_mark, found.end_mark
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
