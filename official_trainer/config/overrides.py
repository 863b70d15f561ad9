r"""The language of `--params_override` and `--set`.

Owns: this grammar, and writing values in it (`format_override`).

    overrides = ws, [ item, { sep, item }, [ sep ] ], ws ;
    sep       = ws, ( "," | ";" | newline ), ws ;
    item      = path, ws, ( "=" | "+=" ), ws, value ;
    path      = key, { ".", key | "[", [ "-" ], digit, { digit }, "]" } ;
    key       = ( letter | digit | "_" ), { letter | digit | "_" | "-" } | quoted ;
    value     = yaml | bare ;
    yaml      = balanced "[…]" or "{…}", or text in quotes, followed by sep or end: YAML on one line ;
    bare      = { char } up to the first sep outside brackets that is followed by path, ( "=" | "+=" ), or end ;

Does not own: what the values mean (`decode.py`). So `/a/b,/c/d`, `train[:90%]`, `a=b` and `it's` need no quotes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from official_trainer.config import fields
from official_trainer.config.errors import Origin
from official_trainer.config.reading import Node, Reader, node_at
from official_trainer.config.text import flow
from official_trainer.shown import shorten

_HEAD = re.compile(rf"\s*({fields.PATH})[^\S\n]*(\+?=)[^\S\n]*")
_SEPARATOR = re.compile(r"\s*+[,;]\s*+|[^\S\n]*+\n\s*+")
_SPACE = re.compile(r"\s*")
_YAML_FIELD = re.compile(rf"(?:\s|#[^\n]*\n)*{fields.PATH}\s*:(?:\s|$)")
_FILE = re.compile(r"\S.*\.ya?ml", re.IGNORECASE)
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_BRACKET = re.compile(rf"[\[{{,:]\s*(?:{_QUOTED.pattern})?|[]}}()]", re.DOTALL)
"""Brackets, and quoted text where YAML reads it as such: after a bracket, comma or colon."""
_OPENING = {")": "(", "]": "[", "}": "{"}


def is_file(text: str) -> bool:
    """Whether an argument of `--params_override` names a file."""
    return "=" not in text and "\n" not in text.strip() and _FILE.fullmatch(text.strip()) is not None


def is_yaml(text: str) -> bool:
    """Whether an argument of `--params_override` is YAML rather than a list of items."""
    if text.lstrip().startswith("{"):
        return True
    return _HEAD.match(text) is None and _YAML_FIELD.match(text) is not None


def parse(text: str, flag: str, reader: Reader, *, single: bool = False) -> Iterator[Node]:
    """Reads items as parts of the configuration; `single` makes the rest of the text the value of the first."""
    if reader.refuses(text, Origin("flag", flag, 1, 1, text)):
        return
    yield from _Parser(text, flag, reader, single).items()


def format_override(path: str, value: Any) -> str:
    """Returns `path=value` such that parsing it gives the value back, anywhere in a list of overrides."""
    return f"{path}={flow(value)}"


class _Parser:
    def __init__(self, text: str, flag: str, reader: Reader, single: bool) -> None:
        self._text = text
        self._flag = flag
        self._reader = reader
        self._single = single
        self._partner = _bracket_pairs(text)

    def items(self) -> Iterator[Node]:
        at = 0
        while not self._is_space_from(at):
            head = _HEAD.match(self._text, at)
            if head is None:
                at = len(self._text) - len(self._text[at:].lstrip())
                length = len(re.split(r"[,;\n]", self._text[at:], maxsplit=1)[0].rstrip())
                word = self._scalar(at, at + length or at + 1)
                shown, fix = shorten(word.value), "write path=value or path+=value"
                if fields.is_path(word.value):
                    fix = f"write {shown}=VALUE"
                self._reader.problems.append(word.problem(f"expected path=value, got '{shown}'", fix=fix))
                return
            node, end = self._value(head.end())
            if node is None:
                return
            node = dataclasses.replace(node, appends=head[2] == "+=")
            yield node_at(fields.parse_path(head[1]), self._scalar(*head.span(1)), node)
            at = self._next(end)

    def _value(self, at: int) -> tuple[Node | None, int]:
        quote = _QUOTED.match(self._text, at)
        end = quote.end() if quote else self._partner.get(at, -1) + 1
        if end and self._text[at] != "(" and self._ends_value(end):
            return self._reader.text(self._text[at:end], self._origin(at)), end
        end = len(self._text) if self._single else self._bare_end(at)
        return self._scalar(at, at + len(self._text[at:end].rstrip())), end

    def _ends_value(self, end: int) -> bool:
        return self._is_space_from(end) or (not self._single and _SEPARATOR.match(self._text, end) is not None)

    def _is_space_from(self, at: int) -> bool:
        return _SPACE.fullmatch(self._text, at) is not None

    def _bare_end(self, at: int) -> int:
        i = at
        while i < len(self._text):
            if self._text[i] in ",;\n":
                after = _SEPARATOR.match(self._text, i)
                assert after is not None
                rest = after.end()
                if rest >= len(self._text) or _HEAD.match(self._text, rest):
                    return i
                i = rest  # from the other separators up to there the answer is the same
            else:
                i = self._partner.get(i, i) + 1
        return len(self._text)

    def _next(self, at: int) -> int:
        separator = _SEPARATOR.match(self._text, at)
        return separator.end() if separator else at

    def _scalar(self, start: int, end: int) -> Node:
        text = self._text[start:end]
        return Node("scalar", text, self._origin(start), len(text))

    def _origin(self, at: int) -> Origin:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return Origin("flag", self._flag, line, column, self._text)


def _bracket_pairs(text: str) -> dict[int, int]:
    """Returns the index of the closing bracket for each opening one that has a partner."""
    pairs: dict[int, int] = {}
    waiting: list[int] = []
    num_waiting = dict.fromkeys("([{", 0)
    for token in _BRACKET.finditer(text):
        char, index = token[0][0], token.start()
        if char in num_waiting:
            waiting.append(index)
            num_waiting[char] += 1
        elif opening := _OPENING.get(char):
            while num_waiting[opening]:
                start = waiting.pop()
                num_waiting[text[start]] -= 1
                if text[start] == opening:
                    pairs[start] = index
                    break
    return pairs
