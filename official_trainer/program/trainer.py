"""What a Program brings to the loop: its Trainer and, where there is no run directory, its store.

Owns: evaluations that call callbacks, no checks for values that are not finite where no checkpoints are kept, and the
store that saves nothing. Does not own: calling callbacks while training (`callbacks.py`), or the loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from official_trainer.engine import windows
from official_trainer.engine.inference import num_examples_of
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import tf
from official_trainer.program.callbacks import looks_at_test_batches
from official_trainer.program.rewards import rewards_of
from official_trainer.tasks.autograph import do_not_convert


class KerasNumbers:
    """The numbers of a compiled model's task, under Keras's names."""

    has_task_steps: ClassVar[bool] = False
    """Whether steps are those of a user's Task: the engine measures their loss, and skips them without examples."""

    def __init__(self, trainer: Trainer) -> None:
        """Takes the trainer of the model."""
        self._trainer = trainer

    def reported(self, logs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        """Returns the entries of flat logs for callbacks and the history, under Keras's names."""
        return self._trainer.task.logs_among("train" if training else "eval", logs)

    def evaluated(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the same for the logs that an evaluation has returned."""
        del logs
        return self.current(training=False)

    def current(self, *, training: bool) -> dict[str, Any]:
        """Returns the current results of the metrics."""
        return self._trainer.task.live_logs("train" if training else "eval")

    def of_own_step(self, *, training: bool) -> dict[str, Any]:
        """Returns the last logs of a model's own step; none for Keras's steps."""
        return self._trainer.task.own_logs("train" if training else "eval")

    def reset_training(self) -> None:
        """Resets the metrics of training."""
        self._trainer.model.reset_metrics()


class _ExampleCount:
    """The number of examples that were trained on, in batches of any size."""

    def __init__(self) -> None:
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._count = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=first)
        self._taken = 0

    def add(self, parts: Sequence[Any]) -> None:
        """Adds the batches of all replicas; traced."""
        self._count.assign_add(tf.cast(tf.add_n([num_examples_of(part) for part in parts]), tf.int64))

    def take(self) -> int:
        """Returns the examples since the last call."""
        before, self._taken = self._taken, int(self._count.numpy())
        return self._taken - before


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of a Program: its callbacks, steps from one call for batches to the next, whether metrics add up."""

    callbacks: Any = None
    every: int = 1
    adds_up: bool = False


class ProgramTrainer(Trainer):
    """A Trainer whose evaluations call callbacks.

    Size: it inherits the methods and fields of a Trainer, which the loop and actions use.

    Attributes:
      numbers: the numbers that callbacks and the history get.
      keeps_record: whether there is a run directory. Without one nothing is measured that Keras does not measure, and
        losses and weights are not checked for values that are not finite: Keras trains on.
    """

    def __init__(self, *args: Any, keeps_record: bool, numbers: type[KerasNumbers] = KerasNumbers) -> None:
        """Takes the arguments of a Trainer, `keeps_record`, and the class of `numbers`."""
        options = TrainerOptions(
            counts_input_wait=keeps_record,  # else there is nothing to save while a step waits
            measures_loss=keeps_record or numbers.has_task_steps,
            # Keras's steps accept a batch without examples; without skipping they may communicate with all replicas.
            skips_idle_replicas=numbers.has_task_steps,
        )
        super().__init__(*args, options=options)  # type: ignore[misc]
        self.keeps_record = keeps_record
        self.numbers = numbers(self)
        self._examples = _ExampleCount()
        self._call = _Call()

    @contextlib.contextmanager
    def in_call(self, callbacks: Any, *, every: int, adds_up: bool = False) -> Iterator[None]:
        """For a call of a Program.

        Args:
          callbacks: a `keras.callbacks.CallbackList`, or None.
          every: steps from one call of callbacks for batches to the next.
          adds_up: whether an evaluation adds to the current values of its metrics, instead of resetting them.
        """
        self._call = _Call(callbacks=callbacks, every=every, adds_up=adds_up)
        try:
            yield
        finally:
            self._call = _Call(every=every)

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
                self._examples.add(self.strategy.experimental_local_results(inputs))
        return inputs

    @do_not_convert
    def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
        inputs, logs = super().next_eval_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            self.model._test_counter.assign_add(1)
        return inputs, logs

    def examples_of(self, num_steps: int) -> int:
        """Returns the number of examples since the last call."""
        return self._examples.take()

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
        state = None if self._call.adds_up else super().eval_begin()
        self.model._test_counter.assign(0)  # callbacks of Keras read it
        if self._call.callbacks is not None:
            self._call.callbacks.on_test_begin()
        return state

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns the loop of an evaluation, which stops for callbacks where some of them look at its batches."""
        whole = super().create_eval_loop_fn(has_state)
        watched = functools.partial(self.context.traces.watched, "eval")
        is_traced = not self.model.run_eagerly
        run = windows.stepping_loop(self.eval_step, traced_step=is_traced, traced_loop=is_traced, watched=watched)

        def loop(iterator: Any, num_steps: int, state: Any) -> Any:
            callbacks, every = self._call.callbacks, self._call.every
            if callbacks is None or not looks_at_test_batches(callbacks):
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
        if self._call.callbacks is not None:
            self._call.callbacks.on_test_end(self.numbers.evaluated(logs))
        return {**logs, **self.numbers.of_own_step(training=False)}


class NoStore:
    """The store of a run without a directory: it has nothing to restore, and saves nothing."""

    def restore(self) -> None:
        """Always returns None: there is no checkpoint."""

    def save(self, step: int, extra: Any, *, only_if: Callable[[], bool]) -> None:
        """Does nothing."""

    def steps(self) -> Sequence[int]:
        return ()

    def latest_step(self) -> None:
        """Always returns None: there is no checkpoint."""

    def poll(self) -> Sequence[int]:
        return ()

    def wait(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
