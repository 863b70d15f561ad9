"""What a Program brings to the loop: its Trainer and, where there is no run directory, its store.

Owns: evaluations that call callbacks, no checks for values that are not finite where no checkpoints are kept, and the
store that saves nothing. Does not own: calling callbacks while training (`callbacks.py`), or the loop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_trainer.engine import windows
from official_trainer.engine.inference import num_examples_of
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import tf
from official_trainer.program.callbacks import steps_between_calls
from official_trainer.program.rewards import rewards_of
from official_trainer.tasks.autograph import do_not_convert


class ProgramTrainer(Trainer):
    """A Trainer whose evaluations call callbacks.

    Size: it inherits the methods and fields of a Trainer, which the loop and actions use.

    Attributes:
      numbers: the numbers that callbacks and the history get; see `ProgramTask.reported`.
      keeps_record: whether there is a run directory. Without one nothing is measured that Keras does not measure, and
        losses and weights are not checked for values that are not finite: Keras trains on.
    """

    def __init__(self, *args: Any, keeps_record: bool, numbers: Callable[[Trainer], Any] | None = None) -> None:
        """Takes the arguments of a Trainer.

        Args:
          *args: config, task, model and optimizer.
          keeps_record: whether there is a run directory.
          numbers: returns the numbers of a user's Task for its trainer; None for a `ProgramTask`, which has them.
        """
        is_users = numbers is not None
        options = TrainerOptions(
            counts_input_wait=keeps_record,  # else there is nothing to save while a step waits
            measures_loss=keeps_record or is_users,
            # Keras's steps accept a batch without examples; without skipping they may communicate with all replicas.
            # The mean of a Task's losses over no examples is not a number.
            skips_idle_replicas=is_users,
        )
        super().__init__(*args, options=options)  # type: ignore[misc]
        self.keeps_record = keeps_record
        self.numbers = self.task if numbers is None else numbers(self)
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._num_examples = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=first)
        self._num_reported = 0
        self._callbacks: Any = None
        self._adds_up = False

    @contextlib.contextmanager
    def in_call(self, callbacks: Any, *, adds_up: bool = False) -> Iterator[None]:
        """For a call of a Program, in the strategy's scope.

        Args:
          callbacks: a `keras.callbacks.CallbackList`, or None.
          adds_up: whether an evaluation adds to the current values of its metrics, instead of resetting them.
        """
        self._callbacks, self._adds_up = callbacks, adds_up
        try:
            with self.strategy.scope():
                yield
        finally:
            self._callbacks, self._adds_up = None, False

    @property
    def mean_loss(self) -> float:
        """Mean training loss; 0 without a record, which does not check whether it is finite."""
        return super().mean_loss if self.keeps_record else 0.0

    def non_finite_weights(self) -> list[str]:
        """Returns the names of weights that are not finite; none without a record, which does not check."""
        return super().non_finite_weights() if self.keeps_record else []

    # Callbacks of Keras read its counters. Not in a task's step: one that a replica may skip cannot count.

    @do_not_convert
    def next_train_inputs(self, iterator: Any) -> Any:
        inputs = super().next_train_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            self.model._train_counter.assign_add(1)
            if self.keeps_record:
                parts = self.strategy.experimental_local_results(inputs)
                self._num_examples.assign_add(tf.cast(tf.add_n([num_examples_of(part) for part in parts]), tf.int64))
        return inputs

    @do_not_convert
    def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
        inputs, logs = super().next_eval_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            self.model._test_counter.assign_add(1)
        return inputs, logs

    def examples_of(self, num_steps: int) -> int:
        """Returns the number of examples since the last call."""
        before, self._num_reported = self._num_reported, int(self._num_examples.numpy())
        return self._num_reported - before

    def initialize(self) -> None:
        """Starts averages from the weights, the first time; a second call of `fit` continues with them."""
        if int(self.global_step.numpy()) == 0:
            super().initialize()

    def begin_at(self, step: int) -> None:
        """Continues from a step with weights that the caller has loaded; averages begin with these."""
        self.global_step.assign(step)
        super().initialize()

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context with averaged weights; before the first step these are the weights as they are."""
        is_trained = int(self.global_step.numpy()) > 0
        return super().weights_averaged() if is_trained else contextlib.nullcontext()

    def run_steps(self, num_steps: int, *, publish: bool = False) -> int:
        if self.context.enables_xla and (rewards := rewards_of(self.model)) is not None:
            rewards.check_compiler()
        with self._rewards_explained():
            return super().run_steps(num_steps, publish=publish)

    def evaluate(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        with self._rewards_explained():
            return super().evaluate(num_steps)

    @contextlib.contextmanager
    def _rewards_explained(self) -> Iterator[None]:
        """Names the reward that failed in Python, where TensorFlow names an operation."""
        try:
            yield
        except (tf.errors.OpError, RuntimeError):  # the latter of steps that are not traced
            rewards = rewards_of(self.model)
            if rewards is None or (failure := rewards.failure()) is None:
                raise
            raise failure from failure.__cause__

    def restart_data(self) -> None:
        """Has the data of the next call built again."""
        self.train_iterator.reset()
        self.eval_dataset = None

    def train_loop_end(self) -> dict[str, Any]:
        return {**super().train_loop_end(), **self.numbers.of_own_step(training=True)}

    def eval_begin(self) -> Any:
        state = None if self._adds_up else super().eval_begin()
        self.model._test_counter.assign(0)  # callbacks of Keras read it
        if self._callbacks is not None:
            self._callbacks.on_test_begin()
        return state

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns the loop of an evaluation, which stops for callbacks where some of them look at its batches."""
        whole = super().create_eval_loop_fn(has_state)
        watched = functools.partial(self.traces.watched, "eval")
        is_traced = not self.model.run_eagerly
        run = windows.stepping_loop(self.eval_step, traced_step=is_traced, traced_loop=is_traced, watched=watched)

        def loop(iterator: Any, num_steps: int, state: Any) -> Any:
            callbacks, every = self._callbacks, steps_between_calls(self.model)
            if not any(callback._implements_test_batch_hooks() for callback in callbacks or ()):
                return whole(iterator, num_steps, state)
            done = 0
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                while num_steps < 0 or done < num_steps:
                    count = every if num_steps < 0 else min(every, num_steps - done)
                    callbacks.on_test_batch_begin(done)
                    run(iterator, tf.constant(count))
                    done += count
                    callbacks.on_test_batch_end(done - 1, self.numbers.current(training=False))
            return state

        return loop

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        logs = super().eval_end(aggregated_logs)
        if self._callbacks is not None:
            self._callbacks.on_test_end(self.numbers.evaluated(logs))
        return {**logs, **self.numbers.of_own_step(training=False)}


class NoStore:
    """The store of a run without a directory: it has no checkpoint to restore, and saves none."""

    def restore(self) -> None:
        """Does nothing, and returns None where a step or a report is asked for."""

    latest_step = wait = close = restore

    def save(self, step: int, extra: Any, *, only_if: Callable[[], bool]) -> None:
        """Does nothing."""

    def steps(self) -> Sequence[int]:
        """Returns no steps."""
        return ()

    poll = steps
