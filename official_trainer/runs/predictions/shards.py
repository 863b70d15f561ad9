"""Predictions in files: shards that are whole or not there, from which a process that was killed goes on.

Owns: the formats (TFRecord, JSON lines, NumPy), which rows are in which shard, and which rows are wanted next.
Does not own: what is said of them beside them (`manifest.py`), what is predicted (`engine/inference.py`), from
which model and data (`runs/predict.py`).

Rows are in the order of the examples, one for each. A shard counts once a manifest names it. Beside it stands where
the next one begins: the number of its first batch, and how many rows of that are written already. So only rows that
were in no whole shard are computed again, in the same batches as without the kill.

Of several processes each writes every so many-th shard. Where these begin follows from the size of a batch, so all
batches but the last have to have it; each process holds those it reads to that.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.engine.inference import Columns
from official_trainer.errors import first_few
from official_trainer.lazy import tf
from official_trainer.runs.predictions import manifest as prediction_manifest
from official_trainer.runs.predictions.manifest import ALL, Manifest, PredictionsError, Share, number_of
from official_trainer.tracking.jsonl import encode

DATA_SECTIONS = ("validation_data", "train_data")

_SHARD_BYTES = 32 << 20
_MAX_SHARD_ROWS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted and how it is written.

    Attributes:
      output_dir: where the shards go; empty for `predictions` in the run directory.
      format: one of `FORMATS`.
      data: section of the task whose examples are read, one of `DATA_SECTIONS`.
      shard_size: rows in a shard; None for what an earlier start took, or as many as make about 32 MiB.
      share: of the shards, that this process writes.
    """

    output_dir: str = ""
    format: str = "tfrecord"
    data: str = DATA_SECTIONS[0]
    shard_size: int | None = None
    share: Share = ALL


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
    """The shards of one directory, or a share of them; each is written at once when it is full.

    The rows of the shard that is being filled are held in memory. One process at a time may write a share (`lock.py`).

    Attributes:
      position: the row that is wanted next; rows before it are written, or others write them.
    """

    def __init__(
        self,
        directory: str,
        *,
        source: Mapping[str, Any],
        format: str = "tfrecord",
        shard_size: int | None = None,
        share: Share = ALL,
    ) -> None:
        """Begins, or goes on where earlier processes stopped, however many these were.

        Args:
          directory: where the shards are; made if it is not there.
          source: what the predictions are made from: JSON values by name, which have to be the same to go on.
          format: one of `FORMATS`.
          shard_size: rows in a shard; None for what an earlier process took, or as many as make about 32 MiB.
          share: which shards to write.

        Raises:
          PredictionsError: the directory holds something else, or predictions that were made in another way.
        """
        assert share.count == 1 or share.batch_size, "where a shard begins follows from the size of a batch"
        self._directory, self._share = directory, share
        self._chunks, self._buffered = list[Columns](), 0
        found = prediction_manifest.check(directory, source=source, format=format, shard_size=shard_size)
        files.make_dirs(directory)
        size = next((other["shard_size"] for other in found.values()), shard_size)
        self._manifest: Manifest = found.get(share.file) or prediction_manifest.begin(source, format, size, share)
        self._known = prediction_manifest.shards_of(found)
        self._end = prediction_manifest.end_of(found)
        sizes = [other.get("batch_size", 0) for other in found.values()]
        self._batch_size = max([share.batch_size, *sizes])
        self._has_all = any(other["done"] for other in found.values())
        for number in sorted(self._known):
            self._check_is_there(self._known[number])
            self._check_begins_as_counted(number)
        if share.count == 1:
            for other in found.values():
                prediction_manifest.add_outputs(self._manifest["outputs"], other["outputs"])
        self._number = -1
        self.position = Position()
        self._go_on()
        if not self.is_done:
            if share.file not in found:
                self._write_manifest()
            self._remove_leftovers()

    @property
    def is_done(self) -> bool:
        """Whether all rows of the share are written."""
        return self._has_all or (self._end is not None and self._number >= self._end)

    @property
    def is_empty(self) -> bool:
        """Whether no row is wanted but the first: none was ever added, or found."""
        return self.next_row == 0

    @property
    def next_row(self) -> int:
        """The number of the row that is wanted next, counted from the first example."""
        return self._number * self._manifest["shard_size"] + self._buffered if self._manifest["shard_size"] else 0

    @property
    def rows(self) -> int:
        """Rows in whole shards of the share."""
        return sum(shard["rows"] for shard in self._shards())

    @property
    def count(self) -> int:
        """Whole shards of the share."""
        return len(self._shards())

    def add(self, batch: int, columns: Columns) -> None:
        """Takes the rows of batch number `batch` that are wanted.

        Raises:
          PredictionsError: the format cannot hold them, or several processes meet batches that differ in size.
          OSError: they cannot be written; what was written before stays.
        """
        rows = _length(columns)
        self._check_size(batch, rows)
        self._describe(columns)
        while (start := self._first_wanted(batch)) < rows:
            stop = min(rows, start + self._manifest["shard_size"] - self._buffered)
            self._chunks.append({name: values[start:stop] for name, values in columns.items()})
            self._buffered += stop - start
            after = Position(batch, stop) if stop < rows else Position(batch + 1)
            if self._buffered == self._manifest["shard_size"]:
                self._write_shard(after)
                self._go_on()
            else:
                self.position = after if not self._batch_size else Position(*divmod(self.next_row, self._batch_size))

    def finish(self) -> None:
        """Says that the data has ended, once the rows that are left are written as a last, smaller shard.

        Raises:
          PredictionsError: another process predicts in another way.
          OSError: they cannot be written.
        """
        end = self._number + 1 if self._buffered else self._number
        self._end = end if self._end is None else min(end, self._end)
        if self._buffered:
            self._write_shard(None)
            self._go_on()
        if self._share.count == 1:
            self._has_all = True
        self._write_manifest()
        if self._has_all:
            prediction_manifest.remove_files_of_shares(self._directory)

    def _shards(self) -> list[dict[str, Any]]:
        """Returns the whole shards of which this process says that they are there, in their order."""
        if self._share.count > 1 and not self._has_all:
            shards: list[dict[str, Any]] = self._manifest["shards"]
            return shards
        gap = next(number for number in range(len(self._known) + 1) if number not in self._known)
        return [self._known[number] for number in range(gap)]

    def _first_wanted(self, batch: int) -> int:
        """Returns the first row of a batch that is wanted."""
        is_later = self.position.batch > batch or self.is_done
        return sys.maxsize if is_later else self.position.row if self.position.batch == batch else 0

    def _go_on(self) -> None:
        """Turns to the next shard of the share that is not there."""
        self._number += 1
        while not self._share.has(self._number) or self._number in self._known:
            self._number += 1
        self.position = self._start_of(self._number)

    def _start_of(self, number: int) -> Position:
        size = self._manifest["shard_size"]
        if self._batch_size:
            return Position(*divmod(number * size, self._batch_size)) if size else Position()
        return Position(*self._known[number - 1].get("end", ())) if number else Position()

    def _write_shard(self, end: Position | None) -> None:
        several = self._manifest["format"] == "npy" and len(self._manifest["outputs"]) > 1
        suffix = "npz" if several else self._manifest["format"]
        name = f"predictions-{self._number:05d}.{suffix}"
        path = files.join(self._directory, name)
        with files.written_atomically(path) as temporary:
            _WRITERS[self._manifest["format"]](temporary, self._chunks)
        shard = {"name": name, "rows": self._buffered, "size_bytes": files.size_bytes(path)}
        if end is not None:
            shard["end"] = [end.batch, end.row]
        self._known[self._number] = shard
        if self._share.count > 1:
            self._manifest["shards"].append(shard)
        self._chunks, self._buffered = [], 0
        if end is not None:
            self._write_manifest()

    def _remove_leftovers(self) -> None:
        """Removes what processes left that were killed while they wrote, or before a manifest had it."""
        files.remove_temporaries(self._directory, self._share.file)
        for name in files.list_dir(self._directory):
            number = number_of(name)
            if number is not None and self._share.has(number) and number not in self._known:
                files.remove(files.join(self._directory, name))

    def _describe(self, columns: Columns) -> None:
        """Takes type and shape of a row of each output; a size, or a shape, that differs from row to row is null."""
        for name, values in columns.items():
            dtype = "bytes" if values.dtype.kind == "O" else values.dtype.name
            described = {name: {"dtype": dtype, "shape": list(values.shape[1:])}}
            prediction_manifest.add_outputs(self._manifest["outputs"], described)
        if self._manifest["shard_size"] is None:
            row_bytes = sum(values.nbytes for values in columns.values()) // _length(columns)
            self._manifest["shard_size"] = max(1, min(_MAX_SHARD_ROWS, _SHARD_BYTES // max(1, row_bytes)))
            self.position = self._start_of(self._number)

    def _check_size(self, batch: int, rows: int) -> None:
        """Refuses batches by which nobody can tell where the shards of other processes begin."""
        if not self._batch_size or (rows <= self._batch_size and batch == self.position.batch):
            return
        what = f"batch {batch} has {rows} examples"
        if batch != self.position.batch:
            what = f"batch {self.position.batch} has fewer examples than that, and is not the last"
        raise PredictionsError(f"global_batch_size is {self._batch_size}, but {what}, so {_ALONE}")

    def _check_begins_as_counted(self, number: int) -> None:
        """Refuses a shard behind which, by the size of a batch, another one does not begin where it does."""
        end = self._known[number].get("end")
        if not self._batch_size or end is None:
            return
        batch, row = divmod((number + 1) * self._manifest["shard_size"], self._batch_size)
        is_end_of_data = row and end == [batch + 1, 0]  # else the next one, who meets more examples, says so
        if end != [batch, row] and not is_end_of_data:
            name = self._known[number]["name"]
            what = f"{name} ends in batch {end[0]} after {end[1]} examples"
            raise PredictionsError(f"global_batch_size is {self._batch_size}, but {what}, so {_ALONE}")

    def _check_is_there(self, shard: Mapping[str, Any]) -> None:
        path = files.join(self._directory, shard["name"])
        what = "is not there"
        if files.exists(path):
            size = files.size_bytes(path)
            what = "" if size == shard["size_bytes"] else f"has {size} bytes, not {shard['size_bytes']}"
        if what:
            raise PredictionsError(
                f"{path} {what}, as the manifest beside it says it should be; put it back, or name another --output to "
                "predict anew"
            )

    def _write_manifest(self) -> None:
        manifest = self._manifest
        if self._share.count > 1:
            manifest["end"] = self._end
            agreed = {name: manifest[name] for name in ("source", "format", "shard_size")}
            prediction_manifest.check(self._directory, **agreed)  # others may have started at the same time
        else:
            manifest["shards"], manifest["done"] = self._shards(), self._has_all
        manifest["rows"] = self.rows
        prediction_manifest.write(self._directory, self._share.file, manifest)


_ALONE = "several processes cannot tell where their shards begin; predict with one process, into another --output"


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))
