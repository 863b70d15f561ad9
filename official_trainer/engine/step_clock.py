"""How long the training steps of this process have waited for their data.

Owns: the readings of a clock, inside a traced step and beside the host's calls of `next`. Does not own: what a step is
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

    One number holds both the sum and whether a step waits: a wait begins by subtracting the seconds since 1970 and ends
    by adding them, so that the number is far below zero meanwhile.
    """

    def __init__(self, *, is_used: bool = True) -> None:
        """Creates the number; for steps that run in other processes, several at a time, there is none."""
        self._in_graph: tf.Variable | None = None
        if is_used:
            with futures.ThreadPoolExecutor(1) as outside:  # of the strategy in scope, which would mirror the variable
                self._in_graph = outside.submit(_create).result()
        self._on_host = 0.0
        self._is_traced = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[Any], None]]:
        """For a block in a traced step that gets its inputs; yields what it calls with them in its last line."""
        seconds = self._in_graph
        if seconds is None:
            yield lambda inputs: None
            return
        self._is_traced = True
        with tf.device("CPU:0"):
            began = seconds.assign_sub(tf.timestamp(), read_value=False)

        def received(inputs: Any) -> None:
            first = tf.nest.flatten(inputs, expand_composites=True)[:1]
            with tf.device("CPU:0"), tf.control_dependencies(first):
                seconds.assign_add(tf.timestamp(), read_value=False)

        with tf.control_dependencies([] if began is None else [began]):
            yield received

    def next(self, iterator: Iterator[Any]) -> Any:
        """Returns `next(iterator)`; called on the host."""
        self._is_traced = True
        self._on_host -= time.time()
        try:
            return next(iterator)
        finally:
            self._on_host += time.time()

    def end_window(self) -> None:
        """Ends a wait for data that never came."""
        if self._in_graph is not None and self._in_graph.numpy() < _WAITS:
            self._in_graph.assign_add(time.time())

    @property
    def mark(self) -> float:
        """A number that changes whenever a step begins or ends to wait."""
        return sum(self._parts)

    @property
    def is_waiting(self) -> bool:
        """Whether a step waits now."""
        return any(part < _WAITS for part in self._parts)

    @property
    def waited_seconds(self) -> float | None:
        """For how long steps have waited so far, the one that waits now included; None if no step is measured."""
        if not self._is_traced:
            return None
        now = time.time()
        return sum(part + now if part < _WAITS else part for part in self._parts)

    @property
    def _parts(self) -> list[float]:
        return [self._on_host, 0.0 if self._in_graph is None else float(self._in_graph.numpy())]


def _create() -> tf.Variable:
    with tf.device("CPU:0"):
        return tf.Variable(0.0, dtype=tf.float64, trainable=False, name="waited_seconds")
