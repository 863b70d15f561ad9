"""Which file holds what TensorFlow could not parse, and where in it: a record, a line of text, an image.

Owns: searching files for the message of an operation, and what a record holds, for a message. Does not own: damaged
record files (`files.py`), parsing records for training, which the task does.

A pipeline knows no file where an operation fails, so the files are read again, until the first that fits.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.errors import first_line
from official_trainer.lazy import tf
from official_trainer.shown import first_few, shorten
from official_trainer.user_code import is_users, line_of_code

_MOST_LINES = 1_000_000
MOST_RECORDS = 100_000
_MOST_IMAGES = 10_000
"""As many are searched; they take some seconds, or a minute."""

_DELIMITERS = ",;\t|"

_LACKS = re.compile(r"Feature: (\S+) \(data type: (\w+)\) is required but could not be found")
_OF_TYPE = re.compile(r"Key: (\S+?)\.\s+Data types don't match\..*?[Ee]xpected type: (\w+)")
_OF_SIZE = re.compile(r"Key: (\S+?)\.\s+(?:Number of \w+ values|Can't parse serialized Example)")
_KINDS = {"float_list": "float", "int64_list": "int64", "bytes_list": "string"}
"""TensorFlow's names for the lists of a feature, and for the dtypes that they are parsed as."""

_MISSING = re.compile(r"Field (\d+) is required but missing in record")
_INVALID = re.compile(r"Field (\d+) in record \d+ is not a valid \w+: ?(.*)")
_COUNT = re.compile(r"Expect (\d+) fields but have (\d+) in record")
_NUMBER = re.compile(r"StringToNumberOp could not correctly convert string: ?(.*)")
_IMAGE = re.compile(r"node [\w/]*Decode(Jpeg|Png|Gif|Bmp|Image)|Op:Decode(Jpeg|Png|Gif|Bmp|Image)")

Test = Callable[[Sequence[str]], int | None]
"""Returns which field of a line is wrong, -1 for all of it; None for a line that is right."""


def find(message: str, paths: Sequence[str]) -> str:
    """Returns the first line or image that the text of TensorFlow's error fits, with its file; empty without one."""
    if (test := _test_of(message)) is not None:
        return next(filter(None, (_line_in(path, test) for path in paths)), "")
    if _IMAGE.search(message):
        broken = filter(_is_broken_image, paths[:_MOST_IMAGES])
        return next((f"{path}: is no whole image" for path in broken), "")
    return ""


def find_example(message: str, paths: Iterable[str]) -> str:
    """Returns the first `tf.train.Example` that TensorFlow could not parse, its file and what it holds; empty if none.

    Of features of another size, that is the first record that differs from the first; if all are equal, the first.

    Args:
      message: the line of TensorFlow's error that says what is wrong.
      paths: of the files that were read.
    """
    is_foreign = "Could not parse example input" in message
    of_size, lacks, of_type = (pattern.search(message) for pattern in (_OF_SIZE, _LACKS, _OF_TYPE))
    found = of_size or lacks or of_type
    if found is None and not is_foreign:
        return ""
    name, wanted = (found[1], found[found.lastindex or 1]) if found else ("", "")
    first = first_place = ""
    for place, features in _examples(paths):
        if features is None or is_foreign:
            if features is None and is_foreign:
                return f"{place} is no tf.train.Example; it was written in another way"
            continue
        held = _shown(features[name]) if name in features else ""
        if held and of_size:
            if first and held != first:
                return f"{place} has {name!r} as {held}, and the first record as {first}"
            first, first_place = first or held, first_place or place
        elif lacks and not held and not of_size:
            return f"{place} has no feature {name!r}; it has {first_few(sorted(features)) or 'none'}"
        elif held and of_type and _kind(features[name]) not in (wanted, ""):
            return f"{place} has {name!r} as {held}, and {wanted} is read"
    return f"{first_place} has {name!r} as {first}" if first else ""


def _kind(feature: Any) -> str:
    return _KINDS.get(feature.WhichOneof("kind") or "", "")


def _shown(feature: Any) -> str:
    kind = feature.WhichOneof("kind")
    return f"{_kind(feature) or 'nothing'}[{len(getattr(feature, kind).value) if kind else 0}]"


def _examples(paths: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yields the place and the features of records; None for a record that is no `tf.train.Example`."""
    from google.protobuf.message import DecodeError

    left = MOST_RECORDS
    for path in paths:
        try:
            for number, record in enumerate(tf.data.TFRecordDataset(path)):
                if not (left := left - 1):
                    return
                try:
                    yield f"{path}: record {number}", tf.train.Example.FromString(record.numpy()).features.feature
                except DecodeError:
                    yield f"{path}: record {number}", None
        except tf.errors.OpError:  # a damaged file has an error of its own
            continue


def refused(parsed: tf.data.Dataset) -> Iterator[tuple[int, str]]:
    """Yields the number, from 0, of each record that cannot be parsed, and TensorFlow's reason, up to a damaged one."""
    iterator = iter(parsed)
    for number in itertools.count():
        try:
            next(iterator)
        except tf.errors.InvalidArgumentError as error:
            yield number, first_line(error)
        except (StopIteration, tf.errors.OpError):  # a damaged file has an error of its own
            return


def first_of(records: Iterator[tuple[str, str]], parse_fn: Callable[..., Any]) -> str:
    """Returns the place of the first record that `parse_fn` cannot parse, and the user's line; empty for none."""
    place, _ = next(records, ("", ""))
    code = getattr(parse_fn, "__code__", None)
    if not place or code is None or not is_users(code.co_filename):
        return place
    return f"{place}\n  parse_fn: {line_of_code(code)}"


def _test_of(message: str) -> Test | None:
    """Returns what tells whether a line is the one that a message is about."""
    if found := _MISSING.search(message):
        index = int(found[1])
        return lambda fields: index if index < len(fields) and not fields[index].strip() else None
    if found := _INVALID.search(message):
        index, value = int(found[1]), found[2].strip()
        return lambda fields: index if index < len(fields) and fields[index].strip() == value else None
    if found := _COUNT.search(message):
        count = int(found[2])
        return lambda fields: -1 if len(fields) == count else None
    if found := _NUMBER.search(message):
        text = found[1].strip()
        return lambda fields: next((i for i, field in enumerate(fields) if field.strip() == text), None)
    return None


def _line_in(path: str, test: Test) -> str:
    """Returns the first line of a file that a test finds, with its number; empty without one, or if it is no text."""
    names: Sequence[str] = ()
    for number, line in _lines(path):
        for delimiter in [each for each in _DELIMITERS if each in line] or [_DELIMITERS[0]]:
            fields = next(csv.reader([line], delimiter=delimiter), [])
            names = fields if number == 1 else names
            if (index := test(fields)) is not None:
                name = f" {names[index]!r}" if 0 <= index < len(names) and number > 1 else ""
                what = f"field {index}{name} is {fields[index].strip()!r}" if index >= 0 else f"{len(fields)} fields"
                return f"{path}:{number}: {what}, in the line {shorten(line)!r}"
    return ""


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file with their numbers, from 1; none of any other file."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if b"\0" in file.read(1024):
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if number > _MOST_LINES:
                    return
                yield number, line.decode("utf-8", "replace").rstrip("\r\n")
    except tf.errors.OpError:
        return


def _is_broken_image(path: str) -> bool:
    try:
        tf.io.decode_image(tf.io.read_file(path))
    except tf.errors.InvalidArgumentError:
        return True
    except tf.errors.OpError:
        return False
    return False
