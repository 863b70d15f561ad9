"""CSV files: rows by their number, read into memory.

Owns: reading CSV with pyarrow, the file, row and field of what is wrong. Does not own: which columns become tensors
(`inputs/arrow_columns.py`).

Lines of CSV have no places that can be computed. So each file is read before the first step, in some seconds for a
gigabyte, and what is wrong in any line is said then. A converted copy on the disk would save them, and could be
one of other data than the file has now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from official_trainer.config import FrozenDict, SourceConfig
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import check_fill, check_names, columns_of, tensor_types
from official_trainer.sources import paths
from official_trainer.sources.columns import TableFiles, file_problems, opened

_BLOCK_BYTES = 16 << 20  # the types of columns are found in the first block; a block is a part of the rows
_NULLS = ("", "NA", "N/A", "NULL", "null", "None")  # not NaN, which is a number
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_ROW_OF_ONE = re.compile(r"(?:Expected 1 columns, got \d+|got 1): (.*)", re.DOTALL)  # what Arrow says of it
_FEW = 100  # text is a mistake where at least so many numbers are in the column for each value that is none

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
      column_types: of columns; the others' are found in the first 16 MiB of the first file, where a column of numbers
        may not have a few values that are none: say that such a column is `string`.
      fill_null: for a column, the value of rows where it is empty or NA; without it such a row is an error.
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

        found, columns = paths.find(self.files), self.columns
        types = {name: pa.type_for_alias(given) for name, given in self.column_types.items()}
        batches: list[tuple[int, Any]] = []
        for number, path in enumerate(found):
            schema, blocks = _read(self, path, columns, types)
            batches += [(number, block) for block in blocks]
            columns, types = schema.names, dict(zip(schema.names, schema.types, strict=True))  # of all other files
        check_names(list(self.column_types), schema.names, "columns", "column_types")
        tensor_types(schema, schema.names, found[0], "column_types")
        check_fill(schema, self.fill_null, schema.names, "fill_null")
        return CsvRows(found, batches, self.fill_null, first_row=1 if self.column_names else 2)


class CsvRows(TableFiles):
    """Rows of CSV files, whose parts are blocks of them."""

    def __init__(
        self, found: Sequence[str], batches: Sequence[tuple[int, Any]], fill: Mapping[str, Any], first_row: int
    ) -> None:
        """Takes the paths, the rows with the number of their file, values for what is missing, a file's first row."""
        self._parts = [columns_of(batch, batch.schema.names, fill) for _, batch in batches]
        super().__init__(found, [(file, batch.num_rows) for file, batch in batches], first_row)

    def part(self, number: int) -> Mapping[str, Any]:
        return self._parts[number]


def _read(config: CsvConfig, path: str, columns: Sequence[str], types: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Returns the schema of columns of a file, and their rows in blocks.

    Raises:
      DataError: a row, a column or a type is wrong.
    """
    import pyarrow as pa

    names: list[str] = []
    try:
        with _reader(config, path) as reader:
            names += reader.schema.names
            if len(names) == 1 and names[0] not in config.columns and (fix := _other_delimiter(config, names[0])):
                raise DataError(f"{path} has one column, '{names[0]}'; {fix}", field="delimiter")
            check_names(columns or names, names, path, "columns" if config.columns else "files")
            types = {**_meant(reader, columns or names, types), **types}
        with _reader(config, path, include_columns=list(columns), column_types=types) as reader:
            schema, blocks = reader.schema, list(reader)
    except (pa.ArrowException, UnicodeError, OSError) as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # of the machine or the disk, not of the data
        said, is_of_field = re.subn(
            r"In CSV column #(\d+)", lambda found: f"field '{names[int(found[1])]}'", str(error)
        )
        fix = "correct or copy the file"
        if "invalid UTF8" in said or isinstance(error, UnicodeError):
            fix = f"the file is not {config.encoding}: say its encoding, such as encoding: latin1"
        elif is_of_field:
            fix = "correct it, or say the type of the column, such as string, in column_types"
        elif (row := _ROW_OF_ONE.search(said)) and (other := _other_delimiter(config, row[1])):
            fix = f"{fix}, or {other}"
        raise DataError(f"{path}: {said}; {fix}", field="files") from error
    with opened(path) as file:
        file.seek(max(0, file.size() - 2))  # of UTF-16, a character
        if not path.endswith(".gz") and not file.read(2).strip(b"\0").endswith((b"\r", b"\n")):
            paths.say_once(f"{path}: its last line has no end: is it cut off? Else end that line, too", is_warning=True)
    return schema, blocks


def _other_delimiter(config: CsvConfig, line: str) -> str:
    """Returns what to write if a line may be divided by another character; empty if nothing tells."""
    found = [other for other in (";", "\t", "|", ",") if other != config.delimiter and other in line]
    return f"set delimiter: {json.dumps(found[0])}" if found else ""


def _meant(reader: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns types for columns that Arrow takes for other ones because of a few values, which are errors of these.

    One value that is no number makes text of all numbers of a block, and one that is not of the encoding makes bytes of
    its text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, Any] = {}
    of_text = [n for n in names if n not in given and pa.types.is_string(reader.schema.field(n).type)]
    block = reader.read_next_batch().select(of_text) if of_text else ()
    for name, column in zip(of_text, block, strict=True):
        known = column.filter(pc.invert(pc.is_in(column, pa.array(_NULLS))))
        numbers = pc.sum(pc.match_substring_regex(known, _NUMBER)).as_py() or 0
        if 0 < _FEW * (len(known) - numbers) <= numbers:
            found[name] = pa.float64()
    others = [n for n in names if n not in given and pa.types.is_binary(reader.schema.field(n).type)]
    return found | dict.fromkeys(others, pa.string())


@contextlib.contextmanager
def _reader(config: CsvConfig, path: str, **options: Any) -> Iterator[Any]:
    """Yields what reads the blocks of a file."""
    import pyarrow as pa
    import pyarrow.csv

    with opened(path) as file:
        yield pyarrow.csv.open_csv(
            pa.CompressedInputStream(file, "gzip") if path.endswith(".gz") else file,
            pyarrow.csv.ReadOptions(
                use_threads=False,  # only then an error has the number of the row
                block_size=_BLOCK_BYTES,
                column_names=list(config.column_names) or None,
                encoding=config.encoding,
            ),
            pyarrow.csv.ParseOptions(delimiter=config.delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(null_values=list(_NULLS), **options),
        )
