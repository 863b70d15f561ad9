"""The variables of a model: by path, as a table, counted.

Owns: unique paths of variables, and how their shapes are shown.
Does not own: the keys of a checkpoint (`checkpoints/matching.py`). Reads no values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.tasks import keras as kerases
from official_trainer.tasks.keras import free_name


@dataclasses.dataclass(frozen=True)
class Row:
    """One variable in a table of them.

    Attributes:
      path: its unique name.
      shape: an unknown size is None.
      dtype: name of its type.
      size_bytes: memory that its values take.
      is_trainable: whether training changes it by gradients.
    """

    path: str
    shape: tuple[int | None, ...]
    dtype: str
    size_bytes: int
    is_trainable: bool

    @property
    def count(self) -> int:
        """Number of its elements, as far as sizes are known."""
        return _count(self.shape)


@dataclasses.dataclass(frozen=True)
class Count:
    """The size of a model.

    Attributes:
      trainable: numbers in trainable variables.
      total: numbers in all variables.
      size_bytes: memory that all of them take.
    """

    trainable: int
    total: int
    size_bytes: int


def flatten(tree: Any) -> dict[str, Any]:
    """Returns path → variable, in their order.

    A model's variables have their Keras names without `:0`: `dense/kernel`. In mappings and sequences, keys and
    indices come before that, joined by `/`. Of two equal paths the second gets the suffix `_2`.

    Args:
      tree: a model, layer, module or optimizer; a variable; or mappings and sequences of these.
    """
    variables: dict[str, Any] = {}
    for path, variable in _leaves(tree, ""):
        variables[free_name(path, variables)] = variable
    return variables


def table(tree: Any) -> list[Row]:
    """Returns a row for each variable; the variables of a frozen layer are not trainable."""
    leaves = (variable for _, variable in _leaves(tree, "", trainable=True))
    trained = {id(variable) for variable in leaves if getattr(variable, "trainable", False)}
    rows = []
    for path, variable in flatten(tree).items():
        shape, dtype = tuple(variable.shape), variable.dtype
        size_bytes = (getattr(dtype, "size", None) or dtype.itemsize) * _count(shape)
        rows.append(Row(path, shape, dtype.name, size_bytes, is_trainable=id(variable) in trained))
    return rows


def count(tree: Any) -> Count:
    """Returns the number of elements and their bytes."""
    rows = table(tree)
    return Count(
        trainable=sum(row.count for row in rows if row.is_trainable),
        total=sum(row.count for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
    )


def summary(tree: Any) -> str:
    """Returns the table as aligned text, with the sums below it."""
    rows = table(tree)
    cells = [("path", "shape", "dtype", "count", "trainable")]
    for row in rows:
        shape = "(" + ", ".join("?" if size is None else str(size) for size in row.shape) + ")"
        cells.append((row.path, shape, row.dtype, f"{row.count:,}", "yes" if row.is_trainable else "no"))
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column == 3 else cell.ljust(width)  # numbers are aligned to the right
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    sums = count(tree)
    lines.append(f"{sums.total:,} parameters, {sums.trainable:,} of them trainable, {sums.size_bytes:,} bytes")
    return "\n".join(lines)


def _leaves(tree: Any, prefix: str, *, trainable: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields path and variable, of models and layers only trainable ones if that is asked."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}{key}/", trainable=trainable)
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            if hasattr(value, "assign") and bool(getattr(value, "name", "")):
                yield prefix + _name(value), value  # its name means more than its index
            else:
                yield from _leaves(value, f"{prefix}{index}/", trainable=trainable)
    elif hasattr(tree, "variables"):
        for name, variable in kerases.of(tree).named(tree, trainable=trainable):
            yield prefix + name, variable
    else:
        yield prefix.rstrip("/") or _name(tree), tree


def _name(variable: Any) -> str:
    return str(variable.name).removesuffix(":0")


def _count(shape: tuple[int | None, ...]) -> int:
    return math.prod(size or 0 for size in shape)


def has_unbuilt_layers(model: Any) -> bool:
    """Whether `model`, or a layer of it, creates its variables only when it is called."""
    layers = kerases.of(model).layers(model) if hasattr(model, "_flatten_layers") else ()
    return any(not layer.built and type(layer).build.__module__ not in _BUILDS_NOTHING for layer in layers)


_BUILDS_NOTHING = ("tf_keras.src.engine.base_layer", "tf_keras.src.engine.training", "keras.src.layers.layer")
