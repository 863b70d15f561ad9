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
from official_trainer.shown import first_few
from official_trainer.sources import paths

_KINDS = "biufcSU"  # of NumPy's types: those that tensors have


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
        source = NpySource(self.files)
        lengths = {field: len(array) for field, array in source.arrays.items()}
        if len({*lengths.values()}) > 1:
            said = ", ".join(f"{field} has {length:,}" for field, length in lengths.items())
            raise DataError(f"the arrays differ in length: {said} rows", field="files")
        return source


class NpySource(Source):
    """Rows of memory maps.

    Attributes:
      arrays: the map of each field.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        """Takes the path of each field."""
        self._files = {field: os.path.expanduser(path) for field, path in files.items()}
        self.arrays = {field: _opened(field, path) for field, path in self._files.items()}

    def __reduce__(self) -> Any:
        return NpySource, (self._files,)  # a map would be pickled with all that it holds

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        return {field: _native(np.array(array[index])) for field, array in self.arrays.items()}

    def take(self, indices: Sequence[int]) -> Any:
        import numpy as np

        plain = {field: np.asarray(array) for field, array in self.arrays.items()}  # quicker to index than a map
        return {field: _native(np.take(array, indices, axis=0)) for field, array in plain.items()}

    def where(self, index: int) -> str:
        return f"{first_few(list(self._files.values()))}: row {index}"

    def fingerprint(self) -> str:
        return paths.fingerprint(list(self._files.values()))


def _native(array: Any) -> Any:
    """Returns an array in this machine's order of bytes."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _opened(field: str, path: str) -> Any:
    """Returns the map of a file.

    Raises:
      DataError: it is none, or has no rows that tensors can be made of.
    """
    import numpy as np

    name = f"files.{field}"
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read row by row: {error}", field=name) from error
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in _KINDS:
        held = getattr(array, "dtype", "several arrays")
        raise DataError(f"{path} holds {held}, and one array of rows of numbers or text is needed", field=name)
    return array
