"""`type: npy`: NumPy's files, one for each field, read where they lie on the disk.

Owns: opening them as memory maps, and what is said about files that do not belong together. Does not own: arrays in
memory (`inputs/arrays.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import FrozenDict, SourceConfig
from official_trainer.inputs import DataError, Source
from official_trainer.inputs.source import Batched
from official_trainer.shown import first_few
from official_trainer.sources import paths


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpyConfig(SourceConfig):
    """Arrays in files of `numpy.save`, one for each field, which need not fit in memory.

    Example i is `{field: array[i]}`.

    Attributes:
      files: for each field the path of its `.npy` file, as in `{image: images.npy, label: labels.npy}`; all have the
        same number of rows.
    """

    files: dict[str, str] = FrozenDict()

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.files:
            yield "files", "is not set; write the file of each field, as in {image: images.npy, label: labels.npy}"
        for field, path in self.files.items():
            yield from paths.problems(f"files.{field}", path)

    def build(self) -> Source:
        return NpySource({field: os.path.expanduser(path) for field, path in self.files.items()})


class NpySource(Batched):
    """Rows of memory maps.

    Attributes:
      arrays: the map of each field.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        """Opens the file of each field.

        Raises:
          DataError: one holds no array with rows, or they differ in length.
        """
        import numpy as np

        self._files = files
        self.arrays = {}
        for field, path in files.items():
            try:
                self.arrays[field] = np.load(path, mmap_mode="r", allow_pickle=False)
                len(self.arrays[field])
            except (ValueError, TypeError, OSError, EOFError) as error:
                raise DataError(f"{path} holds no array of rows: {error}", field=f"files.{field}") from error
        if len({*map(len, self.arrays.values())}) > 1:
            lengths = ", ".join(f"{field} has {len(array):,}" for field, array in self.arrays.items())
            raise DataError(f"the arrays differ in length: {lengths} rows", field="files")

    def __reduce__(self) -> Any:
        return NpySource, (self._files,)  # a map would be pickled with all that it holds

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def take(self, indices: Sequence[int]) -> Any:
        import numpy as np

        rows = {field: np.asarray(array)[list(indices)] for field, array in self.arrays.items()}
        return {field: array.astype(array.dtype.newbyteorder("="), copy=False) for field, array in rows.items()}

    def where(self, index: int) -> str:
        return f"{first_few(list(self._files.values()))}: row {index}"

    def fingerprint(self) -> str:
        return paths.fingerprint(list(self._files.values()))
