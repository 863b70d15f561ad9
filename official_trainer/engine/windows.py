"""How a window of training steps runs: a traced while loop over batches or over blocks of them, or a Python loop.

Owns: turning a step function into `loop(iterator, num_steps)`, and the counter that shows whether the step of a window
waits for data or computes. Results never depend on how steps are cut into windows. Does not own: what a step is
(`train_steps.py`), where a window ends (`loop.py`), who reads the counter (`runs/health/time_account.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from official_trainer.engine.traces import Traces, batch_of_block
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import convert, counted_alone, do_not_convert

WindowLoop = Callable[[Any, tf.Tensor], None]
Watched = Callable[..., Callable[..., Any]]
"""Returns a function that does the same, and records when TensorFlow traces it, as `Traces.watched`."""

MAX_BLOCK_STEPS = 128
"""The most batches that are stacked into a block for a compiled window."""


def stepping_loop(step: Callable[[Any], Any], *, traced_step: bool, traced_loop: bool, watched: Watched) -> WindowLoop:
    """Returns `loop(iterator, num_steps)` that calls `step(iterator)` for each step.

    The loop raises `tf.errors.OutOfRangeError` or `StopIteration` when the iterator ends; all steps before are done.
    """
    if traced_loop:
        return tf.function(watched(_counted_loop(step)))
    run = tf.function(watched(step)) if traced_step else step

    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in range(int(num_steps)):
            run(iterator)

    return loop


def _counted_loop(step: Callable[[Any], Any]) -> WindowLoop:
    """Returns an untraced `loop(iterator, num_steps)` that has only the counter that every while loop has.

    `for _ in tf.range(num_steps)` carries a range too, which takes 5 % of a small model's step.
    """

    @do_not_convert
    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
        traced = convert(step)

        def body(nothing: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope(""):  # names of ops do not begin with "while/"
                traced(iterator)
            return [nothing]

        tf.while_loop(lambda nothing: True, body, [tf.constant(0)], maximum_iterations=num_steps)

    return loop


class BlockLoop:
    """Runs steps over blocks of batches, `[block_steps, batch, …]`: in a while loop, or inside one XLA program.

    A step takes its batch from the block without copying it and without waking another thread, which an iterator does.
    XLA compiles for fixed shapes. So data comes in blocks of one size and the function takes the first and last step to
    run as numbers: a window of any length uses the same trace.
    """

    def __init__(self, step: Callable[[Any], None], input_wait: InputWait, traces: Traces, *, compiles: bool) -> None:
        """Takes what a window needs.

        Args:
          step: `step(batch)`, run on one replica.
          input_wait: counts when data is awaited.
          traces: records traces.
          compiles: whether XLA compiles a window, as one program.
        """
        self._iterator: Any = None
        self._block: Any = None
        self._next_step = self._block_steps = 0

        @do_not_convert
        def run(block: Any, start: tf.Tensor, stop: tf.Tensor) -> None:
            traced = convert(step)

            def body(i: tf.Tensor) -> list[tf.Tensor]:
                with tf.name_scope(""):
                    traced(tf.nest.map_structure(functools.partial(_batch_of, index=i), block))
                return [i + 1]

            # Not a loop over `tf.range(start, stop)`: XLA makes the ends of a range constants of the program and
            # compiles it for every pair, which takes seconds each time.
            with traces.tracing("train", batch_of_block(block)):
                tf.while_loop(lambda i: i < stop, body, [start])

        self._compiled = True if compiles else None
        self._run = tf.function(counted_alone(run), jit_compile=self._compiled)
        self._input_wait, self._traces = input_wait, traces

    def returning(self, step: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Any]:
        """Returns `run(iterator)` that runs one step of this loop with `step(batch)` and returns what that returns."""

        @do_not_convert
        def run(block: Any, index: tf.Tensor) -> Any:
            with self._traces.tracing("train", batch_of_block(block)):
                return convert(step)(tf.nest.map_structure(functools.partial(_batch_of, index=index), block))

        traced = tf.function(counted_alone(run), jit_compile=self._compiled)

        def run_next(iterator: Iterator[Any]) -> Any:
            self._take_block(iterator)
            returned = traced(self._block, tf.constant(self._next_step))
            self._next_step += 1
            return returned

        return run_next

    def __call__(self, iterator: Iterator[Any], num_steps: tf.Tensor) -> None:
        """Runs `num_steps` steps; the rest of a block is kept for the next call on the same iterator."""
        remaining = int(num_steps)
        while remaining > 0:
            self._take_block(iterator)
            stop = min(self._block_steps, self._next_step + remaining)
            self._run(self._block, tf.constant(self._next_step), tf.constant(stop))
            remaining -= stop - self._next_step
            self._next_step = stop

    def _take_block(self, iterator: Iterator[Any]) -> None:
        """Reads the next block if the current one has no batch for the next step."""
        if iterator is not self._iterator:
            self._iterator, self._block, self._next_step, self._block_steps = iterator, None, 0, 0
        if self._next_step == self._block_steps:
            self._block = self._input_wait.next(lambda: next(iterator))
            self._next_step, self._block_steps = 0, int(tf.nest.flatten(self._block)[0].shape[0])


def _batch_of(batches: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    return batches[index]


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
