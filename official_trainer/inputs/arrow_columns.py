"""Columns of Arrow's tables as NumPy arrays: which types there are tensors of, and rows picked by their number.

Owns: numbers, text, lists and structs of Arrow as arrays `[n, …]`. Does not own: where tables come from (`sources/`,
`source.py`), the place of a row in a message (`reader.py`).

Nothing is copied before rows are picked, where Arrow's memory has the form of an array. A value that is missing, and
lists of several lengths, are found when their rows are picked, because the other rows can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.inputs.context import DataError
from official_trainer.nearest import did_you_mean
from official_trainer.shown import first_few


def tensor_type(arrow_type: Any) -> str:
    """Returns what values of a type of Arrow become in a tensor, such as `int64`, `text` or `list of float32`.

    Raises:
      ValueError: no tensor holds them.
    """
    import numpy as np
    import pyarrow as pa

    kinds = pa.types
    if isinstance(arrow_type, pa.BaseExtensionType):
        return tensor_type(arrow_type.storage_type)
    if kinds.is_dictionary(arrow_type):
        return tensor_type(arrow_type.value_type)
    if kinds.is_boolean(arrow_type) or kinds.is_integer(arrow_type) or kinds.is_floating(arrow_type):
        return str(np.dtype(arrow_type.to_pandas_dtype()))
    if _is_text(arrow_type):
        return "text"
    if _is_list(arrow_type):
        return f"list of {tensor_type(arrow_type.value_type)}"
    if kinds.is_struct(arrow_type) and arrow_type.num_fields:
        return f"{{{', '.join(f'{field.name}: {tensor_type(field.type)}' for field in arrow_type)}}}"
    fix = "leave it out"
    if kinds.is_temporal(arrow_type):
        fix = "write it as a number, such as seconds in int64, or leave it out"
    elif kinds.is_decimal(arrow_type):
        fix = "write it as float64, or leave it out"
    elif kinds.is_null(arrow_type):
        fix = "it has no value where its type was looked for; say its type, or leave it out"
    raise ValueError(f"is {arrow_type}, which no tensor holds; {fix}")


def check_names(names: Sequence[str], found: Sequence[str], place: str, field: str) -> None:
    """Checks that the columns that are wanted are there, each once.

    Raises:
      DataError: one is not; the message has the nearest name.
    """
    for name in names:
        if found.count(name) > 1:
            raise DataError(f"{place} has {found.count(name)} columns '{name}'; rename them", field=field)
        if name not in found:
            near = did_you_mean(name, found, otherwise=f"; there are {first_few(found)}")
            raise DataError(f"{place} has no column '{name}'{near}", field=field)


def tensor_types(schema: Any, names: Sequence[str], place: str, field: str) -> dict[str, str]:
    """Returns what the columns `names` of a schema become in tensors.

    Raises:
      DataError: a column is not there, or no tensor holds it.
    """
    check_names(names, schema.names, place, field)
    found = {}
    for name in names:
        try:
            found[name] = tensor_type(schema.field(name).type)
        except ValueError as error:
            raise DataError(f"{place}: column '{name}' {error}", field=field) from error
    return found


class Column:
    """A column of which rows are picked."""

    def __init__(self, array: Any, name: str) -> None:
        """Takes an `Array` or a `ChunkedArray` of a type that tensors hold, and its name, for messages."""
        import pyarrow as pa

        self._name = name
        if isinstance(array, pa.ChunkedArray):
            array = array.cast(pa.large_binary()) if _is_text(array.type) else array  # which holds more than 2 GB
            array = array.combine_chunks()
        array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        self._is_there = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        self._children: dict[str, Column] = {}
        self._starts: Any = None
        self._values: Any = None
        if _is_list(array.type):
            self._starts, self._lengths = _bounds(array)
            self._children = {"": Column(array.values, name)}
        elif pa.types.is_struct(array.type):
            fields = [array.type.field(number).name for number in range(array.type.num_fields)]
            self._children = {each: Column(array.field(each), f"{name}.{each}") for each in fields}
        elif _is_text(array.type):
            self._values = array.cast(pa.large_binary())
        else:
            filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
            self._values = filled.to_numpy(zero_copy_only=False)

    def take(self, rows: Any) -> Any:
        """Returns rows, `[n]` int64, as an array `[n, …]`; of a struct, a dict of them.

        Raises:
          ValueError: a value is missing, or lists have several lengths.
        """
        import numpy as np
        import pyarrow as pa

        if self._is_there is not None and not self._is_there[rows].all():
            raise ValueError(f"{self._name} is null; fill in what is missing, or leave such rows out of the data")
        if self._starts is not None:
            lengths = self._lengths[rows]
            length = int(lengths[0])
            if (lengths != length).any():
                raise ValueError(f"{self._name} has lists of {lengths.min()} to {lengths.max()} values; pad them")
            inner = self._starts[rows][:, None] + np.arange(length)
            return _each(lambda array: array.reshape(inner.shape + array.shape[1:]), self._child.take(inner.ravel()))
        if self._children:
            return {name: child.take(rows) for name, child in self._children.items()}
        if isinstance(self._values, pa.Array):
            return self._values.take(pa.array(rows)).to_numpy(zero_copy_only=False)
        return self._values[rows]

    @property
    def _child(self) -> Column:
        return self._children[""]


def columns_of(table: Any, names: Sequence[str], fill_null: Mapping[str, Any] | None = None) -> dict[str, Column]:
    """Returns columns of a `Table` or a `RecordBatch`, in which values take the place of missing ones."""
    found = {}
    for name in names:
        array = table.column(name)
        if fill_null and name in fill_null:
            array = array.fill_null(fill_null[name])
        found[name] = Column(array, name)
    return found


def check_fill(schema: Any, fill_null: Mapping[str, Any], columns: Sequence[str], field: str) -> None:
    """Checks that each value of `fill_null` is one of its column's type.

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
            raise DataError(f"{value!r} is no value of column '{name}', which is {tp}", field=field) from error


def take(indices: Sequence[int], starts: Any, part: Callable[[int], Mapping[str, Column]]) -> dict[str, Any]:
    """Returns rows of a table that is in parts, as arrays `[n, …]`.

    Args:
      indices: numbers of the rows.
      starts: the number of the first row of each part, `[parts]` int64.
      part: returns the columns of a part.
    """
    import numpy as np

    rows = np.asarray(indices, np.int64)
    parts = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(parts, kind="stable")
    numbers, firsts = np.unique(parts[order], return_index=True)
    found = []
    for number, here in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
        local = rows[here] - starts[number]
        found.append({name: column.take(local) for name, column in part(number).items()})
    if len(found) == 1:
        return found[0]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return _joined(found, back)


def _joined(parts: Sequence[Any], order: Any) -> Any:
    import numpy as np

    if isinstance(parts[0], dict):
        return {name: _joined([part[name] for part in parts], order) for name in parts[0]}
    return np.concatenate(parts)[order]


def _each(function: Callable[[Any], Any], structure: Any) -> Any:
    if isinstance(structure, dict):
        return {name: _each(function, value) for name, value in structure.items()}
    return function(structure)


def _bounds(array: Any) -> tuple[Any, Any]:
    """Returns where each list begins in the values, and its length."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return (np.arange(len(array)) + array.offset) * size, np.full(len(array), size)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def _is_text(arrow_type: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary, kinds.is_string_view)
    return any(test(arrow_type) for test in (*tests, kinds.is_binary_view, kinds.is_fixed_size_binary))


def _is_list(arrow_type: Any) -> bool:
    import pyarrow as pa

    return any(test(arrow_type) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
