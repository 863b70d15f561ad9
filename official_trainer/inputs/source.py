"""Examples by their number: what a source of random access is, and arrays made of what it returns.

Owns: `Source`, sources of other libraries taken as one, examples as arrays and batches, what a source's structure is.
Does not own: which example is where (`order.py`, `grouped.py`), pipelines over sources (`random_access.py`), sources
of files (`sources/`).

Nothing here imports TensorFlow: worker processes read with this module alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from official_trainer.inputs.context import DataError
from official_trainer.shown import first_few, shorten

Leaves: TypeAlias = list[tuple[str, Any]]


class Source:
    """Examples that can be read in any order, by their number from 0; the base of sources of files.

    A subclass defines `__len__` and `__getitem__`. It overrides `take` where many examples together are quicker than
    one after the other, `where` to name a place in messages, `fingerprint` to notice that the data has changed. Reading
    must be thread-safe, always return the same, and survive pickling, for worker processes.

    Any object with `__len__` and `__getitem__` serves in its place: a list, a torch-style dataset, a
    `datasets.Dataset`, a source of Grain, TFDS's `data_source`.

    Attributes:
      groups: numbers of examples in runs that are read together, such as the row groups of a file; empty where each is
        read alone. A shuffle then permutes groups, and examples within `shuffle_buffer_size`, so that few are held.

    Example:
      >>> from official_trainer.inputs import Source
      >>> class Squares(Source):
      ...     def __len__(self):
      ...         return 10
      ...
      ...     def __getitem__(self, index):
      ...         return {"x": float(index), "y": index**2}
      >>> Squares().take([2, 3])["y"].tolist()
      [4, 9]
    """

    groups: Sequence[int] = ()

    @functools.cached_property
    def takes_many(self) -> bool:
        """Whether `take` is quicker than reading one by one."""
        return type(self).take is not Source.take

    def __len__(self) -> int:
        """Returns the number of examples."""
        raise NotImplementedError(f"{type(self).__name__} must define __len__()")

    def __getitem__(self, index: int) -> Any:
        """Returns an example: numbers, text, arrays, in nested tuples and dicts; lists are arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__()")

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Returns several examples; the name is that of PyTorch's datasets."""
        return [self[index] for index in indices]

    def take(self, indices: Sequence[int]) -> Any:
        """Returns several examples as one batch, arrays `[n, …]` in the structure of an example."""
        return stack(self.__getitems__(indices))

    def expect(self, examples: int) -> None:
        """Says, before the first batch, how many examples change places at a time; a source may hold their groups."""

    def where(self, index: int) -> str:
        """Returns the place of an example, for messages: its file and row or offset."""
        return f"example {index}"

    def samples(self) -> Sequence[int]:
        """Returns numbers of examples whose fields are compared with the first's before training: one of each file."""
        return ()

    def fingerprint(self) -> str:
        """Returns a text that changes with the data; empty if only the number of examples tells."""
        return ""

    def training_order(self, order_of: Callable[[Source, str], Any]) -> Any:
        """Returns which example is at each position in training, where the source decides that; None for a shuffle.

        Args:
          order_of: returns the order of another source, by that and a name for its seed.
        """
        return None


class Batched(Source):
    """A source that reads batches; a subclass defines `take`, and an example is a row of one."""

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        return rows(self.take(indices), len(indices))


class _Adopted(Source):
    """Another library's source."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._reads_several = hasattr(source, "__getitems__")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._source[index]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        return self._source.__getitems__(indices) if self._reads_several else super().__getitems__(indices)

    def where(self, index: int) -> str:
        return f"example {index} of {type(self._source).__name__}"

    def fingerprint(self) -> str:
        return str(getattr(self._source, "_fingerprint", ""))  # of a `datasets.Dataset`


def adopt(source: Any) -> Source:
    """Returns `source` itself, what its `build()` returns if it is a section, or another library's source as one.

    Raises:
      DataError: it has no length, or no examples by number.
      ValueError: a field of the section has a value that is not allowed.
    """
    if hasattr(source, "build") and not hasattr(source, "__getitem__"):
        try:
            getattr(source, "check_values", lambda: None)()
            source = source.build()
        except DataError as error:
            error.field = error.field and f"source.{error.field}"
            raise
    if isinstance(source, Source):
        return source
    name = type(source).__name__
    if source is None:
        what = "is not set, and from_source() needs it; for example source={type: parquet, files: …}"
        raise DataError(what, field="source")
    if (
        isinstance(source, Mapping | str | bytes)
        or not hasattr(source, "__getitem__")
        or not hasattr(source, "__len__")
    ):
        hint = "; an iterable has no order to start in the middle of" if hasattr(source, "__iter__") else ""
        raise DataError(f"from_source() needs examples by their number, __len__ and __getitem__, got a {name}{hint}")
    return _Adopted(source)


def flat(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `(path, leaf)` of nested tuples and dicts, in the order of `tf.nest`: dicts by their sorted keys."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from flat(structure[key], f"{path}.{key}" if path else str(key))
    elif isinstance(structure, tuple):
        for index, value in enumerate(structure):
            yield from flat(value, f"{path}[{index}]")
    else:
        yield path or "it", structure


def as_array(value: Any, path: str) -> Any:
    """Returns a leaf of an example as an array that a tensor can be made of; texts become bytes.

    Numbers of Python become int64 and float32, lists of them too; arrays keep their type.

    Raises:
      ValueError: it is missing, or no such array.
    """
    import numpy as np

    if isinstance(value, bytes | str):
        array = np.empty([], object)
        array[()] = value.encode() if isinstance(value, str) else value
        return array
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of several lengths
        raise ValueError(f"{path} is no array, because its parts differ in length: {shorten(repr(value))}") from error
    if array.dtype.kind == "f" and isinstance(value, float | list) and not isinstance(value, np.generic):
        return array.astype("float32")
    if array.dtype.kind in "US":
        array = np.asarray(value, object)  # an array of one length drops zeros at the end of a text
    if array.dtype.kind not in "OMmV":
        return array
    if set(map(type, array.flat)) == {bytes}:
        return array
    texts = [text.encode() if isinstance(text, str) else text for text in array.flat]
    if not texts or not all(isinstance(text, bytes) for text in texts):
        fix = "fill in what is missing, or convert it to numbers or text"
        raise ValueError(f"{path} is {shorten(repr(value))}, which no tensor holds; {fix}")
    encoded = np.empty(array.shape, object)
    encoded.reshape(-1)[:] = texts
    return encoded


def arrays_of(example: Any) -> Leaves:
    """Returns the leaves of an example as arrays, each with its path."""
    return [(path, as_array(leaf, path)) for path, leaf in flat(example)]


def stack(examples: Sequence[Any]) -> Any:
    """Returns examples as one batch, arrays `[n, …]` in the structure of the first.

    Raises:
      ValueError: an example has no tensor, or another structure, shape or type than the first.
    """
    import numpy as np

    first = arrays_of(examples[0])
    columns: list[list[Any]] = [[array] for _, array in first]
    for example in examples[1:]:
        leaves = arrays_of(example)
        check_alike(leaves, first)
        for column, (_, array) in zip(columns, leaves, strict=True):
            column.append(array)
    return rebuilt(examples[0], iter([np.stack(column) for column in columns]))


def check_alike(leaves: Leaves, first: Leaves, *, batched: bool = False) -> None:
    """Checks that an example, or each of a batch, has the structure, shapes and types of the first one.

    Raises:
      ValueError: it differs; the message names the field.
    """
    paths, wanted = [path for path, _ in leaves], [path for path, _ in first]
    if paths != wanted:
        raise ValueError(f"it has {first_few(paths)}, and the first example {first_few(wanted)}")
    for (path, array), (_, other) in zip(leaves, first, strict=True):
        shape = array.shape[1:] if batched else array.shape
        if shape != other.shape:
            raise ValueError(f"{path} has shape {list(shape)}, and in the first example {list(other.shape)}")
        if array.dtype != other.dtype:
            raise ValueError(f"{path} is {_named(array.dtype)}, and in the first example {_named(other.dtype)}")


def rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    """Returns `structure` with its leaves, in the order of `flat`, replaced by `values`."""
    if isinstance(structure, Mapping):
        values_of = {key: rebuilt(structure[key], values) for key in sorted(structure)}
        return {key: values_of[key] for key in structure}
    if isinstance(structure, tuple):
        items = [rebuilt(part, values) for part in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return next(values)


def rows(batch: Any, count: int) -> list[Any]:
    """Returns the examples of a batch, arrays `[n, …]` in a structure."""
    leaves = [leaf for _, leaf in flat(batch)]
    return [rebuilt(batch, iter([leaf[row] for leaf in leaves])) for row in range(count)]


def by_part(starts: Any, indices: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
    """Yields, for each part that has some of the examples, its number, their rows in `indices`, their numbers in it.

    Args:
      starts: the number of the first example of each part, and the number of all, `[parts + 1]` int64.
      indices: numbers of examples.
    """
    import numpy as np

    wanted = np.asarray(indices, np.int64)
    numbers_of_parts = starts.searchsorted(wanted, side="right") - 1
    order = np.argsort(numbers_of_parts, kind="stable")
    numbers, firsts = np.unique(numbers_of_parts[order], return_index=True)
    for number, rows_of_part in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
        yield number, rows_of_part, wanted[rows_of_part] - starts[number]


def _named(dtype: Any) -> str:
    return "text" if dtype.kind == "O" else str(dtype)
