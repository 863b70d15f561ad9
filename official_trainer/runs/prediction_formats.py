"""The formats of predictions: TFRecord, JSON lines, NumPy, CSV and Parquet.

Owns: writing the rows of one file, and which outputs a format cannot hold. Does not own: which rows are in a file
(`predictions.py`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.shown import first_few
from official_trainer.tracking.jsonl import encode

if TYPE_CHECKING:
    from official_trainer.engine.inference import Columns


class PredictionsError(UserError, ValueError):
    """Predictions that cannot be written: because of their directory, their format, or how they were begun."""

    exit_code = ExitCode.CONFIG


def num_rows(columns: Columns) -> int:
    """Returns how many rows there are."""
    return len(next(iter(columns.values())))


def write(format: str, path: str, chunks: Sequence[Columns]) -> None:
    """Writes a file.

    Args:
      format: one of `FORMATS`.
      path: of a file that may be replaced.
      chunks: rows, one chunk after the other.

    Raises:
      PredictionsError: the format cannot hold an output.
    """
    for name in chunks[0]:
        columns = [chunk[name] for chunk in chunks]
        if (what := _unfit(format, columns)) is not None:
            fit = [other for other in FORMATS if _unfit(other, columns) is None]
            fix = f"use --format={' or '.join(fit)}" if fit else "return another type from Task.predict_step"
            raise PredictionsError(f"--format={format}: the output '{name}' {what}, which it cannot hold; {fix}")
    if format in ("jsonl", "csv", "parquet"):
        chunks = [{name: _with_text(values) for name, values in chunk.items()} for chunk in chunks]
    _WRITERS[format](path, chunks)


def _unfit(format: str, columns: Sequence[Any]) -> str | None:
    """Returns what a format cannot hold of an output; None if it holds all of it."""
    dtype, shapes = columns[0].dtype, list(dict.fromkeys(str(list(column.shape[1:])) for column in columns))
    if dtype.kind not in ("fiubc" if format == "npy" else "fiubO") or (
        format == "tfrecord" and dtype.name in ("float64", "uint64")
    ):
        return "holds bytes" if dtype.kind == "O" else f"is {dtype.name}"
    if format in ("npy", "csv") and len(shapes) > 1:
        return f"has rows of the shapes {first_few(shapes)}"
    if format in ("jsonl", "csv", "parquet") and dtype.kind == "O":
        try:
            list(map(_with_text, columns))
        except UnicodeDecodeError as error:
            return f"holds bytes that are not UTF-8 text ({error})"
    return None


def _with_text(values: Any) -> Any:
    """Returns an array with its bytes as text; of other types as it is."""
    import numpy as np

    return np.vectorize(bytes.decode, otypes=[object])(values) if values.dtype.kind == "O" else values


def _write_tfrecord(path: str, chunks: Sequence[Columns]) -> None:
    """Writes `tf.train.Example`s; an output of two or more dimensions has its shape beside it, as `NAME/shape`."""
    with tf.io.TFRecordWriter(path) as writer:
        for row in itertools.chain.from_iterable(map(_rows, chunks)):
            writer.write(tf.train.Example(features=tf.train.Features(feature=row)).SerializeToString())


def _rows(chunk: Columns) -> Iterator[dict[str, Any]]:
    """Yields the features of each row."""
    for number in range(num_rows(chunk)):
        row: dict[str, Any] = {}
        for name, values in chunk.items():
            value = values[number]
            shape = getattr(value, "shape", ())
            flat = value.reshape(-1).tolist() if shape else [value]
            if values.dtype.kind == "f":
                row[name] = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
            elif values.dtype.kind == "O":
                row[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=flat))
            else:
                row[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=map(int, flat)))
            if len(shape) > 1:
                row[f"{name}/shape"] = tf.train.Feature(int64_list=tf.train.Int64List(value=shape))
        yield row


def _write_jsonl(path: str, chunks: Sequence[Columns]) -> None:
    """Writes an object on each line; numbers that are not finite become strings that `float` accepts."""
    with files.open_file(path, "w") as file:
        for chunk in chunks:
            columns = [_plain(values.tolist(), values.dtype.kind) for values in chunk.values()]
            for row in zip(*columns, strict=True):
                file.write(json.dumps(dict(zip(chunk, row, strict=True)), allow_nan=False, ensure_ascii=False) + "\n")


def _plain(value: Any, dtype_kind: str) -> Any:
    if dtype_kind != "f":
        return value
    return [_plain(item, dtype_kind) for item in value] if isinstance(value, list) else encode(value)


def _write_npy(path: str, chunks: Sequence[Columns]) -> None:
    """Writes one array `[rows, …]`, or several by name, which `numpy.load` reads."""
    import numpy as np

    arrays: dict[str, Any] = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    with files.open_file(path, "wb") as file:
        np.save(file, *arrays.values()) if len(arrays) == 1 else np.savez(file, **arrays)


def _write_csv(path: str, chunks: Sequence[Columns]) -> None:
    """Writes a column for each number of an output: `NAME`, or `NAME/0` and so on of rows that are arrays."""
    import pandas

    tables = []
    for chunk in chunks:
        columns = {}
        for name, values in chunk.items():
            for index in itertools.product(*map(range, values.shape[1:])):
                columns["/".join([name, *map(str, index)])] = values[(slice(None), *index)]
        tables.append(pandas.DataFrame(columns))
    with files.open_file(path, "w") as file:
        pandas.concat(tables).to_csv(file, index=False, na_rep="nan")


def _write_parquet(path: str, chunks: Sequence[Columns]) -> None:
    """Writes a column for each output; rows that are arrays are lists."""
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    tables = []
    for chunk in chunks:
        columns = {}
        for name, values in chunk.items():
            column = pyarrow.array(values.reshape(-1))
            for axis in range(values.ndim - 1, 0, -1):
                num_lists = int(np.prod(values.shape[:axis]))
                offsets = np.arange(num_lists + 1, dtype="int32") * np.int32(values.shape[axis])
                column = pyarrow.ListArray.from_arrays(offsets, column)
            columns[name] = column
        tables.append(pyarrow.table(columns))
    with files.open_file(path, "wb") as file:
        parquet.write_table(pyarrow.concat_tables(tables), file)


_WRITERS: Mapping[str, Callable[[str, Sequence[Columns]], None]] = {
    "tfrecord": _write_tfrecord,
    "jsonl": _write_jsonl,
    "npy": _write_npy,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
FORMATS = tuple(_WRITERS)
