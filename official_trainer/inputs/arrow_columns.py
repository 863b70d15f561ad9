"""Columns of Arrow's tables as NumPy arrays: which types there are tensors of, and rows picked by their number.

Owns: numbers, text, lists and structs of Arrow as arrays `[n, …]`. Does not own: where tables come from (`sources/`),
the place of a row in a message (`reader.py`).

A value that is missing, and lists of several lengths, are found when their rows are picked, because the other rows can
be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.inputs.context import DataError
from official_trainer.nearest import did_you_mean
from official_trainer.shown import first_few


def tensor_type(arrow_type: Any) -> Any:
    """Returns what values of a type of Arrow become in a tensor, such as `int64`; of a struct, a dict of them.

    Raises:
      ValueError: no tensor holds them.
    """
    import pyarrow as pa

    return _named(as_numpy(pa.nulls(0, arrow_type), ""))


def _named(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _named(child) for name, child in values.items()}
    return "list of " * (values.ndim - 1) + ("text" if values.dtype.kind == "O" else str(values.dtype))


def check_names(names: Sequence[str], columns: Sequence[str], place: str, field: str) -> None:
    """Checks that the columns that are wanted are there, each once.

    Raises:
      DataError: one is not; the message has the nearest name.
    """
    for name in names:
        if columns.count(name) > 1:
            raise DataError(f"{place} has {columns.count(name)} columns '{name}'; rename them", field=field)
        if name not in columns:
            near = did_you_mean(name, columns, otherwise=f"; there are {first_few(columns)}")
            raise DataError(f"{place} has no column '{name}'{near}", field=field)


def tensor_types(
    schema: Any,
    names: Sequence[str],
    place: str,
    field: str,
    fix: str = "write it as numbers or text, or leave it out",
) -> dict[str, Any]:
    """Returns what the columns `names` of a schema become in tensors.

    Args:
      schema: of Arrow.
      names: of columns.
      place: the file, for messages.
      field: the field of the section, for messages.
      fix: what to do about a column that no tensor holds.

    Raises:
      DataError: a column is not there, or no tensor holds it.
    """
    check_names(names, schema.names, place, field)
    types = {}
    for name in names:
        try:
            types[name] = tensor_type(schema.field(name).type)
        except ValueError as error:
            raise DataError(f"{place}: column '{name}' {error}; {fix}", field=field) from error
    return types


def check_fill(
    schema: Any, fill_null: Mapping[str, Any], columns: Sequence[str], field: str, fix: str = "write one that is"
) -> None:
    """Checks that each value of `fill_null` is one of its column's type.

    Args:
      schema: of Arrow.
      fill_null: values by the names of columns.
      columns: the names that there are.
      field: the field of the section, for messages.
      fix: what to do about a value of another type.

    Raises:
      DataError: it is not, or there is no such column.
    """
    import pyarrow as pa

    check_names(list(fill_null), list(columns), "columns", field)
    for name, value in fill_null.items():
        tp = schema.field(name).type
        try:
            pa.scalar(value, tp.value_type if pa.types.is_dictionary(tp) else tp)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{value!r} is no value of column '{name}', which is {tp}; {fix}", field=field) from error


def columns_of(table: Any, names: Sequence[str], fill_null: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns of a `Table` or a `RecordBatch`, for `pick`, in which values take the place of missing ones.

    Numbers are arrays of NumPy, which picks rows ten times faster than Arrow, where none is missing.
    """
    import pyarrow as pa

    columns = {}
    for name in names:
        array = table.column(name)
        if name in fill_null:
            array = array.fill_null(fill_null[name])
        if isinstance(array, pa.ChunkedArray):
            array = array.cast(pa.large_binary()) if _is_text(array.type) else array  # which holds more than 2 GB
            array = array.combine_chunks()
        columns[name] = (
            array.to_numpy(zero_copy_only=False) if _is_number(array.type) and not array.null_count else array
        )
    return columns


def pick(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Returns rows, `[n]` int64, as arrays `[n, …]`; of a struct, as a dict of them.

    Raises:
      ValueError: a value is missing, or lists have several lengths.
    """
    import numpy as np
    import pyarrow as pa

    of_arrow, arrays = pa.array(rows), {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            arrays[name] = column.take(rows)
            continue
        picked = column.take(of_arrow)
        if picked.null_count and (_is_number(picked.type) or _is_text(picked.type)):
            value = "''" if _is_text(picked.type) else "false" if pa.types.is_boolean(picked.type) else "0"
            fix = f"write what takes its place into the source, as in fill_null: {{{name}: {value}}}"
            raise ValueError(f"{name} is null; {fix}, or leave such rows out of the data")
        arrays[name] = as_numpy(picked, name)
    return arrays


def as_numpy(array: Any, name: str) -> Any:
    """Returns an `Array` as an array `[n, …]`; of structs, as a dict of them.

    Raises:
      ValueError: a value is missing, lists have several lengths, or no tensor holds the type.
    """
    import numpy as np
    import pyarrow as pa

    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise ValueError(f"{name} is null; fill in what is missing, or leave such rows out of the data")
    if _is_list(array.type):
        lengths = array.value_lengths().to_numpy()
        most = int(lengths.max(initial=0))
        if (lengths != most).any():
            raise ValueError(f"{name} has lists of {lengths.min()} to {most} values; pad them")
        return _in_lists(as_numpy(array.flatten(), name), [len(array), most])
    if pa.types.is_struct(array.type):
        children = zip(array.type.names, array.flatten(), strict=True)
        return {child: as_numpy(values, f"{name}.{child}") for child, values in children}
    if _is_text(array.type):
        array = array.cast(pa.large_binary())
    elif not _is_number(array.type):
        raise ValueError(f"is {array.type}, which no tensor holds")
    return np.array(array.to_numpy(zero_copy_only=False))  # a copy, which transforms can write to


def _in_lists(values: Any, shape: Sequence[int]) -> Any:
    if isinstance(values, dict):
        return {name: _in_lists(child, shape) for name, child in values.items()}
    return values.reshape([*shape, *values.shape[1:]])


def _is_number(arrow_type: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    return kinds.is_boolean(arrow_type) or kinds.is_integer(arrow_type) or kinds.is_floating(arrow_type)


def _is_text(arrow_type: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary, kinds.is_string_view)
    return any(test(arrow_type) for test in (*tests, kinds.is_binary_view, kinds.is_fixed_size_binary))


def _is_list(arrow_type: Any) -> bool:
    import pyarrow as pa

    return any(test(arrow_type) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
