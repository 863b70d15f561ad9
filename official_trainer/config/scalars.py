"""Converts one piece of text to a value of a declared type, by the same rules in a file, an override and a flag.

Owns: which text an `int`, `float`, `bool`, `str` or `Literal` accepts, and the message for other text.
Does not own: lists, sections, unions and null (`decode.py`). No rule guesses a type from the text, except for fields
that accept any value, which follow YAML 1.2.
"""

from __future__ import annotations

import decimal
import functools
import math
import re
import typing
from typing import Any, Literal

from official_trainer.config import fields, limits
from official_trainer.config.errors import best_match

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]{{1,6}})?")
_BASED = re.compile(r"[-+]?0(x[0-9a-fA-F]+(_[0-9a-fA-F]+)*|o[0-7]+(_[0-7]+)*|b[01]+(_[01]+)*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_SPECIAL = re.compile(r"([-+]?)\.?(inf|nan)", re.IGNORECASE)
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
NULLS = ("", "~", "null", "Null", "NULL", "None")
_LONGEST_NUMBER = 400  # Python refuses to convert much longer ones


class MisreadError(ValueError):
    """Text that is not a value of the type; carries the parts of a `Problem`."""

    def __init__(self, what: str, *, fix: str = "", allowed: str = "", near: str = "") -> None:
        super().__init__(what)
        self.details = {"what": what, "fix": fix, "allowed": allowed, "near": near}


class OutOfRangeError(MisreadError):
    """Text that is a number, but one that no value may be."""


def value_of(text: str, tp: Any, *, quoted: bool, narrow: bool = False) -> Any:
    """Reads plain or quoted text as a `tp`, which is a scalar type, a `Literal` or `Any`.

    Args:
      text: the text, without its quotes.
      tp: the type.
      quoted: whether it was quoted; quoted text is never a number or a truth value.
      narrow: whether other types are tried too, so that only the plainest spellings are accepted for this one.

    Raises:
      MisreadError: the text is not such a value.
    """
    if tp is Any:
        return _untyped(text, quoted)
    if typing.get_origin(tp) is Literal:
        return _choice(text, typing.get_args(tp), quoted)
    if tp is str:
        if text in NULLS and text and not quoted:
            raise MisreadError("must be text", fix=f"write '' for no text, or '{text}' in quotes for the word")
        return _storable(text)
    if quoted:
        raise MisreadError(f"must be {fields.describe(tp)}", fix="remove the quotes")
    if tp is bool:
        word = text.lower()
        if word in (*_TRUE[: 1 if narrow else None], *_FALSE[: 1 if narrow else None]):
            return word in _TRUE
        fix = "write true or false" if word in ("0", "1") else ""
        raise MisreadError("must be true or false", fix=fix, near=best_match(word, (*_TRUE, *_FALSE)))
    return _number(text, tp, narrow)


def is_of(value: Any, tp: Any) -> bool:
    """Whether a value of Python code is a `tp`, which is a scalar type, a `Literal` or `Any`."""
    if tp is Any:
        return value is None or isinstance(value, bool | int | float | str)
    if typing.get_origin(tp) is Literal:
        return any(value == option and type(value) is type(option) for option in typing.get_args(tp))
    if tp in (int, float) and isinstance(value, bool):
        return False
    if tp is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, int | float if tp is float else tp)


def is_number(value: Any) -> bool:
    """Whether a value of Python code is the text of a number."""
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None


def _storable(text: str) -> str:
    if wrong := limits.unstorable(text):
        raise MisreadError(wrong, fix="write it as UTF-8")
    return text


def _number(text: str, tp: type[int] | type[float], narrow: bool) -> int | float:
    wanted = "must be an integer" if tp is int else "must be a number"
    if tp is float and (special := _SPECIAL.fullmatch(text)):
        return float(special[1] + special[2])
    is_based = _BASED.fullmatch(text) is not None
    if not is_based and not _NUMBER.fullmatch(text):
        raise MisreadError(wanted)
    if len(text) > _LONGEST_NUMBER:
        raise OutOfRangeError(f"{wanted} of at most {_LONGEST_NUMBER} characters")
    if _LEADING_ZERO.fullmatch(text):
        raise MisreadError(f"{wanted} without a leading zero", fix=f"write {decimal.Decimal(text)}")
    if is_based:
        return tp(_in_range(int(text, 0)))
    if tp is float:
        value = float(text.replace("_", ""))
        if math.isinf(value):
            raise OutOfRangeError(f"{wanted} that fits 64 bits", fix="write inf for infinity")
        return value
    if narrow and set(text) & set(".eE"):
        raise MisreadError(wanted)
    number = decimal.Decimal(text.replace("_", ""))
    if number and number.adjusted() > _LONGEST_NUMBER:
        raise OutOfRangeError(f"{wanted} {limits.INTEGERS}")
    below = _in_range(int(number.to_integral_value(decimal.ROUND_FLOOR)))
    if number == below:
        return below
    raise MisreadError(wanted, fix=f"write {below} or {below + 1}")


def _in_range(number: int) -> int:
    if limits.unstorable(number):
        raise OutOfRangeError(f"must be an integer {limits.INTEGERS}")
    return number


def _choice(text: str, options: tuple[Any, ...], quoted: bool) -> Any:
    for option in options:
        if isinstance(option, str):
            if text == option:
                return option
        elif not quoted:
            try:
                if value_of(text, type(option), quoted=False) == option:
                    return option
            except MisreadError:
                continue
    names = [option if isinstance(option, str) else fields.show(option) for option in options]
    raise MisreadError("not one of the choices", allowed=", ".join(names), near=best_match(text, names))


@functools.lru_cache(maxsize=1000)  # the same words stand in the files of many runs
def _untyped(text: str, quoted: bool) -> Any:
    """Reads as YAML 1.2's core schema does."""
    if quoted:
        return _storable(text)
    if text in NULLS and text != "None":
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if text.lstrip("+-")[:1].isdigit() or text.lstrip("+-")[:1] == ".":
        for tp in (int, float):
            try:
                return value_of(text, tp, quoted=False, narrow=True)
            except OutOfRangeError as error:
                error.details["fix"] = "write it in quotes, if it is meant as text"
                raise
            except MisreadError:
                continue
    return _storable(text)
