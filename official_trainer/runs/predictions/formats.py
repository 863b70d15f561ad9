"""The formats of predictions: TFRecord, JSON lines and NumPy.

Owns: writing the rows of one shard, and which outputs a format cannot hold. Does not own: which rows are in a shard
(`shards.py`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.lazy import tf
from official_trainer.runs.predictions.manifest import PredictionsError
from official_trainer.shown import first_few
from official_trainer.tracking.jsonl import encode

if TYPE_CHECKING:
    from official_trainer.engine.inference import Columns


def num_rows(columns: Columns) -> int:
    """Returns how many rows there are."""
    return len(next(iter(columns.values())))


def _write_tfrecord(path: str, chunks: Sequence[Columns]) -> None:
    """Writes `tf.train.Example`s; an output of two or more dimensions has its shape beside it, as `NAME/shape`."""
    for name, dtype in ((name, values.dtype) for chunk in chunks for name, values in chunk.items()):
        if dtype.kind not in "fiubO" or dtype.name in ("float64", "uint64"):
            raise PredictionsError(
                f"--format=tfrecord: the output '{name}' is {dtype.name}, but an Example holds only float32, int64 and "
                "bytes; use --format=npy or jsonl, or return another type from Task.predict_step"
            )
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
            columns = [_plain(name, values) for name, values in chunk.items()]
            for row in zip(*columns, strict=True):
                file.write(json.dumps(dict(zip(chunk, row, strict=True)), allow_nan=False, ensure_ascii=False) + "\n")


def _plain(name: str, values: Any) -> list[Any]:
    import numpy as np

    dtype_kind = values.dtype.kind
    if dtype_kind not in "fiubO":
        raise PredictionsError(
            f"--format=jsonl: the output '{name}' is {values.dtype.name}, which JSON cannot hold; use --format=npy"
        )
    plain: list[Any] = values.tolist()
    if dtype_kind == "f" and not np.isfinite(values).all():
        plain = _each(encode, plain)
    if dtype_kind == "O":
        try:
            plain = _each(bytes.decode, plain)
        except UnicodeDecodeError as error:
            raise PredictionsError(
                f"--format=jsonl: the output '{name}' holds bytes that are not UTF-8 text ({error}); "
                "use --format=tfrecord"
            ) from error
    return plain


def _each(function: Callable[[Any], Any], nested: Any) -> Any:
    return [_each(function, part) for part in nested] if isinstance(nested, list) else function(nested)


def _write_npy(path: str, chunks: Sequence[Columns]) -> None:
    """Writes one array `[rows, …]`, or several by name, which `numpy.load` reads."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for name in chunks[0]:
        columns = [chunk[name] for chunk in chunks]
        shapes = list(dict.fromkeys(str(list(column.shape[1:])) for column in columns))
        if len(shapes) > 1 or columns[0].dtype.kind == "O":
            what = "holds bytes" if len(shapes) == 1 else f"has rows of the shapes {first_few(shapes)}"
            raise PredictionsError(
                f"--format=npy: the output '{name}' {what}, which a NumPy array cannot hold; use "
                "--format=tfrecord or jsonl"
            )
        arrays[name] = np.concatenate(columns)
    with files.open_file(path, "wb") as file:
        np.save(file, *arrays.values()) if len(arrays) == 1 else np.savez(file, **arrays)


WRITERS: Mapping[str, Callable[[str, Sequence[Columns]], None]] = {
    "tfrecord": _write_tfrecord,
    "jsonl": _write_jsonl,
    "npy": _write_npy,
}
