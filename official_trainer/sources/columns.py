"""Examples that are rows of columns: what sources of tables share.

Owns: an example as a row of a batch; files as Arrow reads them. Does not own: columns of Arrow
(`inputs/arrow_columns.py`), each kind of table (the files beside this one).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer.files import is_url, open_file
from official_trainer.inputs.context import DataError
from official_trainer.inputs.files import find_files
from official_trainer.inputs.source import Source, rows
from official_trainer.nearest import did_you_mean


class Columns(Source):
    """A source that reads batches of columns; a subclass defines `take`."""

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        return rows(self.take(indices), len(indices))


def paths_of(files: str | Sequence[str]) -> list[str]:
    """Returns the files of the field `files`, sorted.

    Raises:
      DataError: there is none, or one cannot be opened.
    """
    return [file.path for file in find_files(files, field="files")]


def opened(path: str) -> Any:
    """Returns a file that Arrow reads, on a disk or at a URL."""
    import pyarrow as pa

    if not is_url(path):
        return pa.OSFile(path)
    remote: Any = open_file(path, "rb")
    remote.closed = False  # Arrow asks for it, and TensorFlow's files do not have it
    return pa.PythonFile(remote, mode="r")


def reason_of(error: Exception) -> str:
    """Returns the first line of what Arrow says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def damaged(path: str, error: Exception) -> DataError:
    """Returns that a file cannot be used."""
    return DataError(f"{path}: {reason_of(error)}; write or copy the file again", field="files")


def file_problems(section: Any) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the fields `files`, `columns` and `fill_null` of a section."""
    if not section.files:
        yield "files", f"is needed: a file, a pattern such as data/train-*.{section.type}, or a list"
    yield from column_problems(section.columns)
    for name in section.fill_null if section.columns else ():
        if name not in section.columns:
            near = did_you_mean(name, section.columns)
            yield "fill_null", f"has '{name}', which is none of `columns`{near}"


def column_problems(columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the field `columns` of a section."""
    for name in sorted({name for name in columns if columns.count(name) > 1}):
        yield "columns", f"has '{name}' twice; keep one"
