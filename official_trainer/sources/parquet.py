"""Parquet files: rows by their number, decoded a row group at a time.

Owns: the row groups of all files, how many are held, what is wrong with one. Does not own: which row is in which group
(`columns.py`), the order of examples (`inputs/grouped.py`).

Damage that Parquet's reader notices is said with the file. A changed value in a page has no other sign than the
page's checksum, which `write_page_checksum=True` of pyarrow writes.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from official_trainer.config import FrozenDict, SourceConfig
from official_trainer.errors import first_line
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import check_fill, columns_of, tensor_types
from official_trainer.sources import paths
from official_trainer.sources.columns import TableFiles, file_problems, opened

_MAGIC = b"PAR1"
_HELD_ROWS = 50_000  # where nothing says how many are read at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParquetConfig(SourceConfig):
    """Rows of Parquet files, each a dict of its columns; a struct is a dict in it.

    In training row groups change places, and rows among at least `shuffle_buffer_size`: so few are decoded at a time.

    Attributes:
      files: file path or pattern, or a list of them; local or a URL.
      columns: the columns that are read; empty means all.
      fill_null: for a column, the value of rows that have none; without it such a row is an error.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("pyarrow",)
    INSTALL: ClassVar[str] = "official-trainer[parquet]"

    files: str | tuple[str, ...] = ""
    columns: tuple[str, ...] = ()
    fill_null: dict[str, bool | int | float | str] = FrozenDict()

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from file_problems(self)

    def build(self) -> ParquetRows:
        return ParquetRows(paths.find(self.files), self.columns, self.fill_null)


class ParquetRows(TableFiles):
    """Rows of Parquet files, whose parts are row groups."""

    def __init__(self, files: Sequence[str], columns: Sequence[str], fill_null: Mapping[str, Any]) -> None:
        """Reads the footer of each file.

        Raises:
          DataError: a file is damaged, has no such column, or other types than the first.
        """
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            footers = list(threads.map(_footer, files))
        schemas = [footer.schema.to_arrow_schema() for footer in footers]
        self._columns, self._fill = list(columns) or list(schemas[0].names), dict(fill_null)
        wanted = tensor_types(schemas[0], self._columns, files[0], "columns" if columns else "files")
        check_fill(schemas[0], self._fill, self._columns, "fill_null")
        for path, schema in zip(files, schemas, strict=True):
            for name, tp in tensor_types(schema, self._columns, path, "files").items():
                if tp != wanted[name]:
                    what = f"{path}: column '{name}' is {tp}, and in {files[0]} {wanted[name]}"
                    raise DataError(f"{what}; write them alike, or leave it out of `columns`", field="files")
        groups = [
            (file, group, footer.row_group(group).num_rows)
            for file, footer in enumerate(footers)
            for group in range(footer.num_row_groups)
        ]
        self._groups = [(file, group, rows) for file, group, rows in groups if rows]
        self.groups = [rows for *_, rows in self._groups]
        super().__init__(files, [(file, rows) for file, _, rows in self._groups])
        self.expect(_HELD_ROWS)

    def expect(self, examples: int) -> None:
        self._num_kept = 2 + examples * len(self.groups) // max(1, len(self))
        self._open()

    def _open(self) -> None:
        self._decoded = functools.lru_cache(self._num_kept)(self._decode)
        self._locks = [threading.Lock() for _ in self.groups]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_locks", "_decoded")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def part(self, number: int) -> Mapping[str, Any]:
        with self._locks[number]:  # other threads wait for the one that decodes it
            columns = self._decoded(number)
        if isinstance(columns, str):
            raise ValueError(columns)
        return columns

    def _decode(self, number: int) -> dict[str, Any] | str:
        """Returns the columns of a row group, or what is wrong with it, which is kept like them."""
        import pyarrow.parquet

        file, group, rows = self._groups[number]
        try:
            with opened(self._paths[file]) as source:
                parquet = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
                table = parquet.read_row_group(group, columns=self._columns)
            table.validate()
            if table.num_rows != rows:
                raise ValueError(f"it has {table.num_rows} rows, and had {rows}")
            return columns_of(table, self._columns, self._fill)
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk, not of the data
            what = f"its row group {group}, of {rows} rows, cannot be decoded"
            return f"{what}: {first_line(error).rstrip('.')}; write or copy the file again"


def _footer(path: str) -> Any:
    """Returns the metadata of a file.

    Raises:
      DataError: it is no whole Parquet file.
    """
    import pyarrow.parquet

    try:
        with opened(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("does not begin with PAR1, as a Parquet file does")
            return pyarrow.parquet.read_metadata(file)
    except Exception as error:
        what = f"{path}: {first_line(error).rstrip('.')}; write or copy the file again"
        raise DataError(what, field="files") from error
