"""Predictions in files: shards that are whole or not there, and a manifest from which a run that was killed goes on.

Owns: the formats (TFRecord, JSON lines, NumPy), which rows are in which shard, `predictions.json`, and the refusal to
go on with predictions that were made in another way.
Does not own: what is predicted (`inference.py`), from which model and data (`predicting.py`).

Rows are in the order of the examples, one for each. A shard counts once the manifest names it. Beside it stands where
the next one begins: the number of its first batch, and how many rows of that are written already. So only rows that
were in no whole shard are computed again, in the same batches as without the kill.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, first_few
from official_trainer.lazy import tf
from official_trainer.tracking.jsonl import encode

MANIFEST = "predictions.json"

DATA_SECTIONS = ("validation_data", "train_data")

_FORMAT_VERSION = 1
_SHARD_BYTES = 32 << 20
_MAX_SHARD_ROWS = 100_000

Columns = Mapping[str, Any]
"""Some rows: arrays `[rows, …]` by the names of the outputs."""


class PredictionsError(UserError, ValueError):
    """A directory, or outputs, that predictions cannot be written to or made of."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted and how it is written.

    Attributes:
      output_dir: where the shards go; empty for `predictions` in the run directory.
      format: one of `FORMATS`.
      data: section of the task whose examples are read, one of `DATA_SECTIONS`.
      shard_size: rows in a shard; None for what an earlier start took, or as many as make about 32 MiB.
    """

    output_dir: str = ""
    format: str = "tfrecord"
    data: str = DATA_SECTIONS[0]
    shard_size: int | None = None


def _write_tfrecord(path: str, chunks: Sequence[Columns]) -> None:
    """Writes `tf.train.Example`s; an output of two or more dimensions has its shape beside it, as `NAME/shape`."""
    with tf.io.TFRecordWriter(path) as writer:
        for chunk in chunks:
            for row in _rows({name: _for_example(name, values) for name, values in chunk.items()}):
                writer.write(tf.train.Example(features=tf.train.Features(feature=row)).SerializeToString())


def _for_example(name: str, values: Any) -> Any:
    kind = values.dtype.kind
    if kind not in "fiubO" or values.dtype.name in ("float64", "uint64"):
        raise PredictionsError(
            f"--format=tfrecord: the output '{name}' is {values.dtype.name}, and an Example holds float32, int64 and "
            "bytes; use --format=npy or jsonl, or return another type from Task.inference_step"
        )
    return values


def _rows(chunk: Columns) -> Iterator[dict[str, Any]]:
    """Yields the features of each row."""
    for number in range(_length(chunk)):
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
    """Writes an object a line; numbers that are not finite become words that `float` takes."""
    with files.open_file(path, "w") as file:
        for chunk in chunks:
            columns = [_plain(name, values) for name, values in chunk.items()]
            for row in zip(*columns, strict=True):
                file.write(json.dumps(dict(zip(chunk, row, strict=True)), allow_nan=False, ensure_ascii=False) + "\n")


def _plain(name: str, values: Any) -> list[Any]:
    import numpy as np

    kind = values.dtype.kind
    if kind not in "fiubO":
        raise PredictionsError(
            f"--format=jsonl: the output '{name}' is {values.dtype.name}, which JSON has no word for; use --format=npy"
        )
    plain: list[Any] = values.tolist()
    if kind == "f" and not np.isfinite(values).all():
        plain = _each(encode, plain)
    if kind == "O":
        try:
            plain = _each(bytes.decode, plain)
        except UnicodeDecodeError as error:
            raise PredictionsError(
                f"--format=jsonl: the output '{name}' holds bytes that are no UTF-8 text ({error}); "
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
        parts = [chunk[name] for chunk in chunks]
        shapes = list(dict.fromkeys(str(list(part.shape[1:])) for part in parts))
        if len(shapes) > 1 or parts[0].dtype.kind == "O":
            what = "holds bytes" if len(shapes) == 1 else f"has rows of the shapes {first_few(shapes)}"
            raise PredictionsError(
                f"--format=npy: the output '{name}' {what}, which no plain array holds; use --format=tfrecord or jsonl"
            )
        arrays[name] = np.concatenate(parts)
    with files.open_file(path, "wb") as file:
        np.save(file, *arrays.values()) if len(arrays) == 1 else np.savez(file, **arrays)


_WRITERS: Mapping[str, Callable[[str, Sequence[Columns]], None]] = {
    "tfrecord": _write_tfrecord,
    "jsonl": _write_jsonl,
    "npy": _write_npy,
}

FORMATS = tuple(_WRITERS)


@dataclasses.dataclass(frozen=True)
class Position:
    """Which row comes next: of batch number `batch`, counted from 0, after the first `row` rows."""

    batch: int = 0
    row: int = 0


class PredictionShards:
    """The shards of one directory; rows are added in order, and each full shard is written at once.

    The rows of the shard that is being filled are held in memory. One process at a time may write (`lock.py`).
    """

    def __init__(
        self, directory: str, *, source: Mapping[str, Any], format: str = "tfrecord", shard_size: int | None = None
    ) -> None:
        """Begins, or goes on where an earlier process stopped.

        Args:
          directory: where the shards are; made if it is not there.
          source: what the predictions are made from: JSON values by name, which have to be the same to go on.
          format: one of `FORMATS`.
          shard_size: rows in a shard; None for what an earlier process took, or as many as make about 32 MiB.

        Raises:
          PredictionsError: the directory holds something else, or predictions that were made in another way.
        """
        self._directory, self._chunks, self._buffered = directory, list[Columns](), 0
        found = check(directory, source=source, format=format, shard_size=shard_size)
        files.make_dirs(directory)
        self._manifest: dict[str, Any] = found or {
            "format_version": _FORMAT_VERSION,
            "format": format,
            "shard_size": shard_size,
            "source": dict(source),
            "outputs": {},
            "rows": 0,
            "done": False,
            "shards": [],
        }
        self._shards: list[dict[str, Any]] = self._manifest["shards"]
        for shard in self._shards:
            self._check_is_there(shard)
        self.position = Position(*(self._shards[-1].get("end", ()) if self._shards else ()))
        if found is None:
            self._write_manifest()
        if not self.is_done:
            self._remove_leftovers()

    @property
    def is_done(self) -> bool:
        """Whether all rows are written."""
        return bool(self._manifest["done"])

    @property
    def is_empty(self) -> bool:
        """Whether no row was ever added."""
        return not (self.rows or self._buffered)

    @property
    def rows(self) -> int:
        """Rows in whole shards."""
        return int(self._manifest["rows"])

    @property
    def count(self) -> int:
        """Whole shards."""
        return len(self._shards)

    def add(self, batch: int, columns: Columns) -> None:
        """Takes the rows of batch number `batch`; those that an earlier process has written are left out.

        Raises:
          PredictionsError: the format cannot hold them.
          OSError: they cannot be written; what was written before stays.
        """
        start = self.position.row if batch == self.position.batch else 0
        rows = _length(columns)
        self._describe(columns)
        while start < rows:
            stop = min(rows, start + self._manifest["shard_size"] - self._buffered)
            self._chunks.append({name: values[start:stop] for name, values in columns.items()})
            self._buffered += stop - start
            start = stop
            if self._buffered == self._manifest["shard_size"]:
                self._write_shard(Position(batch, stop) if stop < rows else Position(batch + 1))
                self._write_manifest()

    def finish(self) -> None:
        """Writes the rows that are left as a last, smaller shard, and says that all is there."""
        if self._buffered:
            self._write_shard(None)
        self._manifest["done"] = True
        self._write_manifest()

    def _write_shard(self, end: Position | None) -> None:
        several = self._manifest["format"] == "npy" and len(self._manifest["outputs"]) > 1
        name = self._next_name("npz" if several else self._manifest["format"])
        path = files.join(self._directory, name)
        with files.written_atomically(path) as temporary:
            _WRITERS[self._manifest["format"]](temporary, self._chunks)
        shard = {"name": name, "rows": self._buffered, "size_bytes": files.size_bytes(path)}
        if end is not None:
            shard["end"] = [end.batch, end.row]
            self.position = end
        self._shards.append(shard)
        self._manifest["rows"] += self._buffered
        self._chunks, self._buffered = [], 0

    def _next_name(self, suffix: str) -> str:
        return f"predictions-{len(self._shards):05d}.{suffix}"

    def _remove_leftovers(self) -> None:
        """Removes what a process left that was killed while it wrote a shard or before the manifest had it."""
        unnamed = [self._next_name(suffix) for suffix in (*FORMATS, "npz")]
        files.remove_temporaries(self._directory, MANIFEST, *unnamed)
        for name in unnamed:
            files.remove(files.join(self._directory, name))

    def _describe(self, columns: Columns) -> None:
        """Takes type and shape of a row of each output; a size, or a shape, that differs from row to row is null."""
        described = self._manifest["outputs"]
        for name, values in columns.items():
            dtype = "bytes" if values.dtype.kind == "O" else values.dtype.name
            shape = list(values.shape[1:])
            before = described.setdefault(name, {"dtype": dtype, "shape": shape})["shape"]
            described[name]["shape"] = _common_shape(before, shape)
        if self._manifest["shard_size"] is None:
            row_bytes = sum(values.nbytes for values in columns.values()) // _length(columns)
            self._manifest["shard_size"] = max(1, min(_MAX_SHARD_ROWS, _SHARD_BYTES // max(1, row_bytes)))

    def _check_is_there(self, shard: Mapping[str, Any]) -> None:
        path = files.join(self._directory, shard["name"])
        what = "is not there"
        if files.exists(path):
            size = files.size_bytes(path)
            what = "" if size == shard["size_bytes"] else f"has {size} bytes, not {shard['size_bytes']}"
        if what:
            raise PredictionsError(
                f"{path} {what}, as {MANIFEST} beside it says it should be; put it back, or name another --output to "
                "predict anew"
            )

    def _write_manifest(self) -> None:
        text = json.dumps(self._manifest, indent=1) + "\n"
        files.write_text_atomically(files.join(self._directory, MANIFEST), text)


def check(
    directory: str, *, source: Mapping[str, Any], format: str, shard_size: int | None = None, is_whole: bool = True
) -> dict[str, Any] | None:
    """Returns the manifest of predictions that can be gone on with; None if there are none yet. Changes nothing.

    Args:
      directory: where they are, or will be.
      source: what they are made from.
      format: one of `FORMATS`.
      shard_size: rows in a shard; None takes any.
      is_whole: whether `source` is all of it; else names that are not in it are not compared.

    Raises:
      PredictionsError: the directory holds something else, or predictions that were made in another way.
    """
    found = read(directory)
    if found is None or not (found["shards"] or found["done"]):
        return None
    before = {"format": found["format"], "shard_size": found["shard_size"], **found["source"]}
    wanted = {"format": format, "shard_size": shard_size or found["shard_size"], **source}
    names = {**wanted, **before} if is_whole else wanted
    if differing := [name for name in names if wanted.get(name) != before.get(name)]:
        raise PredictionsError("\n".join(_refusal(directory, differing, before, wanted)))
    return found


def read(directory: str) -> dict[str, Any] | None:
    """Returns the manifest of the predictions in a directory, or None if there are none yet.

    Raises:
      PredictionsError: it cannot be read, or the directory holds something else.
    """
    path = files.join(directory, MANIFEST)
    try:
        found = json.loads(files.read_text(path))
        if (version := found["format_version"]) > _FORMAT_VERSION:
            raise ValueError(f"its format version is {version}, and this official-trainer reads {_FORMAT_VERSION}")
        return {**found, **{name: found[name] for name in ("format", "shard_size", "source", "shards", "done")}}
    except FileNotFoundError:
        strangers = [name for name in files.list_dir(directory) if not name.startswith((".", f"{MANIFEST}.tmp-"))]
        if strangers:
            raise PredictionsError(
                f"--output={directory} holds {first_few(strangers)}, but no predictions of this program; "
                "name a new or empty directory"
            ) from None
        return None
    except NotADirectoryError as error:
        raise PredictionsError(f"--output={directory} is no directory; name another") from error
    except (ValueError, TypeError, KeyError) as error:
        raise PredictionsError(f"{path} cannot be read ({error}); name another --output to predict anew") from error


_FLAGS = ("format", "shard_size", "data", "checkpoint", "experiment")


def _refusal(
    directory: str, differing: Sequence[str], before: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[str]:
    yield f"--output={directory} holds predictions that were made in another way, and one directory has one kind"
    undo = []
    for name in differing:
        old, new = (_shown(values[name]) if name in values else "not set" for values in (before, wanted))
        yield f"  {f'--{name}' if name in _FLAGS else name}: {old} -> {new}"
        if name in _FLAGS:
            undo.append(f"--{name}={shlex.quote(old)}")
        elif "." in name and name in before and not name.startswith("gin "):
            undo.append(f"--set {shlex.quote(f'{name}={old}')}")
    if len(undo) == len(differing):
        yield f"To go on with those, give {' '.join(undo)}"
    yield "To predict anew, name another --output"


def _common_shape(left: list[int | None] | None, right: list[int]) -> list[int | None] | None:
    if left is None or len(left) != len(right):
        return None
    return [a if a == b else None for a, b in zip(left, right, strict=True)]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))
