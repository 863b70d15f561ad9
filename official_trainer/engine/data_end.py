"""Whether data that is read to its end has one: refused where it is known to have none, counted where that is unknown.

Owns: the message about data without an end, and what is said meanwhile of data whose end nothing tells. Does not own:
reading (`evaluation.py`, `inference.py`), training data, which need not end (`train_iterator.py`).
"""

from __future__ import annotations

import logging
import math
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

    names_line = "before"


def length_of(dataset: Any) -> float | None:
    """Returns how many elements a dataset has: infinity without an end, None if nothing tells.

    Nothing tells it of a generator, nor of a distributed dataset.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return None
    length = int(dataset.cardinality())
    return {tf.data.INFINITE_CARDINALITY: math.inf, tf.data.UNKNOWN_CARDINALITY: None}.get(length, length)


def ends(dataset: Any) -> bool | None:
    """Returns whether a dataset ends; None if nothing tells."""
    length = length_of(dataset)
    return None if length is None else length < math.inf


def advice(builder: Any) -> str:
    """Returns what to do if the validation data of a `DatasetBuilder` has no end."""
    place, _, is_named = builder.section.partition(".task_config.")
    is_training = getattr(builder.params, "is_training", False)
    flag = f", set {builder.section}.is_training=false" if is_training else ""
    return (
        f"leave out repeat() where {builder.source} builds validation data (params.is_training is false)"
        f"{flag}, or set {f'{place}.eval_steps' if is_named else 'trainer.validation_steps'} to a number of batches"
    )


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


def progress_of(what: str, builder: Any, trainer: Any, examples: Callable[[], int]) -> Progress:
    """Returns the `Progress` of an evaluation, with a warning when it has read more than training does.

    Args:
      what: is done, for the lines.
      builder: of the validation data.
      trainer: its training data is compared.
      examples: returns how many examples were read so far.
    """
    epoch = trainer.train_iterator.known_epoch_steps
    if epoch is None:
        steps, many = getattr(trainer.config.trainer, "train_steps", None) or 0, "all that training reads"
    else:
        steps, many = round(epoch * TIMES_TRAINING), f"{TIMES_TRAINING} times the training data"
    said = f"that is more than {many}. If there is no end, {advice(builder)}"
    return Progress(what, examples, trainer.examples_of(steps), said)
