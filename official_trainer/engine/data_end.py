"""Whether data that is read to its end has one: refused where it is known to have none, counted where that is unknown.

Owns: the message about data without an end, and what is said meanwhile of data whose end nothing tells. Does not own:
reading (`evaluation.py`, `inference.py`), training data, which need not end (`train_iterator.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from official_trainer.inputs import DataError
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""How often it is said how far data of unknown length is read."""

TIMES_TRAINING = 10
"""A validation set that is larger than so many passes over the training data has probably no end."""


class EndlessError(DataError):
    """Data that is read to its end has none."""

    names_line = True


def ends(dataset: Any) -> bool | None:
    """Returns whether a dataset ends; None if nothing tells, as for a generator, or for a distributed one."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        return None
    return cardinality != tf.data.INFINITE_CARDINALITY


class Progress:
    """Says how far data is read whose length nothing tells, and warns once when it is more than was likely meant."""

    def __init__(
        self,
        what: str,
        examples: Callable[[], int],
        most: int,
        advice: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins.

        Args:
          what: is done, for the lines: `evaluating validation_data`.
          examples: returns how many examples were read so far.
          most: more examples than this are a warning; 0 for no warning.
          advice: what to do if the data has no end, for the warning.
          clock: returns the time in seconds.
        """
        self._what, self._examples, self._most, self._advice = what, examples, most, advice
        self._clock, self._said_at, self._batches = clock, clock(), 0

    def __call__(self, batches: int = 1) -> None:
        """Adds so many batches that were read; most calls say nothing."""
        self._batches += batches
        if self._clock() - self._said_at < REPORT_SECONDS:
            return
        self._said_at, examples = self._clock(), self._examples()
        count = f"{self._batches:,} batch{'' if self._batches == 1 else 'es'} so far ({examples:,} examples)"
        so_far = f"{self._what}: {count}, and how many follow is unknown"
        _logger.info("%s", so_far)
        if 0 < self._most < examples:
            _logger.warning("%s; %s", so_far, self._advice)
            self._most = 0
