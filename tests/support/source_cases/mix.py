"""Mixtures: of parts in columns, in groups and in lists, and of a mixture in a mixture; and packed rows."""

import itertools

from official_trainer.inputs import Mapped, Mixture, Packed
from tests.support.sources import Columns, Sequences


class From(Columns):
    """Examples whose `id` begins at a number of their own, in groups of four or none."""

    def __init__(self, first, count, *, grouped=False):
        super().__init__(count, groups=[4] * (count // 4) + [count % 4] * bool(count % 4) if grouped else ())
        self._first = first

    def __getitem__(self, index):
        return {**super().__getitem__(index), "id": self._first + index}

    def take(self, indices):
        batch = super().take(indices)
        return {**batch, "id": batch["id"] + self._first}


def mixture(folder, count):
    """Three parts, each with the share that it has of all examples, so that an epoch has each example once."""
    ends = [0, count // 2, count // 2 + count // 3, count]
    spans = [(first, end - first) for first, end in itertools.pairwise(ends) if end > first]
    sources = [From(first, size, grouped=number == 1) for number, (first, size) in enumerate(spans)]
    return Mixture({f"part{n}": (source, len(source)) for n, source in enumerate(sources)})


def nested(folder, count):
    half = count // 2
    inner = Mixture({"listed": ([From(0, half)[number] for number in range(half)], 1)})
    return Mixture({"inner": (inner, half), "other": (From(half, count - half), count - half)})


def numbered(row):
    return {**row, "id": row["tokens"][0] // 1000}


def packed(folder, count):
    """Rows with an example each, as their tokens say."""
    return Mapped(Packed(Sequences([4] * count), 4), numbered)


CASES = {"mixture": mixture, "mixture in a mixture": nested, "packed": packed}
