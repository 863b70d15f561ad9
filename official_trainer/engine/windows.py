"""How a window of training steps runs: a traced while loop, a Python loop, or one program compiled by XLA.

Owns: turning a step function into `loop(iterator, num_steps)`. Results never depend on how steps are cut into windows.
Does not own: what a step is (`train_steps.py`), how long a window may be (`loop_windows.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.engine.input_wait import InputWait
from official_trainer.lazy import tf

WindowLoop = Callable[[Any, tf.Tensor], None]
Watched = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a function that does the same, and records when TensorFlow traces it."""

MAX_BLOCK_STEPS = 128
"""The most batches that a compiled window holds at once."""


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

    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
        def body(nothing: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope(""):  # names of ops do not begin with "while/"
                step(iterator)
            return [nothing]

        tf.while_loop(lambda nothing: True, body, [tf.constant(0)], maximum_iterations=num_steps)

    return loop


class CompiledLoop:
    """Runs steps inside one XLA program over blocks of batches, `[block_steps, batch, …]`.

    XLA compiles for fixed shapes. So data comes in blocks of one size and the program takes the first and last step to
    run as numbers: a window of any length uses the same program.
    """

    def __init__(self, step: Callable[[Any], None], input_wait: InputWait, watched: Watched) -> None:
        """Takes `step(batch)`, traceable by XLA and run on one replica; `input_wait` counts when data is awaited."""
        self._iterator: Any = None
        self._block: Any = None
        self._next_step = self._block_steps = 0

        def run(block: Any, start: tf.Tensor, stop: tf.Tensor) -> None:
            # Not `for i in tf.range(start, stop)`: XLA makes the ends of a range constants of the program and
            # compiles it for every pair, which takes seconds each time.
            i = start
            while i < stop:
                with tf.name_scope(""):
                    step(tf.nest.map_structure(functools.partial(_batch_of, index=i), block))
                i += 1

        self._run = tf.function(watched(run), jit_compile=True)
        self._input_wait, self._watched = input_wait, watched

    def returning(self, step: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Any]:
        """Returns `run(iterator)` that runs one step of this loop with `step(batch)` and returns what that returns."""

        def run(block: Any, index: tf.Tensor) -> Any:
            return step(tf.nest.map_structure(functools.partial(_batch_of, index=index), block))

        compiled = tf.function(self._watched(run), jit_compile=True)

        def run_next(iterator: Iterator[Any]) -> Any:
            self._take_block(iterator)
            returned = compiled(self._block, tf.constant(self._next_step))
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
