"""How long the training steps of this process have waited for their data.

Owns: the readings of a clock, in a traced step or beside a call of the host. Does not own: what a step is
(`train_steps.py`), what the time means (`runs/health/`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from official_trainer.lazy import tf

_WAITS = -1e6  # no clock is set back so far


class StepClock:
    """Sums up the seconds for which steps wait; any thread may read it.

    A wait begins by subtracting the seconds since 1970 from the sum, and ends by adding them: so no number has to be
    remembered between the two, and a step that waits shows by a sum far below zero.
    """

    def __init__(self, *, is_used: bool = True) -> None:
        """Creates the sum; for steps that run in other processes, several at a time, there is none.

        Nor is there one where operations have to be deterministic, because TensorFlow refuses to read its clock.
        """
        self._sum: tf.Variable | None = None
        if is_used:
            with futures.ThreadPoolExecutor(1) as outside:  # of the strategy in scope, which would mirror the variable
                self._sum = outside.submit(_create).result()
        self._has_measured = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[Any], None]]:
        """For a block in a traced step that gets its inputs; yields what it calls with them in its last line."""
        waited = self._sum
        if waited is None:
            yield lambda inputs: None
            return
        self._has_measured = True
        with tf.device("CPU:0"):
            began = waited.assign_sub(tf.timestamp(), read_value=False)

        def received(inputs: Any) -> None:
            first = tf.nest.flatten(inputs, expand_composites=True)[:1]
            with tf.device("CPU:0"), tf.control_dependencies(first):
                waited.assign_add(tf.timestamp(), read_value=False)

        with tf.control_dependencies([] if began is None else [began]):
            yield received

    def end_window(self) -> None:
        """Ends a wait for data that never came."""
        if self._sum is not None and self.means_waiting(self.mark):
            self._sum.assign_add(time.time())

    @property
    def mark(self) -> float:
        """A number that changes whenever a step begins or ends to wait."""
        return 0.0 if self._sum is None else float(self._sum.numpy())

    @staticmethod
    def means_waiting(mark: float) -> bool:
        """Whether a step waits while this is the `mark`."""
        return mark < _WAITS

    @property
    def waited_seconds(self) -> float | None:
        """For how long steps have waited so far, the one that waits now included; None if no step is measured."""
        if not self._has_measured:
            return None
        waited = self.mark
        return waited + time.time() if self.means_waiting(waited) else waited


def _create() -> tf.Variable | None:
    with tf.device("CPU:0"):
        try:
            tf.timestamp()
        except tf.errors.FailedPreconditionError:
            return None
        return tf.Variable(0.0, dtype=tf.float64, trainable=False, name="waited_seconds")
