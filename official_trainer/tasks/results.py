"""Results of an evaluation as values: parts that can be merged in any order, over batches, replicas and hosts.

Owns: `Mean`, `SampledSet`, and `Results` of named parts. All are immutable, and merging is associative and commutative
bit for bit. Does not own: evaluating (`engine/evaluation.py`), where numbers go (`tracking/`). Nothing here needs
TensorFlow.

Use them as the state of a task's `aggregate_logs`::

    def aggregate_logs(self, state, step_logs):
        batch = Results({"error": Mean.of(step_logs["errors"])})
        return batch if state is None else state.merge(batch)
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Self

from official_trainer.tracking import Media, Table

_Number = Fraction | float
"""A sum: exact if every number in it is finite; else NaN or an infinity."""


@dataclasses.dataclass(frozen=True)
class Mean:
    """A weighted mean, kept as total and weight without rounding.

    Attributes:
      total: sum of value times weight.
      weight: sum of the weights.

    Example:
      >>> from official_trainer.tasks.results import Mean
      >>> first, second = Mean.of([1.0, 2.0]), Mean.of([6.0], weights=[2.0])
      >>> first.merge(second).value
      3.75
    """

    total: _Number = Fraction(0)
    weight: Fraction = Fraction(0)

    @classmethod
    def of(cls, values: Any, weights: Any = None) -> Mean:
        """Returns the mean of numbers.

        Args:
          values: a number, or arrays, tensors or (nested) sequences of them, of any shapes.
          weights: as many, not negative; a value of weight 0 does not count, even NaN. Unset means 1 each.

        Raises:
          ValueError: the numbers of weights and values differ, or a weight is negative or not finite.
        """
        numbers = list(_numbers(values))
        of_values = [1.0] * len(numbers) if weights is None else list(_numbers(weights))
        if len(of_values) != len(numbers):
            raise ValueError(f"{len(numbers)} values have {len(of_values)} weights; give each value one")
        total: _Number = Fraction(0)
        for value, weight in zip(numbers, of_values, strict=True):
            if not 0 <= weight < math.inf:
                raise ValueError(f"weight {weight:g} is not allowed; a weight is a finite number, at least 0")
            if weight:
                total = _sum(total, Fraction(value) * Fraction(weight) if math.isfinite(value) else value)
        return cls(total, sum(map(Fraction, of_values), Fraction(0)))

    @property
    def value(self) -> float:
        """The mean, rounded once; NaN without values."""
        if not isinstance(self.total, Fraction):
            return self.total
        return float(self.total / self.weight) if self.weight else math.nan

    def merge(self, other: Mean) -> Mean:
        """Returns the mean over the numbers of both."""
        return Mean(_sum(self.total, other.total), self.weight + other.weight)


@dataclasses.dataclass(frozen=True)
class SampledSet:
    """A uniform sample of the examples of an evaluation, without replacement.

    The examples with the lowest priorities are kept, and a priority is a hash of seed and key. So the sample does not
    depend on the order, the batches or the number of hosts. A key identifies one example and counts once.

    Attributes:
      size: most examples kept.
      seed: another seed samples other examples.
      kept: `(priority, key, value)` of each, by rising priority.

    Example:
      >>> from official_trainer.tasks.results import SampledSet
      >>> names = ["a.png", "b.png", "c.png", "d.png"]
      >>> whole = SampledSet(size=2).add(keys=names, values=[0.9, 0.2, 0.4, 0.7])
      >>> parts = SampledSet(size=2).add(names[2:], [0.4, 0.7]).merge(SampledSet(size=2).add(names[:2], [0.9, 0.2]))
      >>> len(whole.values), parts == whole
      (2, True)
    """

    size: int
    seed: int = 0
    kept: tuple[tuple[bytes, bytes, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}; a sample has at least 1 example")

    @property
    def values(self) -> tuple[Any, ...]:
        """The sampled examples, by their priorities."""
        return tuple(value for *_, value in self.kept)

    def add(self, keys: Iterable[Any], values: Sequence[Any]) -> Self:
        """Returns the sample after more examples.

        Args:
          keys: the permanent identity of each example, such as its number or its file name; int, str or bytes.
          values: the value to keep of each.

        Raises:
          ValueError: the numbers of keys and values differ.
          TypeError: a key has another type.
        """
        named = [_key(key) for key in keys]
        if len(named) != len(values):
            raise ValueError(f"{len(values)} values have {len(named)} keys; give each value one")
        salt = str(self.seed).encode()
        entries: dict[tuple[bytes, bytes], int] = {}
        for index, key in enumerate(named):
            entries.setdefault((hashlib.blake2b(key, digest_size=16, key=salt).digest(), key), index)
        lowest = heapq.nsmallest(self.size, entries)
        return self._with((*entry, values[entries[entry]]) for entry in lowest)

    def merge(self, other: SampledSet) -> Self:
        """Returns the sample of the examples of both.

        Raises:
          ValueError: their sizes or seeds differ.
        """
        if (self.size, self.seed) != (other.size, other.seed):
            raise ValueError(
                f"samples of size {self.size}, seed {self.seed} and of size {other.size}, seed {other.seed} cannot be "
                "merged; give both the same"
            )
        return self._with(other.kept)

    def as_logs(self) -> dict[str, Media]:
        """Returns what trackers show: media by numbers `0`, `1`, …; of other values a table `examples` with their keys.

        A value that is a mapping fills a column for each of its names.
        """
        if all(isinstance(value, Media) for value in self.values):
            return {str(number): value for number, value in enumerate(self.values)}
        rows = []
        for _, key, value in self.kept:
            cells = value if isinstance(value, Mapping) else {"value": value}
            rows.append({"example": key.decode("utf-8", "replace"), **cells})
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return {"examples": Table(columns, [[row.get(name, "") for name in columns] for row in rows])}

    def _with(self, more: Iterable[tuple[bytes, bytes, Any]]) -> Self:
        by_priority = {entry[:2]: entry for entry in (*more, *self.kept)}
        return dataclasses.replace(self, kept=tuple(by_priority[key] for key in sorted(by_priority)[: self.size]))


@dataclasses.dataclass(frozen=True)
class Results:
    """Named parts, which may be `Results` themselves: `Results({"dev": Results({"accuracy": Mean.of(…)})})`.

    Attributes:
      parts: by name; each has `merge(other)`, for another part of its class. Trackers show those with a number `value`,
        and those with `as_logs()`, which returns what `tracking.points` takes: a `SampledSet`, a class of your own.

    Example:
      >>> from official_trainer.tasks.results import Mean, Results
      >>> results = Results({"error": Mean.of([0.5, 0.25]), "dev": Results({"accuracy": Mean.of([1, 0, 1, 1])})})
      >>> results = results.merge(Results({"error": Mean.of([0.0, 0.25])}))
      >>> results.as_logs()
      {'dev': {'accuracy': 0.75}, 'error': 0.25}
      >>> results["error"].value
      0.25
    """

    parts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def merge(self, other: Results) -> Results:
        """Returns the parts of both; parts with the same name are merged.

        Raises:
          TypeError: two parts with the same name have different classes.
        """
        merged = {**self.parts, **other.parts}
        for name in [name for name in self.parts if name in other.parts]:
            mine, theirs = self.parts[name], other.parts[name]
            if type(mine) is not type(theirs):
                both = f"{type(mine).__name__} and {type(theirs).__name__}"
                raise TypeError(f"{name!r} is {both}; parts with the same name must have the same class to be merged")
            merged[name] = mine.merge(theirs)
        return Results(merged)

    def as_logs(self) -> dict[str, Any]:
        """Returns what trackers record, nested by name and sorted; parts that have nothing to record are left out."""
        logs: dict[str, Any] = {}
        for name in sorted(self.parts):
            part = self.parts[name]
            if hasattr(part, "as_logs"):
                logs[name] = part.as_logs()
            elif hasattr(part, "value"):
                logs[name] = part.value
        return {name: value for name, value in logs.items() if not (isinstance(value, Mapping) and not value)}


def _sum(left: _Number, right: _Number) -> _Number:
    """Adds; what is not finite wins over what is, so that no finite sum can run over on the way."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right
    if isinstance(left, Fraction):
        return right
    return left if isinstance(right, Fraction) else left + right


def _numbers(values: Any) -> Iterator[float]:
    """Yields every number in arrays, tensors and sequences."""
    values = values.numpy() if hasattr(values, "numpy") else values
    values = values.tolist() if hasattr(values, "tolist") else values  # also of bfloat16 and of NumPy's scalars
    if isinstance(values, list | tuple):
        for value in values:
            yield from _numbers(value)
    else:
        yield float(values)


def _key(key: Any) -> bytes:
    key = key.numpy() if hasattr(key, "numpy") else key
    key = key.item() if hasattr(key, "item") else key
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise TypeError(f"{key!r} ({type(key).__name__}) cannot be the key of an example; use an int, str or bytes")
