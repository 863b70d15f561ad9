"""The shuffled order of examples that are read in groups, such as the row groups of a file.

Owns: which example is at which position, and which groups that needs. Does not own: reading groups (`sources/`), the
order of examples that can be read one by one (`order.py`).

An epoch permutes the groups, and cuts them into windows of at least `window` examples; in a window all examples change
places. So a reader holds the groups of one or two windows, and position p still says which example it is, on any
number of hosts. NumPy has promised never to change the numbers of `RandomState`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any


class GroupedOrder:
    """The order of examples in groups, as a function of seed and position."""

    def __init__(self, groups: Sequence[int], window: int, seed: int) -> None:
        """Takes the number of examples in each group, in their order; of a window, at least; and the seed."""
        import numpy as np

        self._sizes = np.asarray(groups, np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._window, self._seed = window, seed
        self.num_examples = int(self._sizes.sum())
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)  # two meet where one ends
        self._window_of = functools.lru_cache(maxsize=4)(self._make_window)

    def indices(self, positions: Any) -> Any:
        """Returns which example is at each of the rising positions, `[n]` int64, counted over all epochs."""
        import numpy as np

        indices: list[Any] = []
        while len(positions):
            epoch = int(positions[0] // self.num_examples)
            ends = self._epoch(epoch)[1] + epoch * self.num_examples
            window = int(ends.searchsorted(positions[0], side="right"))
            examples = self._window_of(epoch, window)
            stop = positions.searchsorted(ends[window])
            indices.append(examples[positions[:stop] - (ends[window] - len(examples))])
            positions = positions[stop:]
        return np.concatenate(indices)

    def _make_epoch(self, epoch: int) -> tuple[list[Any], Any]:
        """Returns the groups of each window of an epoch, and the position at which each window ends."""
        import numpy as np

        groups = self._random("groups", epoch).permutation(len(self._sizes))
        ends = np.cumsum(self._sizes[groups])
        cuts, first = [], 0
        while first < len(groups):
            before = ends[first - 1] if first else 0
            first = min(int(np.searchsorted(ends, before + self._window)) + 1, len(groups))
            cuts.append(first)
        return np.split(groups, cuts[:-1]), ends[np.asarray(cuts) - 1]

    def _make_window(self, epoch: int, window: int) -> Any:
        """Returns the examples of a window in their order."""
        import numpy as np

        groups = self._epoch(epoch)[0][window]
        examples = np.concatenate([np.arange(self._sizes[group]) + self._starts[group] for group in groups])
        return examples[self._random("window", epoch, window).permutation(len(examples))]

    def _random(self, *words: Any) -> Any:
        import numpy as np

        text = "/".join(map(str, (*words, self._seed)))
        return np.random.RandomState(np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.uint32))
