"""Ending TensorFlow's calls early when the run is asked to stop.

Owns: cancelling, and knowing when a training step may be cancelled: while it waits for data, before it has changed
anything. Does not own: signals (`stopping.py`), what happens then (`loop.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.lazy import load, tf
from official_trainer.stopping import PreemptedError, StopRequest, TornStepError


class InputMark:
    """Tells, from outside a traced window, whether a step is waiting for its data or works on it.

    The mark is a counter on the host, odd while a step waits. It costs a step about a microsecond.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="input_mark")

    def next(self, get_inputs: Callable[[], Any]) -> Any:
        """Returns `get_inputs()`, marked; traced. Nothing that depends on the inputs runs before the mark is set."""
        self._add_one()
        inputs = get_inputs()
        with tf.control_dependencies(_first_tensor(inputs)), tf.control_dependencies([self._add_one()]):
            return tf.nest.map_structure(tf.identity, inputs, expand_composites=True)

    def _add_one(self) -> Any:
        with tf.device("CPU:0"):
            return self._count.assign_add(1, read_value=False)

    @property
    def count(self) -> int:
        """How often steps have begun and ended to wait; may be read in any thread."""
        return int(self._count.numpy())

    def reset(self) -> None:
        """Marks that no step waits, whatever became of the last one."""
        self._count.assign(0)


def is_waiting(count: int) -> bool:
    """Whether a step waits for data when the mark is at `count`."""
    return count % 2 == 1


@contextlib.contextmanager
def cancelled_on_stop(stop: StopRequest, *, mark: InputMark | None = None) -> Iterator[None]:
    """Cancels the TensorFlow functions called inside once the run is asked to stop.

    Args:
      stop: who asks.
      mark: cancels only while a step waits for data; None cancels at once, for what may be left half done.

    Raises:
      PreemptedError: a call was cancelled.
      TornStepError: it was not waiting any more when that happened.
    """
    cancellation = load("tensorflow.python.eager.cancellation")
    manager = cancellation.CancellationManager()
    counts: list[int] = []  # of the mark, as it was looked at
    is_cancelled = False

    def cancel() -> None:
        nonlocal is_cancelled
        if mark is not None:
            counts.append(mark.count)
            if len(counts) < 2 or counts[-1] != counts[-2] or not is_waiting(counts[-1]):
                return
        if not is_cancelled:
            is_cancelled = True
            manager.start_cancel()

    if mark is not None:
        mark.reset()
    try:
        with stop.calling(cancel), cancellation.CancellationManagerContext(manager):
            yield
    except (tf.errors.CancelledError, StopIteration, tf.errors.OutOfRangeError) as error:
        if not is_cancelled:
            raise
        if mark is not None and mark.count != counts[-1]:
            raise TornStepError from error
        raise PreemptedError(str(stop.reason)) from error


def _first_tensor(inputs: Any) -> list[tf.Tensor]:
    return tf.nest.flatten(inputs, expand_composites=True)[:1]
