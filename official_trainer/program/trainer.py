"""What a Program brings to the loop: its Trainer and, where there is no run directory, its store.

Owns: evaluations that callbacks hear of, not looking at what is not finite where no checkpoints are kept, and
saving nothing. Does not own: calling callbacks while training (`callbacks.py`), or the loop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.engine import windows
from official_trainer.engine.inference import num_examples_of
from official_trainer.engine.input_wait import NoInputMark
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import tf
from official_trainer.program.callbacks import looks_at_test_batches
from official_trainer.program.rewards import rewards_of
from official_trainer.tasks.autograph import do_not_convert

_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA


class ProgramTrainer(Trainer):
    """A Trainer whose evaluations are told to callbacks.

    Attributes:
      callbacks: a `keras.callbacks.CallbackList`, while a call runs that has one.
      every: steps from one call for batches to the next.
      adds_up: whether an evaluation goes on with what metrics hold, instead of beginning anew.
      keeps_record: whether there is a run directory. Without one nothing is measured that Keras does not measure, and
        nobody looks whether losses and weights are finite: Keras trains on.
    """

    callbacks: Any = None
    every: int = 1
    adds_up: bool = False
    tells_loss = False  # the one of the engine; Keras has its own
    spares_idle_replicas = False  # Keras's steps bear no examples; around them, nothing may ask all replicas

    @property
    def mean_loss(self) -> float:
        """Mean training loss, as far as anybody wants to know whether it is finite."""
        return super().mean_loss if self.keeps_record else 0.0

    def non_finite_weights(self) -> list[str]:
        """Returns the names of weights that are not finite, if anybody wants to know."""
        return super().non_finite_weights() if self.keeps_record else []

    def __init__(self, *args: Any, keeps_record: bool, **kwargs: Any) -> None:
        """Takes what a Trainer takes, and `keeps_record`."""
        super().__init__(*args, **kwargs)
        self.keeps_record = keeps_record
        if not keeps_record:
            self._input_mark = NoInputMark()  # there is nothing to save
        self._examples_trained = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=_FIRST)
        self._examples_told = 0

    # Callbacks of Keras look at its counters. Not in a task's step: one that a replica may leave out cannot count.

    @do_not_convert
    def next_train_inputs(self, iterator: Any) -> Any:
        inputs = super().next_train_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            self.model._train_counter.assign_add(1)
            if self.keeps_record:
                sizes = [num_examples_of(part) for part in self.strategy.experimental_local_results(inputs)]
                self._examples_trained.assign_add(tf.cast(tf.add_n(sizes), tf.int64))
        return inputs

    def _keep_loss(self, loss: tf.Tensor) -> None:
        if self.keeps_record or self.tells_loss:
            super()._keep_loss(loss)

    @do_not_convert
    def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
        inputs, logs = super().next_eval_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            self.model._test_counter.assign_add(1)
        return inputs, logs

    def examples_of(self, num_steps: int) -> int:
        """Returns how many examples were trained on since the last call, in batches of any size."""
        before, self._examples_told = self._examples_told, int(self._examples_trained.numpy())
        return self._examples_told - before

    @property
    def _compiles_windows(self) -> bool:
        """XLA gets single steps: the last batch of an epoch has another size, and a window is for one."""
        return False

    @contextlib.contextmanager
    def keeping_best(self, keeper: Any) -> Iterator[None]:
        """For a `with` block, evaluations may replace the best checkpoint of a run; `keeper` may be None."""
        self._checkpoint_exporter = keeper
        try:
            yield
        finally:
            self._checkpoint_exporter = None

    def initialize(self) -> None:
        """Starts averages from the weights, the first time; a second call of `fit` goes on with them."""
        if int(self.global_step.numpy()) == 0:
            super().initialize()

    def begin_at(self, step: int) -> None:
        """Goes on from a step with weights that somebody has loaded; averages begin with these."""
        self.global_step.assign(step)
        super().initialize()

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context with averaged weights; before the first step these are the weights, whoever set them."""
        is_trained = int(self.global_step.numpy()) > 0
        return super().weights_averaged() if is_trained else contextlib.nullcontext()

    def run_steps(self, num_steps: int, *, publish: bool = False) -> int:
        if self._enable_xla and (rewards := rewards_of(self.model)) is not None:
            rewards.check_compiler()
        with self._rewards_explained():
            return super().run_steps(num_steps, publish=publish)

    def evaluate(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        with self._rewards_explained():
            return super().evaluate(num_steps)

    @contextlib.contextmanager
    def _rewards_explained(self) -> Iterator[None]:
        """Says which reward has failed in Python, where TensorFlow says that some operation has."""
        try:
            yield
        except (tf.errors.OpError, RuntimeError):  # the latter of steps that are not traced
            rewards = rewards_of(self.model)
            if rewards is None or (failure := rewards.failure()) is None:
                raise
            raise failure from failure.__cause__

    def restart_data(self) -> None:
        """Has the data of the next call built anew."""
        self.train_iterator.reset()
        self.eval_dataset = None

    def train_loop_end(self) -> dict[str, Any]:
        return {**super().train_loop_end(), **self.own(training=True)}

    def eval_begin(self) -> Any:
        state = None if self.adds_up else super().eval_begin()
        self.model._test_counter.assign(0)  # callbacks of Keras look at it
        if self.callbacks is not None:
            self.callbacks.on_test_begin()
        return state

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns the loop of an evaluation, which stops for callbacks where some of them look at its batches."""
        whole = super().create_eval_loop_fn(has_state)
        watched = functools.partial(self.traces.watched, "eval")
        is_traced = not self.model.run_eagerly
        run = windows.stepping_loop(self.eval_step, traced_step=is_traced, traced_loop=is_traced, watched=watched)

        def loop(iterator: Any, num_steps: int, state: Any) -> Any:
            if self.callbacks is None or not looks_at_test_batches(self.callbacks):
                return whole(iterator, num_steps, state)
            done = 0
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                while num_steps < 0 or done < num_steps:
                    count = self.every if num_steps < 0 else min(self.every, num_steps - done)
                    self.callbacks.on_test_batch_begin(done)
                    run(iterator, tf.constant(count))
                    done += count
                    self.callbacks.on_test_batch_end(done - 1, self.live(training=False))
            return state

        return loop

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        logs = super().eval_end(aggregated_logs)
        if self.callbacks is not None:
            self.callbacks.on_test_end(self.evaluated(logs))
        return {**logs, **self.own(training=False)}

    # Numbers, as Keras tells them.

    def told(self, logs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        """Returns those of flat logs that callbacks and the history are to have, under Keras's names."""
        return self.task.logs_among("train" if training else "eval", logs)

    def evaluated(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the same of what an evaluation has returned."""
        del logs
        return self.live(training=False)

    def live(self, *, training: bool) -> dict[str, Any]:
        """Returns what metrics say now."""
        return self.task.live_logs("train" if training else "eval")

    def own(self, *, training: bool) -> dict[str, Any]:
        """Returns what a model's own step has returned last; none for Keras's steps."""
        return self.task.own_logs("train" if training else "eval")

    def reset_training(self) -> None:
        """Has the metrics of training begin anew."""
        self.model.reset_metrics()


class NoStore:
    """Stands for the store of a run without a directory: there is nothing to restore, and nothing is saved."""

    def restore(self) -> None:
        """Returns that there is no checkpoint."""

    def save(self, step: int, extra: Any, *, only_if: Callable[[], bool]) -> None:
        """Does nothing."""

    def steps(self) -> Sequence[int]:
        return ()

    def latest_step(self) -> None:
        """Returns that there is none."""

    def poll(self) -> Sequence[int]:
        return ()

    def wait(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
