"""Predictions in files: shards that are whole or absent, after which a process that was killed continues.

Owns: which rows are in which shard, which rows are needed next, and which batches are computed for them.
Does not own: the formats (`formats.py`), the manifests (`manifest.py`), computing a batch (`engine/inference.py`),
which model and data (`runs/predict.py`).

Rows are in the order of the examples, one for each. A shard counts once a manifest names it. The manifest also records
where the next shard begins: the number of its first batch, and how many rows of that batch are written already. So only
rows that were in no whole shard are computed again, in the same batches as without the kill. So are those of a shard
that does not match its checksum: a process that begins reads the shards of its share once.

Each of n processes writes every n-th shard. The size of a batch determines where these begin, so all batches but the
last must have it; each process checks those that it reads.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from official_trainer import files
from official_trainer.checkpoints.manifest import size_problem
from official_trainer.inputs import DataError
from official_trainer.runs.predictions import manifest
from official_trainer.runs.predictions.formats import WRITERS, num_rows
from official_trainer.runs.predictions.manifest import ALL, PredictionsError, Share

if TYPE_CHECKING:
    from official_trainer.engine.inference import Columns

DATA_SECTIONS = ("validation_data", "train_data")
FORMATS = tuple(WRITERS)

_logger = logging.getLogger(__name__)

_SHARD_BYTES = 32 << 20
_MAX_SHARD_ROWS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted and how it is written.

    Attributes:
      output_dir: where the shards go; empty for `predictions` in the run directory.
      format: one of `FORMATS`.
      model: a file, or the folder of a SavedModel, that computes them instead of a checkpoint; empty for none.
      data: section of the task whose examples are read, one of `DATA_SECTIONS`.
      shard_size: rows in a shard; None for that of an earlier start, or as many as make about 32 MiB.
      share: which shards this process writes.
    """

    output_dir: str = ""
    format: str = "tfrecord"
    model: str = ""
    data: str = DATA_SECTIONS[0]
    shard_size: int | None = None
    share: Share = ALL


class Position(NamedTuple):
    """The next row: in batch number `batch`, counted from 0, after the first `row` rows."""

    batch: int = 0
    row: int = 0


class PredictionShards:
    """The shards of one directory, or a share of them; each is written as soon as it is full.

    The rows of the shard that is being filled are held in memory. One process at a time may write a share (`lock.py`).
    """

    def __init__(self, settings: PredictionSettings, source: Mapping[str, Any]) -> None:
        """Begins, or continues where earlier processes stopped, of which there may have been any number.

        Args:
          settings: where the shards are and how they are written; the directory is created if it is not there.
          source: what the predictions are made from: JSON values by name, which must be the same to continue.

        Raises:
          PredictionsError: the directory holds something else, or predictions that were made in another way.
        """
        share, self._directory = settings.share, settings.output_dir
        assert share.count == 1 or share.batch_size, "the size of a batch determines where a shard begins"
        wanted = manifest.begin(settings.format, settings.shard_size, source, ALL)
        manifests = manifest.read_continuable(self._directory, wanted)
        files.make_dirs(self._directory)
        whole = manifest.merge([*manifests.values()] or [wanted])
        self._known, self._end = manifest.by_number(whole["shards"]), whole["end"]
        self._batch_size = max(share.batch_size, whole["batch_size"])
        self._share = ALL if whole["done"] else share
        begun = manifest.begin(settings.format, whole["shard_size"], source, self._share)
        self._manifest = {**manifests.get(self._share.file, begun), "outputs": whole["outputs"]}
        for number, shard in self._known.items():
            self._check_begins_as_counted(number, shard)
            if "end" not in shard:
                self._end = number + 1  # it is smaller, as only the last one is
        is_others = whole["done"] and share.index > 0  # the first process compares them
        damaged = [] if is_others else self._drop_damaged()
        self._chunks: list[Columns] = []
        self._buffered = 0
        self._number, self._after = -1, Position()
        self._begin_next()
        if not self.is_done:
            if damaged or self._share.file not in manifests:
                self._manifest["done"] = False
                self._write_manifest()
            self._remove_leftovers()

    @property
    def is_done(self) -> bool:
        """Whether all rows of the share are written."""
        return self._end is not None and self._number >= self._end

    @property
    def position(self) -> Position:
        """Where the row is that is needed next; rows before it are written, or other processes write them."""
        return Position(*divmod(self.next_row, self._batch_size)) if self._batch_size else self._after

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
        while not self.is_done and self.position.batch <= batch:
            start = self.position.row if self.position.batch == batch else 0
            if start >= rows:
                break
            stop = min(rows, start + self._manifest["shard_size"] - self._buffered)
            self._chunks.append({name: values[start:stop] for name, values in columns.items()})
            self._buffered += stop - start
            self._after = Position(batch, stop) if stop < rows else Position(batch + 1)
            if self._buffered == self._manifest["shard_size"]:
                self._write_shard({"end": list(self._after)})
                self._write_manifest()

    def finish(self) -> None:
        """Writes the remaining rows as a last, smaller shard, and records that the data has ended.

        Raises:
          PredictionsError: another process predicts in another way.
          OSError: they cannot be written.
        """
        end = self._number + bool(self._buffered)
        self._end = end if self._end is None else min(end, self._end)
        if self._buffered:
            self._write_shard({})
        self._manifest["done"] = self._share.count == 1
        self._write_manifest()
        if self._manifest["done"]:
            manifest.remove_files_of_shares(self._directory)

    def _shards(self) -> list[dict[str, Any]]:
        """Returns the whole shards that the manifest of this process names, in their order."""
        if self._share.count > 1:
            shards: list[dict[str, Any]] = self._manifest["shards"]
            return shards
        return [self._known[number] for number in sorted(self._known)]

    def _begin_next(self) -> None:
        """Moves to the next shard of the share that is not there."""
        self._number += 1
        while not self._share.has(self._number) or self._number in self._known:
            self._number += 1
        if end := self._known.get(self._number - 1, {}).get("end"):
            self._after = Position(*end)

    def _write_shard(self, where: Mapping[str, Any]) -> None:
        """Writes the rows in memory; `where` is what its entry says of the place of the next row in the data."""
        several = self._manifest["format"] == "npy" and len(self._manifest["outputs"]) > 1
        suffix = "npz" if several else self._manifest["format"]
        name = f"predictions-{self._number:05d}.{suffix}"
        path = files.join(self._directory, name)
        with files.written_atomically(path) as temporary:
            WRITERS[self._manifest["format"]](temporary, self._chunks)
            checked = {"size_bytes": files.size_bytes(temporary), "sha256": files.sha256(temporary)}
        shard = {"name": name, "rows": self._buffered, **checked, **where}
        self._known[self._number] = shard
        if self._share.count > 1:
            self._manifest["shards"].append(shard)
        self._chunks, self._buffered = [], 0
        self._begin_next()

    def _remove_leftovers(self) -> None:
        """Removes the files of processes that were killed while they wrote, or before a manifest named the shard."""
        files.remove_temporaries(self._directory, self._share.file)
        for name in files.list_dir(self._directory):
            number = manifest.number_of(name)
            if number is not None and self._share.has(number) and number not in self._known:
                files.remove(files.join(self._directory, name))

    def _describe(self, columns: Columns) -> None:
        """Records type and shape of a row of each output; a size, or a shape, that differs from row to row is null."""
        for name, values in columns.items():
            dtype = "bytes" if values.dtype.kind == "O" else values.dtype.name
            described = {name: {"dtype": dtype, "shape": list(values.shape[1:])}}
            manifest.add_outputs(self._manifest["outputs"], described)
        if self._manifest["shard_size"] is None:
            row_bytes = sum(values.nbytes for values in columns.values()) // num_rows(columns)
            self._manifest["shard_size"] = max(1, min(_MAX_SHARD_ROWS, _SHARD_BYTES // max(1, row_bytes)))

    def _check_size(self, batch: int, rows: int) -> None:
        """Refuses batches whose sizes do not determine where the shards of other processes begin."""
        if not self._batch_size or (rows <= self._batch_size and batch == self.position.batch):
            return
        what = f"batch {batch} has {rows} examples"
        if batch != self.position.batch:
            what = f"batch {self.position.batch} has fewer examples and is not the last one"
        raise PredictionsError(f"global_batch_size is {self._batch_size}, but {what}, so {_ALONE}")

    def _check_begins_as_counted(self, number: int, shard: Mapping[str, Any]) -> None:
        """Refuses a shard that does not end where the size of a batch lets the next one begin."""
        end = shard.get("end")
        if not self._batch_size or end is None:
            return
        batch, row = divmod((number + 1) * self._manifest["shard_size"], self._batch_size)
        is_end_of_data = row and end == [batch + 1, 0]  # else the process that reads more examples fails
        if end != [batch, row] and not is_end_of_data:
            what = f"{shard['name']} ends in batch {end[0]} after {end[1]} examples"
            raise PredictionsError(f"global_batch_size is {self._batch_size}, but {what}, so {_ALONE}")

    def _drop_damaged(self) -> list[str]:
        """Forgets the shards of the share that are not what was written, and returns their names."""
        shards = {number: shard for number, shard in self._known.items() if self._share.has(number)}
        if shards:
            _logger.info("comparing the files that are written with their checksums: %d", len(shards))
        damaged = []
        for number, shard in shards.items():
            name, checksum = shard["name"], shard["sha256"]
            problem = size_problem(self._directory, name, shard["size_bytes"])
            if not problem and files.sha256(files.join(self._directory, name)) != checksum:
                problem = f"{name} does not match its checksum"
            if problem:
                _logger.warning("%s: %s; it is written again", self._directory, problem)
                damaged.append(self._known.pop(number)["name"])
        self._manifest["shards"] = [shard for shard in self._manifest["shards"] if shard["name"] not in damaged]
        return damaged

    def _write_manifest(self) -> None:
        if self._share.count > 1:
            self._manifest["end"] = self._end
            # Other processes may have started at the same time.
            manifest.read_continuable(self._directory, self._manifest)
        self._manifest["shards"] = self._shards()
        self._manifest["rows"] = self.rows
        manifest.write(self._directory, self._share.file, self._manifest)


_ALONE = "it is unknown where the shards of several processes begin; predict with one process, into another --output"


def predict_into(
    shards: PredictionShards, batches_from: Callable[[int], Iterator[tuple[int, Columns]]], max_rows: int | None = None
) -> None:
    """Writes all predictions that `shards` needs, which no earlier process has written.

        shards = PredictionShards(PredictionSettings(output_dir="predictions", format="npy"), {"weights": "…"})
        inference = Inference(task, model)
        predict_into(shards, lambda first: inference.batches(dataset.skip(first), first))

    Args:
      shards: where they are written.
      batches_from: returns what `Inference.batches` yields from a batch number on; later calls ask for later batches.
      max_rows: how many there are, for data that does not end there; None for all.

    Raises:
      DataError: there is no example.
    """
    end = sys.maxsize if max_rows is None else max_rows
    while not shards.is_done:
        position = shards.position
        seen, batches = shards.next_row - position.row, batches_from(position.batch)
        while seen < end and (numbered_batch := next(batches, None)) is not None:
            number, columns = numbered_batch
            shards.add(number, {name: values[: end - seen] for name, values in columns.items()})
            seen += num_rows(columns)
            if shards.is_done or shards.position.batch > number + 1:  # the next row is after a gap
                break
        else:
            break
    if shards.next_row == 0:
        raise DataError("there is nothing to predict: the data holds no example; check input_path")
    shards.finish()
