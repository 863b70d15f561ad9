"""CSV files: rows by their number, from memory, or from a copy in Arrow's format that is made once.

Owns: reading CSV with pyarrow, the copy of large files in the user's cache, the file, line and field of what is wrong.
Does not own: which columns become tensors (`inputs/arrow_columns.py`).

Lines of CSV have no places that can be computed. So all files are converted before the first step, and what is wrong in
any line is said then.
"""

from __future__ import annotations

import array
import csv
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from official_trainer import files
from official_trainer.config import FrozenDict, SourceConfig
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import Column, check_fill, check_names, columns_of, take, tensor_types
from official_trainer.lazy import tf
from official_trainer.sources.columns import Columns, damaged, file_problems, opened, paths_of

_IN_MEMORY_BYTES = 64 << 20
_BLOCK_BYTES = 16 << 20  # the types of columns are found in the first block; a block is a part of the copy
_MOST_LINES = 1_000_000  # searched for the place of a row, which takes a second
_NULLS = ("", "NA", "N/A", "NULL", "null", "None")  # not NaN, which is a number
_ROW = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV \w+ error: )?Row #(\d+): (.*)")

Type = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "string"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvConfig(SourceConfig):
    """Rows of CSV files, each a dict of its columns.

    Files of more than 64 MiB together are converted once to Arrow's format, in `cache_dir`, and read from there.

    Attributes:
      files: file path or pattern, or a list of them; local or a URL; `.gz` is decompressed.
      columns: the columns that are read; empty means all.
      delimiter: between fields.
      encoding: of the text.
      column_names: of files without a header; empty means that the first line has them.
      column_types: of columns; the others' are found in the first 16 MiB of the first file.
      fill_null: for a column, the value of rows where it is empty or NA; without it such a row is an error.
      cache_dir: folder of the converted files; unset means `official_trainer/csv` in the user's cache. Nothing is
        removed from it.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("pyarrow",)
    INSTALL: ClassVar[str] = "official-trainer[csv]"

    files: str | tuple[str, ...] = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    encoding: str = "utf8"
    column_names: tuple[str, ...] = ()
    column_types: dict[str, Type] = FrozenDict()
    fill_null: dict[str, bool | int | float | str] = FrozenDict()
    cache_dir: str | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from file_problems(self)
        if len(self.delimiter) != 1:
            yield "delimiter", "must be one character, such as ',', ';' or \"\\t\""
        try:
            "".encode(self.encoding)
        except LookupError:
            yield "encoding", "is unknown to Python; for example utf8, latin1, utf-16"

    def build(self) -> CsvRows:
        return CsvRows(self, paths_of(self.files))


class CsvRows(Columns):
    """Rows of CSV files."""

    def __init__(self, config: CsvConfig, paths: Sequence[str]) -> None:
        """Reads the files, or their copy.

        Raises:
          DataError: a line, a column or a type is wrong.
        """
        self._config, self._paths = config, list(paths)
        self._headers = [self._header(path) for path in self._paths]
        self._columns = list(config.columns) or self._headers[0]
        for path, header in zip(self._paths, self._headers, strict=True):
            field = "columns" if config.columns and path == self._paths[0] else "files"
            check_names(self._columns, header, path, field)
        check_names(list(config.column_types), self._columns, "columns", "column_types")
        sizes = [files.size_bytes(path) for path in self._paths]
        self._copy = self._copied(sizes) if sum(sizes) > _IN_MEMORY_BYTES else None
        self._open()
        schema = self._batches[0].schema
        tensor_types(schema, self._columns, self._paths[0], "column_types")
        check_fill(schema, config.fill_null, self._columns, "fill_null")
        digest = hashlib.blake2b(repr([sizes, len(self)]).encode(), digest_size=16)
        for path in self._paths:
            digest.update(_ends_of(path))
        self._fingerprint = digest.hexdigest()

    def _open(self) -> None:
        import pyarrow as pa

        if self._copy is None:
            found = list(self._read(self._paths))
        else:
            reader = pa.ipc.open_file(pa.memory_map(self._copy))
            both = map(reader.get_batch_with_custom_metadata, range(reader.num_record_batches))
            found = [(int(said[b"file"]), batch) for batch, said in both]
        found = [each for each in found if each[1].num_rows] or found[:1]
        self._batches, self._file_of = [batch for _, batch in found], [number for number, _ in found]
        self._starts = list(itertools.accumulate([batch.num_rows for batch in self._batches], initial=0))
        self._part = functools.cache(self._part_of)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_batches", "_part")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return self._starts[-1]

    def take(self, indices: Sequence[int]) -> Any:
        return take(indices, self._starts[:-1], self._part)

    def _part_of(self, number: int) -> dict[str, Column]:
        return columns_of(self._batches[number], self._columns, self._config.fill_null)

    def where(self, index: int) -> str:
        batch = max(number for number, start in enumerate(self._starts[:-1]) if start <= index)
        first = self._file_of.index(self._file_of[batch])  # its file's
        return self._place(self._paths[self._file_of[batch]], index - self._starts[first])

    def _place(self, path: str, row: int) -> str:
        """Returns the file and line of a row behind the header, counted from 0."""
        row += not self._config.column_names
        lines = _lines(path, self._config.delimiter, self._config.encoding)
        return f"{path}:{lines[row]}" if row < len(lines) else f"{path}, row {row}"

    def fingerprint(self) -> str:
        return self._fingerprint

    def _header(self, path: str) -> list[str]:
        """Returns the names of the columns of a file."""
        if self._config.column_names:
            return list(self._config.column_names)
        try:
            with _text(path, self._config.encoding) as file:
                return next(csv.reader(file, delimiter=self._config.delimiter))
        except StopIteration:
            what = f"{path}: is empty, and its first line must name the columns"
            raise DataError(what, field="files") from None
        except (OSError, ValueError, csv.Error) as error:
            raise damaged(path, error) from error

    def _read(self, paths: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """Yields the parts of all files, each with the number of its file; the types are those of the first file."""
        import pyarrow as pa
        import pyarrow.csv

        is_empty = True
        types: dict[str, Any] = {name: pa.type_for_alias(tp) for name, tp in self._config.column_types.items()}
        for number, path in enumerate(paths):
            try:
                with opened(path) as file, _decompressed(path, file) as stream:
                    reader = pyarrow.csv.open_csv(
                        stream,
                        pyarrow.csv.ReadOptions(
                            use_threads=False,  # only then an error has the number of the row
                            block_size=_BLOCK_BYTES,
                            column_names=list(self._config.column_names) or None,
                            encoding=self._config.encoding,
                        ),
                        pyarrow.csv.ParseOptions(delimiter=self._config.delimiter, newlines_in_values=True),
                        pyarrow.csv.ConvertOptions(
                            include_columns=self._columns, column_types=types, null_values=list(_NULLS)
                        ),
                    )
                    types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
                    for batch in reader:
                        is_empty = is_empty and not batch.num_rows
                        yield number, batch
            except pa.ArrowException as error:
                raise self._wrong(path, number, error) from error
        if is_empty:
            raise DataError(f"{', '.join(paths)}: there is no row", field="files")

    def _wrong(self, path: str, number: int, error: Exception) -> DataError:
        """Returns the error of a line that cannot be read."""
        found = _ROW.search(str(error))
        if found is None:
            return damaged(path, error)
        column, row, what = found.groups()
        place = self._place(path, int(row) - 1 - (not self._config.column_names))
        if column is None:
            return DataError(f"{place}: {what}; correct the line", field="files")
        name = self._headers[number][int(column)]
        fix = f"correct it, or set column_types: {{{name}: …}}, for example float64 or string"
        return DataError(f"{place}: field '{name}': {what}; {fix}", field="files")

    def _copied(self, sizes: Sequence[int]) -> str:
        """Returns the copy of the files in Arrow's format; makes it, unless there is one of the same files."""
        import pyarrow as pa

        config = self._config
        options = [self._columns, config.delimiter, config.encoding, config.column_names, dict(config.column_types)]
        places = [(os.path.abspath(path), size, _mtime(path)) for path, size in zip(self._paths, sizes, strict=True)]
        text = json.dumps([places, options, _BLOCK_BYTES, pa.__version__])
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = config.cache_dir or os.path.join(home, "official_trainer", "csv")
        copy = os.path.join(folder, f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.arrow")
        if files.exists(copy):
            return copy
        files.make_dirs(folder)
        parts = self._read(self._paths)
        first = next(parts)  # raises where there is no row
        with (
            files.written_atomically(copy) as temporary,
            pa.OSFile(temporary, "wb") as file,
            pa.ipc.new_file(file, first[1].schema) as writer,
        ):
            for number, batch in itertools.chain([first], parts):
                writer.write_batch(batch, custom_metadata={"file": str(number)})
        return copy


def _decompressed(path: str, file: Any) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(file, "gzip") if path.endswith(".gz") else file


def _text(path: str, encoding: str) -> io.TextIOWrapper:
    encoding = "utf-8-sig" if encoding.lower() in ("utf8", "utf-8") else encoding
    return io.TextIOWrapper(io.BufferedReader(_decompressed(path, opened(path))), encoding, newline="")


@functools.lru_cache(maxsize=2)
def _lines(path: str, delimiter: str, encoding: str) -> Sequence[int]:
    """Returns the line, from 1, where each row begins; of the first million rows."""
    lines, before = array.array("q"), 0
    try:
        with _text(path, encoding) as file:
            reader = csv.reader(file, delimiter=delimiter)
            for row in itertools.islice(reader, _MOST_LINES):
                if row:  # else the line is blank, and Arrow does not count it
                    lines.append(before + 1)
                before = reader.line_num
    except (OSError, ValueError, csv.Error):
        pass  # the rows before it are known
    return lines


def _ends_of(path: str) -> bytes:
    """Returns what a file begins and ends with."""
    with opened(path) as file:
        first = file.read(1 << 16)
        file.seek(max(0, file.size() - (1 << 16)))
        return bytes(first + file.read(1 << 16))


def _mtime(path: str) -> int:
    return int(tf.io.gfile.stat(path).mtime_nsec) if files.is_url(path) else os.stat(path).st_mtime_ns
