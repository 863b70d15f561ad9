"""CSV files: rows by their number, read into memory.

Owns: reading CSV with pyarrow, the file, row and field of what is wrong. Does not own: which columns become tensors
(`inputs/arrow_columns.py`).

Where a line of CSV begins cannot be computed. So each file is read before the first step, in some seconds for a
gigabyte, and what is wrong in any line is said then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from official_trainer.config import FrozenDict, SourceConfig
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import check_fill, check_names, columns_of, tensor_types
from official_trainer.sources import paths
from official_trainer.sources.columns import TableFiles, file_problems, opened

_BLOCK_BYTES = 16 << 20  # the types of columns are found in the first block
_NULLS = ("", "NA", "N/A", "NULL", "null", "None")  # not NaN, which is a number
_OTHER_TYPE = (
    "set its type (string for dates, which transforms turn into numbers; float32 for numbers that are all missing), "
    "or leave it out of `columns`"
)

Type = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "string"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvConfig(SourceConfig):
    """Rows of CSV files, each a dict of its columns.

    All rows are in memory, in about as many bytes as the files have.

    Attributes:
      files: file path or pattern, or a list of them; local or a URL; `.gz` is decompressed.
      columns: the columns that are read; empty means all.
      delimiter: between fields.
      encoding: of the text.
      column_names: of files without a header; empty means that the first line has them.
      column_types: of columns; the others' are found in the first 16 MiB of the first file, where one value that is no
        number makes text of a column: say that such a column is `float32`, and the row of that value is an error.
      fill_null: for a column, the value of rows where it is empty or NA, such as `.nan`; without it such a row is an
        error, and a text stays as it is.
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

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from file_problems(self)
        if len(self.delimiter) != 1:
            yield "delimiter", "must be one character, such as ',', ';' or \"\\t\""
        try:
            "".encode(self.encoding)
        except LookupError:
            yield "encoding", "is unknown to Python; for example utf8, latin1, utf-16"

    def build(self) -> CsvRows:
        import pyarrow as pa

        files = paths.find(self.files)
        columns = self.columns
        types = {name: pa.type_for_alias(given) for name, given in self.column_types.items()}
        tables = []
        for path in files:
            table = _table(self, path, columns, types)
            columns = table.column_names  # of the first file, which the others must have
            types = dict(zip(columns, table.schema.types, strict=True))
            tables.append(_with_gaps(table, self.fill_null))
        schema = tables[0].schema
        check_names(list(self.column_types), schema.names, files[0], "column_types")
        tensor_types(schema, schema.names, files[0], "column_types", _OTHER_TYPE)
        fix = "write one that is, or set the column's type in column_types (NaN is a float32)"
        check_fill(schema, self.fill_null, schema.names, "fill_null", fix)
        return CsvRows(files, tables, self.fill_null, first_row=1 if self.column_names else 2)


class CsvRows(TableFiles):
    """Rows of CSV files, each of which is a part."""

    def __init__(self, files: Sequence[str], tables: Sequence[Any], fill: Mapping[str, Any], first_row: int) -> None:
        """Takes the paths and their rows, values for what is missing, and the number of a file's first row."""
        self._columns = [columns_of(table, table.column_names, fill) for table in tables]
        super().__init__(files, [(file, table.num_rows) for file, table in enumerate(tables)], first_row)

    def part(self, number: int) -> Mapping[str, Any]:
        return self._columns[number]


def _table(config: CsvConfig, path: str, columns: Sequence[str], types: Mapping[str, Any]) -> Any:
    """Returns columns of a file as a table of Arrow.

    Raises:
      DataError: a row, a column or a type is wrong.
    """
    import pyarrow as pa
    import pyarrow.csv

    try:
        with _reading(config, path, types) as arguments:
            table = pyarrow.csv.read_csv(*arguments)
        if foreign := {column.name: pa.string() for column in table.schema if pa.types.is_binary(column.type)}:
            with _reading(config, path, {**foreign, **types}) as arguments:  # not of the encoding: for the row
                table = pyarrow.csv.read_csv(*arguments)
        names = table.column_names
    except (pa.ArrowException, UnicodeError, OSError) as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # of the machine or the disk, not of the data
        raise DataError(f"{path}: {_explained(config, path, error)}", field="files") from error
    others = [other for other in (";", "\t", "|", ",") if other in names[0]]
    if len(names) == 1 and names[0] not in columns and others:
        fix = f"set delimiter: {json.dumps(others[0])}"
        raise DataError(f"{path} has one column, '{names[0]}'; {fix}", field="delimiter")
    check_names(columns or names, names, path, "columns" if config.columns else "files")
    with opened(path) as file:
        file.seek(max(0, file.size() - 2))  # of UTF-16, a character
        if not path.endswith(".gz") and not file.read(2).strip(b"\0").endswith((b"\r", b"\n")):
            paths.say_once(f"{path}: its last line has no end: is it cut off? Else end that line, too", is_warning=True)
    return table.select(list(columns)) if columns else table


def _with_gaps(table: Any, names: Iterable[str]) -> Any:
    """Returns the table with nulls where a text of these columns is missing; Arrow takes each text for a value."""
    import pyarrow as pa
    import pyarrow.compute

    for name in names:
        if name in table.column_names and pa.types.is_string(table.schema.field(name).type):
            text = table.column(name)
            is_missing = pyarrow.compute.is_in(text, value_set=pa.array(_NULLS))
            text = pyarrow.compute.if_else(is_missing, pa.scalar(None, pa.string()), text)
            table = table.set_column(table.column_names.index(name), name, text)
    return table


@contextlib.contextmanager
def _reading(config: CsvConfig, path: str, types: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the arguments of Arrow's readers for a file."""
    import pyarrow as pa
    import pyarrow.csv

    with opened(path) as file:
        yield (
            pa.CompressedInputStream(file, "gzip") if path.endswith(".gz") else file,
            pyarrow.csv.ReadOptions(
                use_threads=False,  # only then an error has the number of the row
                block_size=_BLOCK_BYTES,
                column_names=list(config.column_names) or None,
                encoding=config.encoding,
            ),
            pyarrow.csv.ParseOptions(delimiter=config.delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(null_values=list(_NULLS), column_types=types),
        )


def _explained(config: CsvConfig, path: str, error: Exception) -> str:
    """Returns what Arrow says of a file, with the name of the field, and what to do about it."""
    import pyarrow.csv

    message = str(error)
    if column := re.search(r"In CSV column #(\d+)", message):
        with _reading(config, path, {}) as arguments:
            names = pyarrow.csv.open_csv(*arguments).schema.names
        message = message.replace(column[0], f"field '{names[int(column[1])]}'")
    if "invalid UTF8" in message or isinstance(error, UnicodeError):
        return f"{message}; the file is not {config.encoding}: say its encoding, such as encoding: latin1"
    if column:
        return f"{message}; correct it, or say the type of the column, such as string, in column_types"
    return f"{message}; correct or copy the file; the delimiter is {json.dumps(config.delimiter)}"
