r"""The language of `--params_override` and `--set`.

Owns: this grammar, and writing values in it (`format_override`).

    overrides = ws, [ item, { sep, item }, [ sep ] ], ws ;
    sep       = ws, ( "," | ";" | newline ), ws ;
    item      = path, ws, op, ws, value | "~", path ;
    op        = "=" | "+=" | ":=" ;
    path      = key, { ".", key | "[", [ "-" ], digit, { digit }, "]" } ;
    key       = ( letter | digit | "_" ), { letter | digit | "_" | "-" } | quoted ;
    value     = flow | quoted | bare ;
    flow      = balanced "[…]" or "{…}", followed by sep or end ;
    quoted    = "'", { char - "'" | "''" }, "'" | '"', { char - '"' | "\", char }, '"', followed by sep or end ;
    bare      = { char } up to the first sep outside brackets that is followed by (path, op), "~" or end ;

Does not own: what the values mean (`decode.py`). So `/a/b,/c/d`, `train[:90%]`, `a=b` and `it's` need no quotes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from official_trainer.config import fields
from official_trainer.config.errors import Origin, Problem
from official_trainer.config.nodes import Node, compose, node_at
from official_trainer.config.text import flow

_HEAD = re.compile(rf"\s*({fields.PATH})[^\S\n]*(\+=|:=|=)[^\S\n]*")
_RESET = re.compile(rf"\s*~({fields.PATH})[^\S\n]*(?=$|[,;\n])")
_SEPARATOR = re.compile(r"\s*[,;\n]\s*")
_YAML_FIELD = re.compile(rf"(?:\s*(?:#[^\n]*)?\n)*\s*{fields.PATH}\s*:(?:\s|$)")
_FILE = re.compile(r"\S.*\.(ya?ml|json)", re.IGNORECASE)
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_FLOW = re.compile(rf"[\[{{,:]\s*(?:{_QUOTED.pattern}|(['\"]))?|[\]}}]", re.DOTALL)
"""Brackets, and quoted text where YAML reads it as such: after a bracket, comma or colon; or a quote without an end."""
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}


def is_file(text: str) -> bool:
    """Whether an argument of `--params_override` names a file."""
    return "=" not in text and "\n" not in text.strip() and _FILE.fullmatch(text.strip()) is not None


def is_yaml(text: str) -> bool:
    """Whether an argument of `--params_override` is YAML rather than a list of items."""
    if text.lstrip().startswith("{"):
        return True
    return not (_HEAD.match(text) or _RESET.match(text)) and _YAML_FIELD.match(text) is not None


def parse(text: str, flag: str, problems: list[Problem], *, single: bool = False) -> list[Node]:
    """Reads items as parts of the configuration; `single` makes the rest of the text the value of the first."""
    return list(_Parser(text, flag, problems, single).items())


def format_override(path: str, value: Any) -> str:
    """Returns `path=value` such that parsing it gives the value back, anywhere in a list of overrides."""
    return f"{path}={flow(value)}"


class _Parser:
    def __init__(self, text: str, flag: str, problems: list[Problem], single: bool) -> None:
        self._text = text
        self._flag = flag
        self._problems = problems
        self._single = single
        self._partner = _bracket_pairs(text)

    def items(self) -> Iterator[Node]:
        at = 0
        while self._text[at:].strip():
            reset = _RESET.match(self._text, at)
            if reset and (not self._single or reset.end() == len(self._text)):
                mark = self._scalar(*reset.span(1))
                yield node_at(fields.parse_path(reset[1]), mark, dataclasses.replace(mark, op="~"))
                at = self._next(reset.end())
                continue
            head = _HEAD.match(self._text, at)
            if head is None:
                self._fail(len(self._text) - len(self._text[at:].lstrip()))
                return
            node, end = self._value(head.end())
            if node is None:
                return
            node = node if head[2] == "=" else dataclasses.replace(node, op=head[2])
            yield node_at(fields.parse_path(head[1]), self._scalar(*head.span(1)), node)
            at = self._next(end)

    def _value(self, at: int) -> tuple[Node | None, int]:
        first = self._text[at : at + 1]
        if first in ("[", "{") and self._ends_value(end := self._flow_end(at)):
            return compose(self._text[at:end], self._origin(at), self._problems), end
        quote = _QUOTED.match(self._text, at)
        if quote and self._ends_value(end := quote.end()):
            return dataclasses.replace(self._scalar(at, end), value=_unquote(self._text[at:end]), quoted=True), end
        end = len(self._text) if self._single else self._bare_end(at)
        stop = at + len(self._text[at:end].rstrip())
        return self._scalar(at, stop), end

    def _flow_end(self, at: int) -> int:
        """Returns the index after the bracket that closes the one at `at`, minding quotes; -1 if none does."""
        depth = 0
        for token in _FLOW.finditer(self._text, at):
            depth += (token[0][0] in "[{") - (token[0] in "]}")
            if depth == 0 or token[1]:
                return -1 if token[1] else token.end()
        return -1

    def _ends_value(self, end: int) -> bool:
        if end < 0:
            return False
        return not self._text[end:].strip() or (not self._single and _SEPARATOR.match(self._text, end) is not None)

    def _bare_end(self, at: int) -> int:
        i = at
        while i < len(self._text):
            if self._text[i] in ",;\n":
                after = _SEPARATOR.match(self._text, i)
                assert after is not None
                rest = after.end()
                if rest >= len(self._text) or _HEAD.match(self._text, rest) or _RESET.match(self._text, rest):
                    return i
            i = self._partner.get(i, i) + 1
        return i

    def _next(self, at: int) -> int:
        separator = _SEPARATOR.match(self._text, at)
        return separator.end() if separator else at

    def _scalar(self, start: int, end: int) -> Node:
        text = self._text[start:end]
        return Node("scalar", text, self._origin(start), len(text))

    def _origin(self, at: int) -> Origin:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return Origin("flag", self._flag, line, column, self._text)

    def _fail(self, at: int) -> None:
        word = self._scalar(at, at + len(re.split(r"[,;\n]", self._text[at:])[0].rstrip()) or at + 1)
        fix = "write path=value, path+=value, path:=value or ~path"
        if re.fullmatch(rf"{fields.PATH}", word.value):
            fix = f"write {word.value}=VALUE"
        self._problems.append(word.problem(f"expected path=value, got '{word.value}'", fix=fix))


def _unquote(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return _ESCAPE.sub(_unescape, text[1:-1])


def _unescape(match: re.Match[str]) -> str:
    """Returns the character of an escape; a backslash before anything else, as in a Windows path, is itself."""
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, match[0])


def _bracket_pairs(text: str) -> dict[int, int]:
    """Returns the index of the closing bracket for each opening one that has a partner."""
    pairs: dict[int, int] = {}
    waiting: list[int] = []
    for i, char in enumerate(text):
        if char in "([{":
            waiting.append(i)
        elif char in ")]}":
            opening = {")": "(", "]": "[", "}": "{"}[char]
            while opening in [text[w] for w in waiting]:
                start = waiting.pop()
                if text[start] == opening:
                    pairs[start] = i
                    break
    return pairs
