"""Hugging Face datasets that are on this machine: saved to a folder, or prepared in the cache of `datasets`.

Owns: finding them without the network. Does not own: reading rows (`inputs/hugging_face.py`); a dataset in hand is a
source of `inputs.from_source` as it is.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, ClassVar

from official_trainer.config import SourceConfig
from official_trainer.errors import first_line
from official_trainer.files import near_hint
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import check_names
from official_trainer.nearest import did_you_mean

_END_OF_STREAM, _END_OF_FILE = b"\xff\xff\xff\xff\0\0\0\0", b"ARROW1"  # of Arrow's two formats


@dataclasses.dataclass(frozen=True, kw_only=True)
class HfConfig(SourceConfig):
    """Rows of a Hugging Face dataset, each a dict of its columns.

    A `ClassLabel` is its number, in int64, and an image its pixels. Nothing is downloaded: a dataset of the Hub has to
    be in the cache.

    Attributes:
      path: the folder that `save_to_disk` wrote. Not with `name`.
      name: of a dataset that `load_dataset` has prepared on this machine, such as `ylecun/mnist`.
      subset: its configuration, such as `en`; unset means its only one.
      split: such as `train` or `train[:90%]`; a folder of one split needs none.
      columns: the columns that are read; empty means all.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("datasets",)
    INSTALL: ClassVar[str] = "official-trainer[hf]"

    path: str = ""
    name: str = ""
    subset: str | None = None
    split: str = ""
    columns: tuple[str, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        if bool(self.path) == bool(self.name):
            yield "path", "or name must be set, one of the two: a folder of save_to_disk, or a dataset in the cache"
        if self.name and not self.split:
            yield "split", "is needed with name, for example train"

    def build(self) -> Any:
        dataset = self._cached() if self.name else self._saved()
        _check_ends(dataset)
        check_names(self.columns, dataset.column_names, self.path or self.name, "columns")
        return dataset.select_columns(list(self.columns)) if self.columns else dataset

    def _cached(self) -> Any:
        # The public load_dataset() asks the Hub first, and would download a newer version.
        from datasets.packaged_modules.cache.cache import Cache

        space, _, name = self.name.rpartition("/")
        options = {"version": "auto", "hash": "auto", "repo_id": self.name if space else None}
        try:
            builder = Cache(dataset_name=name, config_name=self.subset, **options)
        except (ValueError, OSError) as error:
            said = " ".join(str(error).split())
            call = f"datasets.load_dataset({', '.join(map(repr, filter(None, [self.name, self.subset])))})"
            raise DataError(f"{said}; prepare it once with {call}", field="name") from error
        return self._split_of(builder.info.splits or {}, lambda: builder.as_dataset(split=self.split))

    def _saved(self) -> Any:
        import datasets

        path = os.path.expanduser(self.path)
        try:
            found = datasets.load_from_disk(path)
        except Exception as error:
            what = f"{path} is no whole folder that save_to_disk wrote: {first_line(error)}{near_hint(path)}"
            raise DataError(what, field="path") from error
        if isinstance(found, datasets.Dataset):
            if not self.split:
                return found
            if found.split is None:
                what = f"is '{self.split}', and {self.path} holds one dataset, whose split has no name"
                raise DataError(f"{what}; leave out the split", field="split")
            found = {str(found.split): found}

        def read() -> Any:
            if self.split in found:
                return found[self.split]
            (part,) = datasets.ReadInstruction.from_spec(self.split).to_absolute(
                {name: len(found[name]) for name in found}
            )
            return found[part.splitname].select(range(part.from_, part.to))

        return self._split_of(found, read)

    def _split_of(self, splits: Any, read: Any) -> Any:
        name, names = self.split.partition("[")[0], sorted(splits)
        there = f"; there are {', '.join(names)}" if len(names) != 1 else f"; there is {names[0]} alone"
        if name not in names and self.split not in names:
            near = did_you_mean(name, names, otherwise=there)
            raise DataError(f"'{name}' is no split of {self.path or self.name}{near}", field="split")
        try:
            return read()
        except (KeyError, ValueError) as error:
            what = f"'{self.split}' cannot be read: {first_line(error).rstrip('.')}{there}"
            raise DataError(f"{what}, and a part is written as {name}[:90%]", field="split") from error


def _check_ends(dataset: Any) -> None:
    """Checks that no file ends before its last rows: read as a stream, it would only have fewer.

    Raises:
      DataError: one does.
    """
    for path in (part["filename"] for part in dataset.cache_files):
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - len(_END_OF_STREAM)))
            if not file.read().endswith((_END_OF_STREAM, _END_OF_FILE)):
                raise DataError(f"{path} is cut off; write or copy it again")
