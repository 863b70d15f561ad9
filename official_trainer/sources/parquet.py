"""Parquet files: rows by their number, decoded a row group at a time.

Owns: the row groups of all files, how many are held, which file and row an example is. Does not own: which columns
become tensors (`inputs/arrow_columns.py`), the order of examples (`inputs/grouped.py`).

Damage that Parquet's reader notices is said with the file. A changed value in a page has no other sign than the
page's checksum, which `write_page_checksum=True` of pyarrow writes.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from official_trainer.config import FrozenDict, SourceConfig
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import Column, check_fill, columns_of, take, tensor_types
from official_trainer.sources.columns import Columns, damaged, file_problems, opened, paths_of, reason_of

_MAGIC = b"PAR1"
_FOOTERS = 64  # kept; parsing one of many columns takes milliseconds
_LEAST_HELD = 50_000  # rows of row groups that are held, where nothing says how many are read at a time


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
        return ParquetRows(paths_of(self.files), self.columns, self.fill_null)


class ParquetRows(Columns):
    """Rows of Parquet files."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str], fill_null: Mapping[str, Any]) -> None:
        """Reads the footer of each file.

        Raises:
          DataError: a file is damaged, has no such column, or other types than the first.
        """
        self._paths, self._fill = list(paths), dict(fill_null)
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            found = list(threads.map(_footer, self._paths))
        schema = found[0][0].schema.to_arrow_schema()
        self._columns = list(columns) or list(schema.names)
        wanted = tensor_types(schema, self._columns, self._paths[0], "columns" if columns else "files")
        check_fill(schema, self._fill, self._columns, "fill_null")
        digest, places = hashlib.blake2b(digest_size=16), []
        for number, (path, (footer, checksum)) in enumerate(zip(self._paths, found, strict=True)):
            self._check_like_first(path, footer.schema.to_arrow_schema(), wanted)
            digest.update(checksum)
            sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
            firsts = itertools.accumulate(sizes, initial=0)
            places += [(number, *each) for each in zip(range(len(sizes)), firsts, sizes, strict=False) if each[2]]
        self._fingerprint, self._places = digest.hexdigest(), places
        self.groups = [size for *_, size in places]
        self._starts = list(itertools.accumulate(self.groups, initial=0))
        self._held_rows = max(_LEAST_HELD, 2 * max(self.groups, default=0))
        self._open()

    def _check_like_first(self, path: str, schema: Any, wanted: dict[str, str]) -> None:
        for name, tp in tensor_types(schema, self._columns, path, "files").items():
            if tp != wanted[name]:
                what = f"{path}: column '{name}' is {tp}, and in {self._paths[0]} {wanted[name]}"
                raise DataError(f"{what}; write them alike, or leave it out of `columns`", field="files")

    def _open(self) -> None:
        self._lock, self._held = threading.Lock(), dict[int, _Group]()
        self._footer_of = functools.lru_cache(_FOOTERS)(lambda path: _footer(path)[0])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_held", "_footer_of")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return self._starts[-1]

    def take(self, indices: Sequence[int]) -> Any:
        return take(indices, self._starts[:-1], self._group)

    def expect(self, examples: int) -> None:
        self._held_rows = examples + max(self.groups, default=0)

    def where(self, index: int) -> str:
        group = bisect.bisect_right(self._starts, index) - 1
        number, _, first, _ = self._places[group]
        return f"{self._paths[number]}, row {first + index - self._starts[group]}"

    def fingerprint(self) -> str:
        return self._fingerprint

    def _group(self, number: int) -> Mapping[str, Column]:
        """Returns the columns of a row group; the groups that were used last are held."""
        with self._lock:
            is_new = number not in self._held
            self._held[number] = group = self._held.pop(number, None) or _Group()  # as the newest
            held = sum(self.groups[each] for each in self._held) if is_new else 0
            while held > self._held_rows and len(self._held) > 1:
                oldest = next(iter(self._held))
                held -= self.groups[oldest]
                del self._held[oldest]
        with group.lock:  # other threads wait for the one that decodes it
            if group.columns is None:
                group.columns = self._decoded(number)
        if isinstance(group.columns, str):
            raise ValueError(group.columns)
        return group.columns

    def _decoded(self, number: int) -> dict[str, Column] | str:
        """Returns the columns of a row group, or what is wrong with it."""
        import pyarrow.parquet

        file, group, first, size = self._places[number]
        path = self._paths[file]
        try:
            with opened(path) as source:
                options = {"metadata": self._footer_of(path), "page_checksum_verification": True}
                table = pyarrow.parquet.ParquetFile(source, **options).read_row_group(group, columns=self._columns)
            table.validate()
            if table.num_rows != size:
                raise ValueError(f"it has {table.num_rows} rows")
            return columns_of(table, self._columns, self._fill)
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk, not of the data
            what = f"its row group, rows {first} to {first + size - 1}, cannot be decoded"
            return f"{what}: {reason_of(error)}; write or copy the file again"


class _Group:
    """A row group that is held; a text in the place of its columns says what is wrong with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.columns: dict[str, Column] | str | None = None


def _footer(path: str) -> tuple[Any, bytes]:
    """Returns the metadata of a file, and the checksum of its size and footer.

    Raises:
      DataError: it is no whole Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with opened(path) as file:
            size, head = file.size(), file.read(4)
            file.seek(max(0, size - 8))
            tail = file.read(8)
            length = int.from_bytes(tail[:4], "little") + 8
            if head != _MAGIC or tail[4:] != _MAGIC or length + 4 > size:
                raise ValueError("is no whole Parquet file: PAR1 must stand at its begin and its end, behind a footer")
            file.seek(size - length)
            footer = file.read(length)
        checksum = hashlib.blake2b(footer + str(size).encode(), digest_size=16).digest()
        return pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer)), checksum
    except Exception as error:
        raise damaged(path, error) from error
