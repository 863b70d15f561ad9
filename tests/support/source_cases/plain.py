"""Sources in memory: of this package, of Python, of Grain, and one made of arrays."""

import grain
import numpy as np

from official_trainer.inputs import Source
from tests.support.sources import Columns, Numbers


class Arrays(Source):
    """Rows of arrays, many at once."""

    def __init__(self, count):
        self._columns = {"id": np.arange(count), "x": np.linspace(0, 1, count * 3, dtype=np.float32).reshape(count, 3)}

    def __len__(self):
        return len(self._columns["id"])

    def __getitem__(self, index):
        return {name: column[index] for name, column in self._columns.items()}

    def take(self, indices):
        return {name: column[indices] for name, column in self._columns.items()}


def listed(folder, count):
    return [{"id": number, "x": [number / count, 1.0]} for number in range(count)]


def one_by_one(folder, count):
    return Numbers(count)


def columns(folder, count):
    return Columns(count)


def groups(folder, count):
    """Groups of three sizes, in turn, and one with what is left."""
    sizes = [size for _ in range(count) for size in (7, 2, 11)]
    ends = np.minimum(np.cumsum(sizes), count)
    return Numbers(count, groups=[int(size) for size in np.diff(ends, prepend=0) if size])


def arrays(folder, count):
    return Arrays(count)


def numbered(number):
    return {"id": number}


def grain_map_dataset(folder, count):
    return grain.MapDataset.range(count).map(numbered)


CASES = {
    "list": listed,
    "one by one": one_by_one,
    "columns": columns,
    "groups": groups,
    "arrays": arrays,
    "grain MapDataset": grain_map_dataset,
}
