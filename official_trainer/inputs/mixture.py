"""Several sources as one: each has its share of every stretch of training, and an order of its own.

Owns: `Mixture`, and which part of it is at which position. Does not own: the order of examples in a part (`order.py`,
`grouped.py`), pipelines (`random_access.py`), the section of a configuration (`sources/mixture.py`).

Parts take turns by a table, which repeats after as many positions as all shares have together. It places each part's
example number j between the moments when its share allows j and j + 1 of them, the nearest deadline first; for shares
that add up to one, that always succeeds (Liu and Layland, 1973). So it is never as much as one example off.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from official_trainer.inputs.context import DataError
from official_trainer.inputs.source import Source, adopt, arrays_of, by_part, check_alike, rebuilt
from official_trainer.lazy import tf
from official_trainer.shown import shorten

_LONGEST = 100_000
"""Positions after which the table repeats, at most; weights that need more are rounded to that."""


class Mixture(Source):
    """Examples of several sources. In training each part has its share, whatever its size, and repeats on its own.

    Of the first n examples of training, a part has its share of n, rounded up or down, for every n. Each part is
    shuffled by itself: it shows all its examples before one comes again. An epoch of the mixture is as many examples as
    all parts have together. An evaluation has each example of each part once, part after part; weights do not count.

    Attributes:
      shares: of each part by its name; they add up to 1.

    Example:
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> news, books = [{"x": number} for number in range(3)], [{"x": number} for number in range(100, 200)]
      >>> both = inputs.Mixture({"news": (news, 1), "books": (books, 2)})
      >>> params = DataConfig(global_batch_size=6, is_training=True)
      >>> [int(x >= 100) for x in next(iter(inputs.from_source(both, params)))["x"]]
      [1, 0, 1, 1, 0, 1]
    """

    def __init__(self, parts: Mapping[str, tuple[Any, float]]) -> None:
        """Takes the parts.

        Args:
          parts: of each name, the source, as for `from_source`, and its weight; weights need not add up to 1.

        Raises:
          DataError: there is no part, one is empty, or a weight is not positive, or too small beside the others.
        """
        import numpy as np

        if not parts:
            raise DataError("a mixture needs parts: a name for each, with a source and a weight")
        self._names = list(parts)
        self._parts = [_part(name, source) for name, (source, _) in parts.items()]
        self._per_round = _whole_shares({name: weight for name, (_, weight) in parts.items()})
        self._turns = _turns(self._per_round)
        self._starts = np.cumsum([0, *map(len, self._parts)])
        self.shares = {name: share / len(self._turns) for name, share in zip(parts, self._per_round, strict=True)}
        self.takes_many = all(part.takes_many for part in self._parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        number, local = self._part_of(index)
        return self._parts[number][local]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        examples: list[Any] = [None] * len(indices)
        for number, rows, local in by_part(self._starts, indices):
            for row, example in zip(rows, self._parts[number].__getitems__(local.tolist()), strict=True):
                examples[row] = example
        return examples

    def take(self, indices: Sequence[int]) -> Any:
        import numpy as np

        taken, columns, order = [], [], []
        for number, rows, local in by_part(self._starts, indices):
            taken.append(self._parts[number].take(local.tolist()))
            columns.append(arrays_of(taken[-1]))
            first = [(path, leaf[:1].reshape(leaf.shape[1:])) for path, leaf in columns[0]]
            check_alike(columns[-1], first, batched=True)
            order += rows.tolist()
        places = np.argsort(order)
        together = (np.concatenate([arrays[leaf][1] for arrays in columns])[places] for leaf in range(len(columns[0])))
        return rebuilt(taken[0], together)

    def expect(self, examples: int) -> None:
        for part in self._parts:
            part.expect(examples)

    def where(self, index: int) -> str:
        number, local = self._part_of(index)
        return f"{self._names[number]}: {self._parts[number].where(local)}"

    def fingerprint(self) -> str:
        shown = zip(self._names, self._per_round, self._parts, strict=True)
        return "; ".join(f"{name} {share} of {len(part)} {part.fingerprint()}".strip() for name, share, part in shown)

    def samples(self) -> Sequence[int]:
        starts_and_parts = zip(self._starts[:-1].tolist(), self._parts, strict=True)
        return [start + index for start, part in starts_and_parts for index in (0, *part.samples())]

    def training_order(self, order_of: Callable[[Source, str], Any]) -> Any:
        import numpy as np

        of_parts = [order_of(part, name) for part, name in zip(self._parts, self._names, strict=True)]
        turns, starts = tf.constant(self._turns), self._starts.tolist()
        before = [np.cumsum(self._turns == number) - (self._turns == number) for number in range(len(of_parts))]
        done = [tf.constant(column, tf.int64) for column in before]

        def example_order(positions: tf.Tensor) -> tf.Tensor:
            rounds, position = positions // len(self._turns), positions % len(self._turns)
            part, numbers = tf.gather(turns, position), tf.zeros_like(positions)
            for number, of_part in enumerate(of_parts):
                turn = rounds * self._per_round[number] + tf.gather(done[number], position)
                numbers = tf.where(part == number, starts[number] + of_part(turn), numbers)
            return numbers

        return example_order

    def _part_of(self, index: int) -> tuple[int, int]:
        number = int(self._starts.searchsorted(index, side="right")) - 1
        return number, int(index) - int(self._starts[number])


def _part(name: str, source: Any) -> Source:
    try:
        part = adopt(source)
    except DataError as error:
        if error.field:  # of a section
            error.field = f"parts.{name}.{error.field}"
            raise
        raise DataError(f"part '{name}' of the mixture: {error}") from error
    if len(part) == 0:
        raise DataError(f"part '{name}' of the mixture has no example")
    return part


def _whole_shares(weights: Mapping[str, float]) -> list[int]:
    """Returns the shares as whole numbers, whose sum is the length of the table."""
    for name, weight in weights.items():
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise DataError(f"part '{name}' of the mixture: the weight must be above 0, got {shorten(repr(weight))}")
    exact = [Fraction(repr(float(weight))) for weight in weights.values()]
    shares = [weight / sum(exact) for weight in exact]
    rounds = math.lcm(*(share.denominator for share in shares))
    if rounds <= _LONGEST:
        return [int(share * rounds) for share in shares]
    ends = [round(end * _LONGEST) for end in itertools.accumulate(shares)]
    whole = [end - before for before, end in itertools.pairwise([0, *ends])]
    if 0 in whole:
        name = list(weights)[whole.index(0)]
        raise DataError(f"part '{name}' of the mixture: its share is below 1 in {_LONGEST:,}; give it a larger weight")
    return whole


def _turns(shares: Sequence[int]) -> Any:
    """Returns the number of the part at each position of the table."""
    import numpy as np

    length = sum(shares)
    turns, done = np.zeros(length, np.int32), [0] * len(shares)
    later: list[tuple[int, int]] = [(0, part) for part in range(len(shares))]  # the position from which it may be next
    ready: list[tuple[int, int]] = []  # the position before which it must be next
    for position in range(length):
        while later and later[0][0] <= position:
            _, part = heapq.heappop(later)
            heapq.heappush(ready, (-(-(done[part] + 1) * length // shares[part]), part))
        _, part = heapq.heappop(ready)
        turns[position] = part
        done[part] += 1
        heapq.heappush(later, (done[part] * length // shares[part], part))
    return turns
