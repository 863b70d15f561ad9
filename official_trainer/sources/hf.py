"""`type: hf`: Hugging Face datasets that `save_to_disk` wrote to a folder.

Owns: the folder and its splits. Does not own: reading rows, which `datasets` does; a dataset in hand is a source of
`inputs.from_source` as it is.
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
from official_trainer.nearest import did_you_mean

_END_OF_STREAM, _END_OF_FILE = b"\xff\xff\xff\xff\0\0\0\0", b"ARROW1"  # of Arrow's two formats


@dataclasses.dataclass(frozen=True, kw_only=True)
class HfConfig(SourceConfig):
    """Rows of a Hugging Face dataset, each a dict of its columns.

    Whole numbers are int64, a `ClassLabel` is its number, others are float32, an image is its pixels. Write what
    `load_dataset` returns with `save_to_disk` once; nothing is downloaded here.

    Attributes:
      path: the folder that `save_to_disk` wrote.
      split: name of the split, such as `train`; a folder of one dataset needs none.
      columns: the columns that are read; empty means all.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("datasets",)
    INSTALL: ClassVar[str] = "official-trainer[hf]"

    path: str = ""
    split: str = ""
    columns: tuple[str, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.path:
            yield "path", "is not set; set it to a folder that save_to_disk of `datasets` wrote"

    def build(self) -> Any:
        dataset = self._saved()
        _check_ends(dataset)
        for name in self.columns:
            if name not in dataset.column_names:
                near = did_you_mean(name, dataset.column_names)
                raise DataError(f"{self.path} has no column '{name}'{near}", field="columns")
        return dataset.select_columns(list(self.columns)) if self.columns else dataset

    def _saved(self) -> Any:
        import datasets

        path = os.path.expanduser(self.path)
        try:
            saved = datasets.load_from_disk(path)
        except Exception as error:
            what = f"{path} is no whole folder that save_to_disk wrote: {first_line(error)}{near_hint(path)}"
            raise DataError(what, field="path") from error
        if isinstance(saved, datasets.Dataset):
            if self.split:
                raise DataError(f"is '{self.split}', and {path} holds one dataset; leave it out", field="split")
            return saved
        if self.split not in saved:
            there = did_you_mean(self.split, sorted(saved), otherwise=f"; there are {', '.join(sorted(saved))}")
            raise DataError(f"'{self.split}' is no split of {path}{there}", field="split")
        return saved[self.split]


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
