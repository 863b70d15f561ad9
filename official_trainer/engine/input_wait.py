"""Whether the step of a traced window waits for data or computes, at any moment while the window runs.

Owns: the counter that shows it. A step that waits has changed nothing yet, so the state is that of the step before and
may be saved, though the window cannot be ended. Does not own: who reads the counter (`stopping.py`,
`runs/health/time_account.py`), or saving (`loop.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from official_trainer.lazy import tf
from official_trainer.stopping import StopRequest


class InputWait:
    """A counter on the host, odd while a step waits for its data. It costs a step about a microsecond."""

    def __init__(self, *, counts: bool = True) -> None:
        """Creates the counter, or none for steps that run in other processes, several at a time."""
        self._count: tf.Variable | None = None
        if counts:
            with futures.ThreadPoolExecutor(1) as outside:  # of the strategy in scope, which would mirror the counter
                self._count = outside.submit(_create_count).result()
        self._is_used = self._is_in_window = False

    def next(self, get_inputs: Callable[[], Any]) -> Any:
        """Returns `get_inputs()`; traced. Nothing that depends on the inputs runs before the counter is even again."""
        if self._count is None:
            return get_inputs()
        self._is_used = True
        _add_one(self._count)
        inputs = get_inputs()
        first = tf.nest.flatten(inputs, expand_composites=True)[:1]
        with tf.control_dependencies(first), tf.control_dependencies([_add_one(self._count)]):
            return tf.nest.map_structure(tf.identity, inputs, expand_composites=True)

    def rescuer(self, stop: StopRequest) -> Callable[[], bool]:
        """Returns a function to call repeatedly: it has the state saved once a step is stuck without data."""
        seen: list[int] = []

        def rescue() -> bool:
            seen.append(self.count)
            is_stuck = len(seen) > 1 and seen[-1] == seen[-2] and is_waiting(seen[-1])
            return is_stuck and stop.save_state(lambda: self.count == seen[-1])

        return rescue

    @contextlib.contextmanager
    def window(self) -> Iterator[None]:
        """For a window: sets the counter to "no step waits" first, whatever the last window left in it."""
        if self._count is not None:
            self._count.assign(0)
        self._is_in_window = True
        try:
            yield
        finally:
            self._is_in_window = False

    def waits(self) -> bool | None:
        """Whether a step waits for data; None where no window runs or steps do not count. Any thread may call it."""
        return is_waiting(self.count) if self._is_in_window and self._is_used else None

    @property
    def count(self) -> int:
        """How often steps have begun and ended to wait since the window began; any thread may read it."""
        return 0 if self._count is None else int(self._count.numpy())


def _add_one(count: tf.Variable) -> tf.Operation:
    with tf.device("CPU:0"):
        return count.assign_add(1, read_value=False)


def _create_count() -> tf.Variable:
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="input_mark")


def is_waiting(count: int) -> bool:
    """Whether a step waits for data while the counter is at `count`."""
    return count % 2 == 1
