"""Sources of examples with numbers, which tests of every source read: `CASES` of each module here.

A case is a function `case(folder, count)`. It writes `count` examples below a folder, and returns the section of a
config that reads them, or a source; each example has an int64 scalar `id`, which is its number.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable

from official_trainer import inputs


@functools.cache
def all_cases() -> dict[str, Callable]:
    """Returns the cases of all modules by their names."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        cases = importlib.import_module(f"{__name__}.{module.name}").CASES
        assert not found.keys() & cases.keys(), f"{module.name} has cases with the names of others"
        found |= cases
    return found


def pipeline(source, params, context=None):
    """Returns the batches of what a case returned: in Grain's order, shuffled, if it is a `MapDataset`."""
    if hasattr(source, "to_iter_dataset"):
        ordered = source.seed(3).shuffle() if params.is_training else source
        return inputs.from_grain(ordered, params, context)
    return inputs.from_source(source, params, context)
