"""How a window of training steps runs: a traced while loop over batches or over blocks of them, or a Python loop.

Owns: turning a step function into `loop(iterator, num_steps)`, and handing out blocks of batches. Results never depend
on how steps are cut into windows. Does not own: what a step is (`train_steps.py`), where a window ends (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.engine.step_clock import StepClock
from official_trainer.engine.traces import Kind, Traces, batch_of_block
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import convert, engine_function

WindowLoop = Callable[[Any, tf.Tensor], None]

MAX_BLOCK_STEPS = 128
"""The most batches that are stacked into a block for a compiled window."""


def stepping_loop(
    step: Callable[[Any], Any], traces: Traces, kind: Kind, *, traced_step: bool, traced_loop: bool
) -> WindowLoop:
    """Returns `loop(iterator, num_steps)` that calls `step(iterator)` for each step.

    The loop raises `tf.errors.OutOfRangeError` or `StopIteration` when the iterator ends; all steps before are done.
    """
    if traced_loop:
        return tf.function(engine_function(_counted_loop(step, traces, kind)))
    run = tf.function(traces.watched(kind, step)) if traced_step else step

    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in range(int(num_steps)):
            run(iterator)

    return loop


def _counted_loop(step: Callable[[Any], Any], traces: Traces, kind: Kind) -> WindowLoop:
    """Returns an untraced `loop(iterator, num_steps)` that has only the counter that every while loop has.

    `for _ in tf.range(num_steps)` carries a range too, which takes 5 % of a small model's step.
    """

    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
        traced = convert(step)

        def body(nothing: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope(""):  # names of ops do not begin with "while/"
                traced(iterator)
            return [nothing]

        with traces.tracing(kind, iterator):
            tf.while_loop(lambda nothing: True, body, [tf.constant(0)], maximum_iterations=num_steps)

    return loop


class Blocks:
    """An iterator over batches that come in blocks, `[block_steps, batch, …]`.

    Attributes:
      element_spec: of a batch.
    """

    def __init__(self, blocks: Iterator[Any], clock: StepClock) -> None:
        """Takes an iterator over blocks of one size, and what measures how long they are waited for."""
        self._blocks, self._clock = blocks, clock
        self._block: Any = None
        self._next_step = self._block_steps = 0
        self.element_spec = batch_of_block(blocks)

    def take(self, most: int) -> tuple[Any, int, int]:
        """Returns a block, and from where up to where its batches, `most` at most, are the next ones."""
        if self._next_step == self._block_steps:
            with self._clock.waiting() as received:
                self._block = next(self._blocks)
                received(self._block)
            self._next_step, self._block_steps = 0, int(tf.nest.flatten(self._block)[0].shape[0])
        start, self._next_step = self._next_step, min(self._block_steps, self._next_step + most)
        return self._block, start, self._next_step

    def __next__(self) -> Any:
        """Returns the next batch alone."""
        block, start, _ = self.take(1)
        return tf.nest.map_structure(lambda batches: batches[start], block)


def block_loop(step: Callable[[Any], None], traces: Traces, *, compiles: bool) -> WindowLoop:
    """Returns `loop(blocks, num_steps)` over `Blocks`: in a while loop, or inside one XLA program.

    A step takes its batch from the block without copying it and without waking another thread, which an iterator does.
    XLA compiles for fixed shapes. So data comes in blocks of one size and the function takes the first and last step to
    run as numbers: a window of any length uses the same trace.

    Args:
      step: `step(batch)`, the engine's, run on one replica.
      traces: records traces.
      compiles: whether XLA compiles a window, as one program.
    """

    def run(block: Any, start: tf.Tensor, stop: tf.Tensor) -> None:
        def body(i: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope(""):
                step(tf.nest.map_structure(lambda batches: batches[i], block))
            return [i + 1]

        # Not a loop over `tf.range(start, stop)`: XLA makes the ends of a range constants of the program and
        # compiles it for every pair, which takes seconds each time.
        with traces.tracing("train", batch_of_block(block)):
            tf.while_loop(lambda i: i < stop, body, [start])

    traced_run = tf.function(engine_function(run), jit_compile=True if compiles else None)

    def loop(blocks: Blocks, num_steps: tf.Tensor) -> None:
        remaining = int(num_steps)
        while remaining > 0:
            block, start, stop = blocks.take(remaining)
            traced_run(block, tf.constant(start), tf.constant(stop))
            remaining -= stop - start

    return loop
