r"""The language of `${…}`, in which a text of the configuration refers to other fields.

Owns: this grammar and its arithmetic, which is exact; the escape `$${` for the characters `${`.
Does not own: which fields there are, and in which order they are computed (`references.py`).

    text      = { char | "$${" | "${", sum, "}" } ;
    sum       = product, { ( "+" | "-" ), product } ;
    product   = factor, { ( "*" | "/" | "//" ), factor } ;
    factor    = number | path | "-", factor | "+", factor | "(", sum, ")" ;
    path      = name, { ".", ( name | digits ) | "[", [ "-" ], digits, "]" } ;
    name      = ( letter | "_" ), { letter | digit | "_" } | quoted ;

Python's parser builds the tree, of the tokens below only; nothing is ever evaluated as Python.
"""

from __future__ import annotations

import ast
import dataclasses
import fractions
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.config.errors import Origin
from official_trainer.shown import shorten

_OPEN = re.compile(r"(?<!\$)\$\{")
_REFERENCE = re.compile(r"(?<!\$)\$\{([^{}]*)\}")
_NAME = r"(?:'(?:[^']|'')*'|\"[^\"]*\")"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?![\w.]))"
    rf"|(?P<path>(?:[A-Za-z_]\w*|{_NAME})(?:\.(?:\w+|{_NAME})|\[-?\d+\])*)"
    r"|(?P<sign>//|[-+*/()]))",
    re.ASCII,
)
_LONGEST = 500
_HOW = "a reference is ${PATH}, or numbers and paths with + - * / // and brackets"
_OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class ExpressionError(ValueError):
    """An expression that cannot be read or computed; carries what to do."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


def refers(text: str) -> bool:
    """Whether a text has a `${` that is not escaped."""
    return "${" in text and _OPEN.search(text) is not None


def escaped(text: str) -> str:
    """Returns how a text is written, so that it does not refer to anything."""
    return text.replace("${", "$${")


def unescaped(text: str) -> str:
    """Returns the text that is meant by one that does not refer to anything."""
    return text.replace("$${", "${")


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Stands in a configuration for a value that refers to others, until all layers are merged.

    Attributes:
      text: as it is written.
      origin: where it is written.
      length: columns it takes there.
    """

    text: str
    origin: Origin
    length: int = 1

    @property
    def shown(self) -> str:
        """The text on one line that only prints, for a terminal and for comments."""
        return shorten(self.text, 100)

    def paths(self) -> list[str]:
        """Returns the fields that it refers to; it was parsed before."""
        found = [path for piece in parse(self.text) if isinstance(piece, Expression) for path in piece.paths]
        return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True, slots=True)
class Expression:
    """What stands between `${` and `}`.

    Attributes:
      text: as it is written.
      paths: the fields that it refers to.
      tree: what is computed; field number 0 is called `_0`.
    """

    text: str
    paths: tuple[str, ...]
    tree: ast.expr

    def value(self, values: Sequence[Any]) -> Any:
        """Returns the value, for the values of `paths`: that of a path alone as it is, otherwise a number.

        Raises:
          ExpressionError: it cannot be computed.
        """
        if isinstance(self.tree, ast.Name):
            return values[0]
        try:
            number = _number(self.tree, dict(zip(self.paths, values, strict=True)), self.paths)
            if abs(number) > sys.float_info.max:
                raise OverflowError
            return number.numerator if number.denominator == 1 else float(number)
        except ZeroDivisionError as error:
            raise ExpressionError("divides by zero") from error
        except OverflowError as error:
            raise ExpressionError("is too large for a number") from error


def parse(text: str) -> list[str | Expression]:
    """Splits a text into what is literal and what refers to other fields.

    Raises:
      ExpressionError: it breaks the grammar.

    Example:
      >>> [piece if isinstance(piece, str) else piece.paths for piece in parse("run_${trainer.train_steps // 2}")]
      ['run_', ('trainer.train_steps',)]
    """
    parts = _REFERENCE.split(text)
    if any(_OPEN.search(literal) for literal in parts[::2]):
        raise ExpressionError("has a '${' without its '}'", "close it, or write $${ for these characters")
    read = (_expression(part) if number % 2 else unescaped(part) for number, part in enumerate(parts))
    return [piece for piece in read if piece != ""]


def _expression(text: str) -> Expression:
    if len(text) > _LONGEST:
        raise ExpressionError(f"has a reference of {len(text)} characters; at most {_LONGEST} are allowed")
    words, paths, at = [], list[str](), 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if token is None:
            raise ExpressionError(
                f"has '{shorten(text[at:].strip())}' in a reference, which has no meaning there", _HOW
            )
        if path := token["path"]:
            paths += [path] if path not in paths else []
        words.append(f"_{paths.index(path)}" if path else token["number"] or token["sign"])
        at = token.end()
    try:
        tree = ast.parse(" ".join(words), mode="eval").body
        is_ours = all(isinstance(node, _KNOWN) for node in ast.walk(tree))  # no calls, such as `2 (3)`
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        is_ours = False
    if not is_ours:
        raise ExpressionError(f"has '{shorten(text.strip())}' in a reference, which cannot be read", _HOW)
    return Expression(text.strip(), tuple(paths), tree)


_KNOWN = (ast.BinOp, ast.UnaryOp, ast.USub, ast.UAdd, ast.Constant, ast.Name, ast.Load, *_OPERATIONS)


def _number(node: ast.expr, values: Mapping[str, Any], paths: Sequence[str]) -> fractions.Fraction:
    match node:
        case ast.Constant(value=value):
            return _exact(value, "")
        case ast.Name(id=name):
            path = paths[int(name[1:])]
            return _exact(values[path], path)
        case ast.UnaryOp(op=sign, operand=operand):
            number = _number(operand, values, paths)
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=sign, right=right):
            both = _number(left, values, paths), _number(right, values, paths)
            return fractions.Fraction(_OPERATIONS[type(sign)](*both))
    raise AssertionError(f"{node} is not of the grammar")


def _exact(value: Any, path: str) -> fractions.Fraction:
    """Returns a number as it is written: 0.1 is a tenth, not the nearest number of 64 bits."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
        return fractions.Fraction(repr(value))
    what = f"computes with {path or 'a number'}, which is {shorten(str(value)) if value is not None else 'null'}"
    raise ExpressionError(what, "only finite numbers can be computed with")
