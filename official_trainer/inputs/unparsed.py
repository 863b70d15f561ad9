"""Which record of a file cannot be parsed, and what it holds.

Owns: parsing records again until one fails, as a pipeline knows no file where an operation fails. Does not own: damaged
record files (`files.py`), parsing records for training, which the task does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.errors import first_line
from official_trainer.lazy import tf
from official_trainer.shown import first_few
from official_trainer.user_code import is_users, line_of_code

MOST_RECORDS = 100_000  # are searched; they take some seconds, or a minute


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


def first_of(records: tf.data.Dataset, parsed: tf.data.Dataset, where: Callable[[int], str], parse_fn: Any) -> str:
    """Returns the first record that cannot be parsed, what it holds, and the user's line; empty for none.

    Args:
      records: serialized.
      parsed: the same, parsed.
      where: returns the file and the number of a record by its number among these.
      parse_fn: whose line is named.
    """
    number, _ = next(refused(parsed), (-1, ""))
    if number < 0:
        return ""
    described = f"{where(number)}{_contents(next(iter(records.skip(number))).numpy())}"
    code = getattr(parse_fn, "__code__", None)
    return f"{described}\n  parse_fn: {line_of_code(code)}" if code and is_users(code.co_filename) else described


def _contents(record: bytes) -> str:
    """Returns what a `tf.train.Example` holds, ` holds x float[6], y int64[1]`; empty if a record is none."""
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return ""
    lists = ((name, feature.ListFields()) for name, feature in sorted(features.items()))
    shown = [f"{name} {f[0][0].name.removesuffix('_list')}[{len(f[0][1].value)}]" if f else name for name, f in lists]
    return f" holds {first_few(shown) or 'no feature'}"
