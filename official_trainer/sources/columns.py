"""Files of rows, each a dict of its columns: what Parquet and CSV share.

Owns: which part of which file a row is in, files as Arrow reads them. Does not own: columns of Arrow
(`inputs/arrow_columns.py`), what is in a part (the files beside this one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.files import is_url, open_file
from official_trainer.inputs.arrow_columns import pick
from official_trainer.inputs.source import Batched, by_part, flat, rebuilt
from official_trainer.sources import paths


class TableFiles(Batched):
    """Rows of files that have parts; a subclass defines what is in a part."""

    def __init__(self, files: Sequence[str], file_and_rows: Sequence[tuple[int, int]], first_row: int = 0) -> None:
        """Takes the paths, for each part the number of its file and of its rows, and what a file's first row is."""
        import numpy as np

        self._paths, self._first_row = files, first_row
        self._file_of = [file for file, _ in file_and_rows]
        self._starts = np.cumsum([0, *(rows for _, rows in file_and_rows)])

    def part(self, number: int) -> Mapping[str, Any]:
        """Returns the columns of a part."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Sequence[int]) -> Any:
        rows_of_parts = list(by_part(self._starts, indices))
        picked = [pick(self.part(number), local) for number, _, local in rows_of_parts]
        if len(picked) == 1:
            return picked[0]
        leaves = zip(*([leaf for _, leaf in flat(columns)] for columns in picked), strict=True)
        rows = [rows for _, rows, _ in rows_of_parts]
        return rebuilt(picked[0], (_merged(values, rows) for values in leaves))

    def where(self, index: int) -> str:
        file = self._file_of[int(self._starts.searchsorted(index, side="right")) - 1]
        row = index - int(self._starts[self._file_of.index(file)]) + self._first_row
        return f"{self._paths[file]}, row {row}"

    def fingerprint(self) -> str:
        return paths.fingerprint(self._paths)


def _merged(values: Sequence[Any], rows: Sequence[Any]) -> Any:
    """Returns one array of the values of several parts, each written to its rows.

    Raises:
      ValueError: their shapes or types differ.
    """
    import numpy as np

    types = sorted({f"{part.dtype}{list(part.shape[1:])}" for part in values})
    if len(types) > 1:
        raise ValueError(f"the rows have values of {' and '.join(types)}")
    merged = np.empty([sum(map(len, rows)), *values[0].shape[1:]], values[0].dtype)
    for part, rows_of_part in zip(values, rows, strict=True):
        merged[rows_of_part] = part
    return merged


def opened(path: str) -> Any:
    """Returns a file that Arrow reads, on a disk or at a URL."""
    import pyarrow as pa

    if not is_url(path):
        return pa.OSFile(path)
    remote: Any = open_file(path, "rb")
    remote.closed = False  # Arrow asks for it, and TensorFlow's files do not have it
    return pa.PythonFile(remote, mode="r")


def file_problems(section: Any) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the field `files` of a section."""
    if not section.files:
        yield "files", f"is needed: a file, a pattern such as data/train-*.{section.type}, or a list"
