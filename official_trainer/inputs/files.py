"""Record files: found by pattern, counted, and searched for damage.

Owns: `RecordFile`, and every message about a file. Does not own: reading records as training data (`records.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence

from official_trainer.errors import first_line
from official_trainer.files import is_url, near_hint, size_bytes
from official_trainer.inputs.context import DataError
from official_trainer.lazy import tf

_HEADER_BYTES = 8  # a record: length (8 bytes), checksum (4), data, checksum (4)
_AROUND_DATA_BYTES = 16


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """A TFRecord file, or the part of it between `skip` and `skip + take` records; `take` -1 means to its end."""

    path: str
    skip: int = 0
    take: int = -1

    def count(self) -> int:
        """Returns the records in this part; reads only their headers.

        Raises:
          DataError: a header leads past the end of the file, so the file is damaged.
        """
        if self.take >= 0:
            return self.take
        last = collections.deque(enumerate(_ends(self.path), 1), maxlen=1)
        records, end = last[0] if last else (0, 0)
        if end != size_bytes(self.path):
            problem = damage(self.path)
            assert problem is not None, f"TensorFlow reads {self.path} to its end, our count does not"
            raise problem
        return records - self.skip


def find_files(input_path: str | Sequence[str], *, field: str = "input_path") -> list[RecordFile]:
    """Returns the files that match, sorted by path, each once.

    Args:
      input_path: a path or pattern, several separated by commas, or a sequence of them.
      field: of the data section, for messages.

    Raises:
      DataError: a pattern matches nothing, or a file cannot be opened.
    """
    paths: set[str] = set()
    patterns = input_path.split(",") if isinstance(input_path, str) else input_path
    for pattern in map(os.path.expanduser, filter(None, map(str.strip, patterns))):
        try:
            matches = tf.io.gfile.glob(pattern)
        except tf.errors.OpError as error:
            raise DataError(f"cannot list {pattern!r}: {first_line(error)}", field=field) from error
        if not matches:
            where = "" if is_url(pattern) else f", which is {os.path.abspath(pattern)}"
            value = input_path if isinstance(input_path, str) else list(input_path)
            of = "" if value in (pattern, [pattern]) else f" of the value {value!r}"
            fix = near_hint(pattern) or "; check the path, or write an absolute path"
            what = f"no file matches {pattern!r}{of}{where}{fix}"
            raise DataError(what, field=field)
        paths.update(matches)
    if not paths:
        raise DataError("is empty; set it to a file, a pattern such as data/train-*.tfrecord, or a list", field=field)
    for path in paths:
        # Opening thousands of remote files takes minutes; their errors are explained when reading fails.
        problem = None if is_url(path) else _open_problem(path)
        if problem is not None:
            raise DataError(f"cannot read {path}: {problem}", field=field)
    return [RecordFile(path) for path in sorted(paths)]


def explain(
    error: Exception, files: Sequence[RecordFile], section: str = "", find_record: Callable[[], str] = lambda: ""
) -> DataError | None:
    """Returns what is wrong with the data behind TensorFlow's `error`, or None if the error is about something else.

    Args:
      error: what TensorFlow raised.
      files: that were read.
      section: path of the data section in the configuration, for the message; empty if it is in none.
      find_record: returns the record that `parse_fn` cannot parse, if that is known.
    """
    problem = _explained(error, files, find_record)
    return type(problem)(f"{section}: {problem}") if problem is not None and section else problem


def _explained(error: Exception, files: Sequence[RecordFile], find_record: Callable[[], str]) -> DataError | None:
    if isinstance(error, tf.errors.InvalidArgumentError):
        for name in ("parse_fn", "transform_fn"):
            if f"{{{{node {name}/" in str(error):
                what = f"{name} failed on a {'record' if name == 'parse_fn' else 'batch'}: {first_line(error)}"
                record = find_record() if name == "parse_fn" else ""
                return DataError("\n  ".join(filter(None, [what, record])))
        return None
    if isinstance(error, tf.errors.DataLossError):
        return next((loss for file in files if (loss := damage(file.path))), None)
    if isinstance(error, tf.errors.NotFoundError | tf.errors.PermissionDeniedError | tf.errors.FailedPreconditionError):
        for file in files:
            problem = _open_problem(file.path)
            if problem is not None:
                return DataError(f"cannot read {file.path}: {problem}; it was readable when the run began")
    return None


def damage(path: str) -> DataError | None:
    """Reads a whole file with its checksums; returns an error that names the first damage, or None."""
    records = tf.data.TFRecordDataset(path).batch(64)
    try:
        records.reduce(tf.constant(0, tf.int64), lambda total, _: total + 1)
    except tf.errors.DataLossError as error:
        match = re.search(r"(corrupted|truncated) record at (\d+)", str(error))
        state, offset = (match[1], int(match[2])) if match else ("damaged", 0)
        hint = "all records before it are whole" if offset else "this may not be a TFRecord file at all"
        number = sum(end <= offset for end in _ends(path))
        which = f"{state} record at offset {offset}, record {number}"
        return DataError(f"{path}: {which}; {hint}. Write or copy the file again")
    except tf.errors.OpError as error:
        return DataError(f"cannot read {path}: {first_line(error)}")
    return None


def _ends(path: str) -> Iterator[int]:
    """Yields where each record of a file ends, by the headers alone; the last may end past the end of the file."""
    end, size = 0, size_bytes(path)
    # A record of a local file takes Python half a microsecond, TensorFlow's files ten.
    with tf.io.gfile.GFile(path, "rb") if is_url(path) else open(path, "rb") as file:
        while end + _HEADER_BYTES <= size:
            file.seek(end)
            end += _AROUND_DATA_BYTES + struct.unpack("<Q", file.read(_HEADER_BYTES))[0]
            yield end


def _open_problem(path: str) -> str | None:
    """Returns why a file cannot be read, or None."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.read(1)
    except tf.errors.OpError as error:
        return first_line(error).removeprefix(f"{path}; ")
    return None
