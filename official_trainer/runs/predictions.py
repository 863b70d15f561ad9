"""Predictions in files: the same batches in each, whole or absent; a file that is there is done.

Owns: which batches are in which file, the manifest `predictions.json`, and the refusal to continue predictions that
were made with other settings.
Does not own: the formats (`prediction_formats.py`), what the outputs are computed from (`predict.py`).

Rows are in the order of the examples, one for each. File n holds k batches, from number n·k on; the last file may hold
fewer. Each of w processes writes every w-th file, under a temporary name, and renames it. A process that begins writes
the files of its share that are not there, however many processes there were before. The manifest has the settings,
which each process compares with its own before it renames a file. A process whose data has ended knows how many files
there are, and the one that sees all of them records that in the manifest.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.config.compare import is_same
from official_trainer.runs import prediction_formats
from official_trainer.runs.prediction_formats import FORMATS, PredictionsError, num_rows
from official_trainer.shown import first_few

if TYPE_CHECKING:
    from official_trainer.engine.inference import Columns

DATA_SECTIONS = ("validation_data", "train_data")
MANIFEST = "predictions.json"

_FORMAT_VERSION = 1
_FLAGS = ("format", "shard_size", "data", "checkpoint", "experiment")
_FILE = re.compile(r"predictions-(\d{5,})\.[a-z]+")
_FILE_BYTES = 32 << 20
_FILE_ROWS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Which files a process writes: number `index` and every `count`-th after it."""

    index: int = 0
    count: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted and how it is written.

    Attributes:
      output_dir: where the files go; empty for `predictions` in the run directory.
      format: one of `FORMATS`.
      data: section of the task whose examples are read, one of `DATA_SECTIONS`.
      shard_size: rows in a file, rounded up to whole batches; None for that of an earlier start, or about 32 MiB.
      share: which files this process writes.
    """

    output_dir: str = ""
    format: str = "tfrecord"
    data: str = DATA_SECTIONS[0]
    shard_size: int | None = None
    share: Share = Share()


class PredictionFiles:
    """The files of one directory, of which this process writes its share. One process at a time may write a share.

    Attributes:
      share: which files are written.
      rows: how many rows this object has written.
    """

    def __init__(self, directory: str, settings: Mapping[str, Any], *, batch_size: int, share: Share = Share()) -> None:
        """Begins, or continues where earlier processes stopped; nothing is written before the first file is whole.

        Args:
          directory: where the files are; it is there.
          settings: what decides about the predictions: JSON values by name, with `format`, and `shard_size`, a multiple
            of `batch_size` or None for any.
          batch_size: examples in a batch.
          share: which files are written.

        Raises:
          PredictionsError: the directory holds something else, or predictions that were made with other settings.
        """
        before = read_continuable(directory, settings)
        self._directory, self.share, self._batch_size = directory, share, batch_size
        self._settings = dict(settings if before is None else before["settings"])
        self._num_files: int | None = None if before is None else before["num_files"]
        self._there = _numbers(directory)
        self.rows = 0

    @property
    def num_there(self) -> int:
        """How many files are there, of all shares."""
        return len(self._there)

    @property
    def batches_per_file(self) -> int | None:
        """How many batches a file holds; None before `choose_size`."""
        rows: int | None = self._settings["shard_size"]
        return None if rows is None else rows // self._batch_size

    def choose_size(self, first: Sequence[Columns]) -> int:
        """Returns how many batches a file is to hold, by the size of the outputs of the first one, if there is one."""
        row_bytes = [sum(values.nbytes for values in columns.values()) // num_rows(columns) for columns in first]
        rows = min(_FILE_ROWS, _FILE_BYTES // max([1, *row_bytes]))
        batches = max(1, rows // self._batch_size)
        self._settings["shard_size"] = batches * self._batch_size
        return batches

    def next_number(self, start: int = 0) -> int | None:
        """Returns the first file of the share from number `start` on that is not there; None behind the last one."""
        number = start
        while number % self.share.count != self.share.index or number in self._there:
            number += 1
        return None if self._num_files is not None and number >= self._num_files else number

    def write(self, number: int, chunks: Sequence[Columns]) -> None:
        """Writes one file; `chunks` are the outputs of its batches.

        Raises:
          PredictionsError: the format cannot hold them, or another process predicts with other settings.
          OSError: they cannot be written; other files stay.
        """
        format, stem = self._settings["format"], f"predictions-{number:05d}"
        suffix = "npz" if format == "npy" and len(chunks[0]) > 1 else format
        # Those of a process that was killed here.
        files.remove_temporaries(self._directory, *(f"{stem}.{other}" for other in (*FORMATS, "npz")))
        with files.written_atomically(files.join(self._directory, f"{stem}.{suffix}")) as temporary:
            prediction_formats.write(format, temporary, chunks)
            if read_continuable(self._directory, self._settings) is None:
                self._write_manifest()
        self._there.add(number)
        self.rows += sum(map(num_rows, chunks))

    def finish(self, num_files: int | None = None) -> bool:
        """Returns whether all files are there, and if so, records it.

        Args:
          num_files: how many there are to be; None if the manifest says it.

        Raises:
          PredictionsError: the data has changed, or another process predicts with other settings.
        """
        before = read_continuable(self._directory, self._settings)
        num_files = num_files or self._num_files or 0
        if self.next_number() in range(num_files) or self._num_files not in (None, num_files):
            what = f"this data makes {num_files} files" + (f", not {self._num_files}" if self._num_files else "")
            raise PredictionsError(
                f"--output={self._directory} was begun with other data: {what}; name another --output"
            )
        self._there = _numbers(self._directory)
        if not self._there.issuperset(range(num_files)):
            return False
        if before is None or not before["done"]:
            self._write_manifest(num_files)
        return True

    def _write_manifest(self, num_files: int | None = None) -> None:
        done = num_files is not None
        content = {"format_version": _FORMAT_VERSION, "settings": self._settings, "done": done, "num_files": num_files}
        # First under a hidden name of this share: other processes may write the manifest at the same time.
        name = f".predictions-{self.share.index}.json"
        files.remove_temporaries(self._directory, name)
        files.write_text_atomically(files.join(self._directory, name), manifest.signed(content))
        files.rename(files.join(self._directory, name), files.join(self._directory, MANIFEST))


def read_continuable(directory: str, settings: Mapping[str, Any], *, is_whole: bool = True) -> dict[str, Any] | None:
    """Returns the manifest of predictions that can be continued; None if there are none.

    Args:
      directory: where they are, or will be.
      settings: those of now, as `PredictionFiles` takes them.
      is_whole: whether these are all settings; else those that are not in it are not compared.

    Raises:
      PredictionsError: the directory holds something else, or predictions that were made with other settings.
    """
    content = _read(directory)
    if content is None:
        return None
    before, now = content["settings"], dict(settings)
    now["shard_size"] = now["shard_size"] or before["shard_size"]
    lines = [
        f"  {f'--{name}' if name in _FLAGS else name}: {_shown(before, name)} -> {_shown(now, name)}"
        for name in ({**now, **before} if is_whole else now)
        if not is_same(before.get(name), now.get(name))
    ]
    if lines:
        what = f"--output={directory} holds predictions that were made with other settings:"
        raise PredictionsError("\n".join([what, *lines, "Use those to continue, or name another --output"]))
    return content


def _shown(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "not set")
    return value if isinstance(value, str) else json.dumps(value)


def _read(directory: str) -> dict[str, Any] | None:
    """Returns the manifest in a directory; None if that holds nothing."""
    try:
        names = [name for name in files.list_dir(directory) if not name.startswith(".") and ".tmp-" not in name]
    except files.PathKindError as error:
        raise PredictionsError(f"--output={directory} is not a directory; name another") from error
    if MANIFEST not in names:
        if names:
            raise PredictionsError(
                f"--output={directory} holds {first_few(names)}, but no predictions of official-trainer; "
                "name a new or empty directory"
            )
        return None
    path = files.join(directory, MANIFEST)
    try:
        return manifest.parse(files.read_text(path), MANIFEST, _FORMAT_VERSION)
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise PredictionsError(
            f"{path} cannot be read ({error}); name another --output to predict from the start"
        ) from error


def _numbers(directory: str) -> set[int]:
    """Returns the numbers of the files that are there."""
    return {int(match[1]) for name in files.list_dir(directory) if (match := _FILE.fullmatch(name))}
