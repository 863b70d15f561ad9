"""Which file holds what TensorFlow could not parse, and where in it: a line of text, a record, an image.

Owns: searching files for the message of an operation. Does not own: records of another schema (`schema.py`), damaged
record files (`files.py`).

A pipeline knows no file where an operation fails, so the files are read again, until the first that fits.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from official_trainer.lazy import tf
from official_trainer.shown import shorten

_MOST_LINES = 1_000_000
_MOST_RECORDS = 100_000
_MOST_IMAGES = 10_000
"""As many are searched; they take some seconds, or a minute."""

_DELIMITERS = ",;\t|"

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


def find_record(datasets: Iterable[tuple[str, int, tf.data.Dataset]]) -> str:
    """Returns the file and number of the first record that cannot be parsed; empty if there is none.

    Args:
      datasets: for each file its path, the number of the first record that is read, and the parsed records.
    """
    left = _MOST_RECORDS
    for path, number, examples in datasets:
        iterator = iter(examples)
        while left:
            try:
                next(iterator)
            except StopIteration:
                break
            except tf.errors.InvalidArgumentError:
                return f"{path}: record {number}"
            except tf.errors.OpError:  # a damaged file has an error of its own
                break
            number, left = number + 1, left - 1
    return ""


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
