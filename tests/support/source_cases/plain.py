"""Sources in memory: of this package, of Python and of Grain."""

import grain
import numpy as np

from tests.support.sources import Columns, Numbers


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


def numbered(number):
    return {"id": number}


def grain_map_dataset(folder, count):
    return grain.MapDataset.range(count).map(numbered)


CASES = {
    "list": listed,
    "one by one": one_by_one,
    "columns": columns,
    "groups": groups,
    "grain MapDataset": grain_map_dataset,
}
