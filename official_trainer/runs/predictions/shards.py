"""Predictions in files: shards that are whole or absent, after which a process that was killed continues.

Owns: which rows are in which shard, which rows are needed next, and which batches are computed for them.
Does not own: the formats (`formats.py`), the manifests (`manifest.py`), computing a batch (`engine/inference.py`),
which model and data (`runs/predict.py`).

Rows are in the order of the examples, one for each. A shard counts once a manifest names it. The manifest also records
where the next shard begins: the number of its first batch, and how many rows of that batch are written already. So only
rows that were in no whole shard are computed again, in the same batches as without the kill.

Each of n processes writes every n-th shard. The size of a batch determines where these begin, so all batches but the
last must have it; each process checks those that it reads.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer import files
from official_trainer.checkpoints.manifest import size_problem
from official_trainer.engine.inference import Columns
from official_trainer.inputs import DataError
from official_trainer.runs.predictions import manifest as prediction_manifest
from official_trainer.runs.predictions.formats import WRITERS, num_rows
from official_trainer.runs.predictions.manifest import ALL, Manifest, PredictionsError, Share, number_of

DATA_SECTIONS = ("validation_data", "train_data")
FORMATS = tuple(WRITERS)

_SHARD_BYTES = 32 << 20
_MAX_SHARD_ROWS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted and how it is written.

    Attributes:
      output_dir: where the shards go; empty for `predictions` in the run directory.
      format: one of `FORMATS`.
      data: section of the task whose examples are read, one of `DATA_SECTIONS`.
      shard_size: rows in a shard; None for that of an earlier start, or as many as make about 32 MiB.
      share: which shards this process writes.
    """

    output_dir: str = ""
    format: str = "tfrecord"
    data: str = DATA_SECTIONS[0]
    shard_size: int | None = None
    share: Share = ALL


@dataclasses.dataclass(frozen=True)
class Position:
    """The next row: in batch number `batch`, counted from 0, after the first `row` rows."""

    batch: int = 0
    row: int = 0


class PredictionShards:
    """The shards of one directory, or a share of them; each is written as soon as it is full.

    The rows of the shard that is being filled are held in memory. One process at a time may write a share (`lock.py`).

    Attributes:
      position: the row that is needed next; rows before it are written, or other processes write them.
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
        """Begins, or continues where earlier processes stopped, of which there may have been any number.

        Args:
          directory: where the shards are; created if it is not there.
          source: what the predictions are made from: JSON values by name, which must be the same to continue.
          format: one of `FORMATS`.
          shard_size: rows in a shard; None for that of an earlier process, or as many as make about 32 MiB.
          share: which shards to write.

        Raises:
          PredictionsError: the directory holds something else, or predictions that were made in another way.
        """
        assert share.count == 1 or share.batch_size, "the size of a batch determines where a shard begins"
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
        self._begin_next()
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
        """Whether the first row is needed next: none was ever added, or found."""
        return self.next_row == 0

    @property
    def next_row(self) -> int:
        """The number of the row that is needed next, counted from the first example."""
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
        """Adds the rows of batch number `batch` that are needed.

        Raises:
          PredictionsError: the format cannot hold them, or several processes predict and batches differ in size.
          OSError: they cannot be written; what was written before stays.
        """
        rows = num_rows(columns)
        self._check_size(batch, rows)
        self._describe(columns)
        while (start := self._first_needed(batch)) < rows:
            stop = min(rows, start + self._manifest["shard_size"] - self._buffered)
            self._chunks.append({name: values[start:stop] for name, values in columns.items()})
            self._buffered += stop - start
            after = Position(batch, stop) if stop < rows else Position(batch + 1)
            if self._buffered == self._manifest["shard_size"]:
                self._write_shard(after)
                self._begin_next()
            else:
                self.position = after if not self._batch_size else Position(*divmod(self.next_row, self._batch_size))

    def finish(self) -> None:
        """Writes the remaining rows as a last, smaller shard, and records that the data has ended.

        Raises:
          PredictionsError: another process predicts in another way.
          OSError: they cannot be written.
        """
        end = self._number + 1 if self._buffered else self._number
        self._end = end if self._end is None else min(end, self._end)
        if self._buffered:
            self._write_shard(None)
            self._begin_next()
        if self._share.count == 1:
            self._has_all = True
        self._write_manifest()
        if self._has_all:
            prediction_manifest.remove_files_of_shares(self._directory)

    def _shards(self) -> list[dict[str, Any]]:
        """Returns the whole shards that the manifest of this process names, in their order."""
        if self._share.count > 1 and not self._has_all:
            shards: list[dict[str, Any]] = self._manifest["shards"]
            return shards
        gap = next(number for number in range(len(self._known) + 1) if number not in self._known)
        return [self._known[number] for number in range(gap)]

    def _first_needed(self, batch: int) -> int:
        """Returns the first row of a batch that is needed."""
        is_later = self.position.batch > batch or self.is_done
        return sys.maxsize if is_later else self.position.row if self.position.batch == batch else 0

    def _begin_next(self) -> None:
        """Moves to the next shard of the share that is not there."""
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
            WRITERS[self._manifest["format"]](temporary, self._chunks)
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
        """Removes the files of processes that were killed while they wrote, or before a manifest named the shard."""
        files.remove_temporaries(self._directory, self._share.file)
        for name in files.list_dir(self._directory):
            number = number_of(name)
            if number is not None and self._share.has(number) and number not in self._known:
                files.remove(files.join(self._directory, name))

    def _describe(self, columns: Columns) -> None:
        """Records type and shape of a row of each output; a size, or a shape, that differs from row to row is null."""
        for name, values in columns.items():
            dtype = "bytes" if values.dtype.kind == "O" else values.dtype.name
            described = {name: {"dtype": dtype, "shape": list(values.shape[1:])}}
            prediction_manifest.add_outputs(self._manifest["outputs"], described)
        if self._manifest["shard_size"] is None:
            row_bytes = sum(values.nbytes for values in columns.values()) // num_rows(columns)
            self._manifest["shard_size"] = max(1, min(_MAX_SHARD_ROWS, _SHARD_BYTES // max(1, row_bytes)))
            self.position = self._start_of(self._number)

    def _check_size(self, batch: int, rows: int) -> None:
        """Refuses batches whose sizes do not determine where the shards of other processes begin."""
        if not self._batch_size or (rows <= self._batch_size and batch == self.position.batch):
            return
        what = f"batch {batch} has {rows} examples"
        if batch != self.position.batch:
            what = f"batch {self.position.batch} has fewer examples and is not the last one"
        raise PredictionsError(f"global_batch_size is {self._batch_size}, but {what}, so {_ALONE}")

    def _check_begins_as_counted(self, number: int) -> None:
        """Refuses a shard that does not end where the size of a batch lets the next one begin."""
        end = self._known[number].get("end")
        if not self._batch_size or end is None:
            return
        batch, row = divmod((number + 1) * self._manifest["shard_size"], self._batch_size)
        is_end_of_data = row and end == [batch + 1, 0]  # else the process that reads more examples fails
        if end != [batch, row] and not is_end_of_data:
            name = self._known[number]["name"]
            what = f"{name} ends in batch {end[0]} after {end[1]} examples"
            raise PredictionsError(f"global_batch_size is {self._batch_size}, but {what}, so {_ALONE}")

    def _check_is_there(self, shard: Mapping[str, Any]) -> None:
        if problem := size_problem(self._directory, shard["name"], shard["size_bytes"]):
            raise PredictionsError(
                f"{self._directory}: {problem}, but the manifest of these predictions names it; put the file back, or "
                "name another --output to predict from the start"
            )

    def _write_manifest(self) -> None:
        manifest = self._manifest
        if self._share.count > 1:
            manifest["end"] = self._end
            agreed = {name: manifest[name] for name in ("source", "format", "shard_size")}
            prediction_manifest.check(self._directory, **agreed)  # other processes may have started at the same time
        else:
            manifest["shards"], manifest["done"] = self._shards(), self._has_all
        manifest["rows"] = self.rows
        prediction_manifest.write(self._directory, self._share.file, manifest)


_ALONE = "it is unknown where the shards of several processes begin; predict with one process, into another --output"


def predict_into(
    shards: PredictionShards,
    batches_from: Callable[[int], Iterator[tuple[int, Columns]]],
    *,
    max_rows: int | None = None,
    on_batch: Callable[[], object] = lambda: None,
) -> None:
    """Writes all predictions that `shards` needs, which no earlier process has written.

        shards = PredictionShards("predictions", source={"weights": "…"}, format="npy")
        inference = Inference(task, model)
        predict_into(shards, lambda first: inference.batches(dataset.skip(first), first))

    Args:
      shards: where they are written.
      batches_from: returns what `Inference.batches` yields from a batch number on; later calls ask for later batches.
      max_rows: how many there are, for data that does not end there; None for all.
      on_batch: called after each batch.

    Raises:
      DataError: there is no example.
    """
    has_more = True
    while has_more and not shards.is_done:
        position, has_more = shards.position, False
        batches = batches_from(position.batch)
        for number, columns in _until(max_rows, batches, shards.next_row - position.row):
            shards.add(number, columns)
            on_batch()
            if has_more := shards.is_done or shards.position.batch > number + 1:  # the next row is after a gap
                break
    if shards.is_empty:
        raise DataError("there is nothing to predict: the data holds no example; check input_path")
    shards.finish()


def _until(max_rows: int | None, batches: Iterator[tuple[int, Columns]], seen: int) -> Iterator[tuple[int, Columns]]:
    """Yields batches up to row number `max_rows`; `seen` rows are in those before."""
    while max_rows is None or seen < max_rows:
        if (found := next(batches, None)) is None:
            return
        number, columns = found
        left = None if max_rows is None else max_rows - seen
        seen += num_rows(columns)
        yield number, {name: values[:left] for name, values in columns.items()}
