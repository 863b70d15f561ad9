"""Hugging Face datasets that are on this machine: saved to a folder, or prepared in the cache of `datasets`.

Owns: finding them without the network, what their images become. Does not own: reading rows
(`inputs/hugging_face.py`); a dataset in hand is a source of `inputs.from_source` as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from official_trainer.config import SourceConfig
from official_trainer.files import exists, near_hint, read_bytes
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import Column, check_names
from official_trainer.nearest import did_you_mean
from official_trainer.sources.columns import Columns, column_problems, reason_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class HfConfig(SourceConfig):
    """Rows of a Hugging Face dataset, each a dict of its columns; a `ClassLabel` is its number, in int64.

    Nothing is downloaded: a dataset of the Hub has to be in the cache.

    Attributes:
      path: the folder that `save_to_disk` wrote. Not with `name`.
      name: of a dataset that `load_dataset` has prepared on this machine, such as `ylecun/mnist`.
      subset: its configuration, such as `en`; unset means its only one.
      split: such as `train` or `train[:90%]`; a folder of one split needs none.
      columns: the columns that are read; empty means all.
      decode_images: whether an image is its pixels, uint8 `[height, width, channels]`; otherwise it is the bytes of its
        file, for TensorFlow's decoders.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("datasets",)
    INSTALL: ClassVar[str] = "official-trainer[hf]"

    path: str = ""
    name: str = ""
    subset: str | None = None
    split: str = ""
    columns: tuple[str, ...] = ()
    decode_images: bool = True

    def problems(self) -> Iterator[tuple[str, str]]:
        if bool(self.path) == bool(self.name):
            what = "cannot be set together with name; keep one of the two"
            yield (
                "path",
                what if self.path else "is needed, or name: a folder of save_to_disk, or a dataset in the cache",
            )
        if self.name and not self.split:
            yield "split", "is needed with name, for example train"
        yield from column_problems(self.columns)

    def build(self) -> Any:
        import datasets

        dataset = self._cached() if self.name else self._saved()
        names = list(self.columns) or dataset.column_names
        check_names(names, dataset.column_names, self.path or self.name, "columns")
        dataset = dataset.select_columns(names) if self.columns else dataset
        images = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
        return EncodedImages(dataset, images) if images and not self.decode_images else dataset

    def _cached(self) -> Any:
        # The public load_dataset() asks the Hub first, and would download a newer version.
        from datasets.packaged_modules.cache.cache import Cache

        space, _, name = self.name.rpartition("/")
        options = {"version": "auto", "hash": "auto", "repo_id": self.name if space else None}
        try:
            builder = Cache(dataset_name=name, config_name=self.subset, **options)
        except (ValueError, OSError) as error:
            said = " ".join(str(error).split())
            subset = f", '{self.subset}'" if self.subset else ""
            command = f"""python -c "import datasets; datasets.load_dataset('{self.name}'{subset})\""""
            raise DataError(f"{said}; prepare it once with: {command}", field="name") from error
        return self._split_of(builder.info.splits or {}, lambda: builder.as_dataset(split=self.split))

    def _saved(self) -> Any:
        import datasets

        try:
            found = datasets.load_from_disk(self.path)
        except FileNotFoundError as error:
            what = (
                f"{self.path} is no folder that save_to_disk wrote{'' if exists(self.path) else near_hint(self.path)}"
            )
            raise DataError(what, field="path") from error
        except Exception as error:
            what = f"{self.path} cannot be read: {reason_of(error)}; save or copy it again"
            raise DataError(what, field="path") from error
        if isinstance(found, datasets.Dataset):
            if self.split and self.split != str(found.split):
                what = f"'{self.split}' is not there: {self.path} holds '{found.split}' alone; leave it out"
                raise DataError(what, field="split")
            return found
        return self._split_of(found, lambda: found[self.split])

    def _split_of(self, splits: Any, read: Any) -> Any:
        name, names = self.split.partition("[")[0], sorted(splits)
        if name not in names:
            near = did_you_mean(name, names, otherwise=f"; there are {', '.join(names)}")
            raise DataError(f"'{name}' is no split of {self.path or self.name}{near}", field="split")
        try:
            return read()
        except (KeyError, ValueError) as error:
            what = f"'{self.split}' cannot be read: {reason_of(error)}"
            raise DataError(what, field="split") from error


class EncodedImages(Columns):
    """A dataset whose images are the bytes of their files."""

    def __init__(self, dataset: Any, images: Sequence[str]) -> None:
        self._table, self._images = dataset.with_format("arrow"), tuple(images)

    def __len__(self) -> int:
        return len(self._table)

    def take(self, indices: Sequence[int]) -> Any:
        import numpy as np
        import pyarrow as pa

        table, every, found = self._table[list(indices)], np.arange(len(indices)), {}
        for name in table.column_names:
            column = table.column(name)
            if name in self._images:
                column = pa.array([_file_of(image) for image in column.to_pylist()], pa.large_binary())
            found[name] = Column(column, name).take(every)
        return found

    def fingerprint(self) -> str:
        return str(self._table._fingerprint)  # no public name


def _file_of(image: dict[str, Any] | None) -> bytes | None:
    """Returns the bytes of an image as `datasets` stores it: themselves, or the path of a file."""
    if image is None:
        return None
    return read_bytes(image["path"]) if image["bytes"] is None else image["bytes"]
