"""Training steps: traced windows of them, from batches to updates; the half of the Trainer that updates.

Owns: Model Garden's training contract (`train`, `train_loop_begin`, `next_train_inputs`, `train_step`,
`train_loop_end`) and the metrics of training. Does not own: the order of events (`loop.py`), where batches come from
(`train_iterator.py`), how steps are put into a window (`windows.py`).
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orbit

from official_trainer.distributed.collective import ProcessGroup, collective
from official_trainer.distributed.replicas import local_sum
from official_trainer.engine import windows
from official_trainer.engine.input_wait import InputMark
from official_trainer.engine.traces import Traces
from official_trainer.engine.train_iterator import TrainIterator
from official_trainer.lazy import keras, tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import accumulation, metrics, optimization, publish
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.multi_task.task import MultiTask
from official_trainer.tasks.random_streams import RandomStreams
from official_trainer.tracking import Histogram, Image


class Stepper(orbit.StandardTrainer):
    """Trains one task's model under the strategy in scope; a part of `Trainer`, not used alone."""

    stop: StopRequest
    process_group: ProcessGroup
    _strategy: tf.distribute.Strategy
    _config: Any
    _task: Any
    _model: keras.Model
    _optimizer: keras.optimizers.Optimizer
    _enable_xla: bool
    _global_step: tf.Variable
    _average: optimization.WeightAverage | None
    _accumulator: accumulation.Accumulator | None
    _streams: RandomStreams
    _input_mark: InputMark
    _train_loop_fn: windows.WindowLoop | None
    _train_loss: keras.metrics.Metric
    _train_metrics: list[keras.metrics.Metric]
    _loss_trace: metrics.LossTrace
    _train_iterator: TrainIterator
    _traces: Traces
    _mean_loss: float = 0.0
    _publishing_step_fn: Callable[[Any], publish.Tensors] | None = None
    _publishing_run: Callable[[Any], publish.Tensors | None] | None = None

    published: Mapping[str, float | Histogram | Image] | None = None
    """What was published from inside the last step, by name; None if nobody wanted it of that window."""

    def train(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        """Runs `num_steps` steps between `train_loop_begin` and `train_loop_end`; returns the latter's logs."""
        self.train_loop_begin()
        self.run_steps(int(num_steps))
        return self.train_loop_end()

    def run_steps(self, num_steps: int, *, publish: bool = False) -> int:
        """Runs `num_steps` steps in one window and returns how many ran.

        Fewer run only when the training data ends and `trainer.on_data_end` is `stop`.

        Args:
          num_steps: how many; one, if it is to publish.
          publish: whether `published` has to hold afterwards what was published from inside the step.

        Raises:
          DataError: the data ended (and `on_data_end` is `error`), holds nothing, or cannot be read.
          RetraceError: batches have ever new shapes; the steps were run.
          PreemptedError: the run was asked to stop; `global_step` tells how many steps ran, each of them whole.
        """
        assert num_steps == 1 or not publish
        position = None if self.process_group.is_alone else self._train_iterator.position.values()
        return self._run_steps(num_steps, publish, position)

    @collective
    def _run_steps(self, num_steps: int, publish: bool, position: Sequence[int] | None) -> int:
        """Runs a window on all processes, from where the chief's data stands."""
        self._set_published(None)
        if position is not None:
            self._train_iterator.go_to(position)
        first = int(self._global_step.numpy())
        goal = first + num_steps
        while (step := int(self._global_step.numpy())) < goal:
            try:
                self._run_publishing_step() if publish else self._run_window(goal - step)
            except (StopIteration, tf.errors.OutOfRangeError):
                if not self._train_iterator.handle_end():
                    break
            else:
                self._check_advance(step, goal)
        if not self.process_group.is_alone:
            own = float(local_sum(self._train_loss.total) / max(local_sum(self._train_loss.count), 1.0))
            self._mean_loss = statistics.fmean(self.process_group.exchange(own))
        self._traces.check("train")
        ran = int(self._global_step.numpy()) - first
        accumulation.check_used(self._accumulator if ran > 0 else None, self)
        return ran

    def _check_advance(self, step: int, goal: int) -> None:
        """Refuses to go on when steps were run that `global_step` does not know of: everything is timed by it."""
        reached = int(self._global_step.numpy())
        if reached != goal:
            raise RuntimeError(
                f"{goal - step} steps moved global_step from {step} to {reached}, not to {goal}; "
                f"{type(self).__name__}.train_step must add 1 to self.global_step"
            )

    def _run_window(self, num_steps: int) -> None:
        if self._train_loop_fn is None:
            self._train_loop_fn = self.create_train_loop_fn()
        iterator, count = self._train_iterator.iterator(), tf.constant(num_steps, tf.int32)
        with self._input_mark.window(), self._train_iterator.reading(), self._may_be_left():
            self._train_loop_fn(iterator, count)

    def _run_publishing_step(self) -> None:
        if self._train_loop_fn is None:
            self._train_loop_fn = self.create_train_loop_fn()
        if self._publishing_step_fn is None:
            self._publishing_step_fn = self._create_publishing_step_fn()
        iterator = self._train_iterator.iterator()
        with self._input_mark.window(), self._train_iterator.reading(), self._may_be_left():
            tensors = self._publishing_step_fn(iterator)
        self._set_published(publish.on_host(tensors, self._strategy))

    def _create_publishing_step_fn(self) -> Callable[[Any], publish.Tensors]:
        """Returns `step(iterator)`, the same step as in a window, traced once more to return what it publishes."""
        if isinstance(self._train_loop_fn, windows.CompiledLoop):
            return self._train_loop_fn.returning(publish.returning(self._train_on_batch))
        step = publish.returning(self.train_step)
        if self._dispatches:
            return step  # traced for one task, because nothing leaves a branch
        return tf.function(self._traces.watched("train", step)) if self._train_options.use_tf_function else step

    def _set_published(self, values: Mapping[str, float | Histogram | Image] | None) -> None:
        object.__setattr__(self, "published", values)  # a tf.Module would make a part of itself of the dictionary

    def _may_be_left(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for a window: what can be left when the run is asked to stop is.

        Python gets to it while it traces, and between calls of traced steps; a step that waits for data is left to
        wait, and the state saved beside it. Steps that are not traced are finished.
        """
        if not self._train_options.use_tf_function:
            return contextlib.nullcontext()
        return self.stop.interruptible(self._input_mark.rescuer(self.stop))

    def create_train_loop_fn(self) -> windows.WindowLoop:
        """Returns `loop(iterator, num_steps)` over `train_step`, or over compiled windows under XLA."""
        watched = functools.partial(self._traces.watched, "train")
        if self._compiles_windows:
            return windows.CompiledLoop(self._train_on_batch, self._input_mark, watched)
        options = self._train_options
        return windows.stepping_loop(
            self.train_step,
            traced_step=options.use_tf_function,
            traced_loop=options.use_tf_while_loop,
            watched=watched,
        )

    @property
    def _compiles_windows(self) -> bool:
        """Whether XLA gets whole windows: one replica, and the step is ours, so that batches can come in blocks."""
        return (
            self._enable_xla
            and self._strategy.num_replicas_in_sync == 1
            and self._train_options.use_tf_while_loop
            and not self._dispatches  # whose batches have several shapes
            and type(self).train_step is Stepper.train_step
            and type(self).next_train_inputs is Stepper.next_train_inputs
        )

    @collective
    def train_loop_begin(self) -> None:
        """Called eagerly before the first step after a summary. Does nothing by default."""

    @collective
    def train_loop_end(self) -> dict[str, Any]:
        """Returns and resets the metrics of the steps since the last call; called eagerly."""
        kept = [*self._train_metrics, self._train_loss]
        with self.process_group.reading([*metrics.variables_of(kept), *self._loss_trace.variables]):
            logs = {metric.name: metric.result() for metric in kept}
            logs |= {**self.loss_trace, "learning_rate": self.learning_rate}
            for metric in kept:
                metric.reset_states()  # reads, too: TensorFlow's assignments return what has come of them
        return logs

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate of the next update, a scalar float32."""
        return optimization.learning_rate(self._optimizer, self._global_step)

    @property
    def mean_loss(self) -> float:
        """Mean training loss since the last `train_loop_end`; not finite if any step's loss was not."""
        return float(self._train_loss.result()) if self.process_group.is_alone else self._mean_loss

    @property
    def loss_trace(self) -> dict[str, float]:
        """`batch_loss` of the last step, and `smoothed_loss`, its moving average."""
        return self._loss_trace.results(int(self._global_step.numpy()))

    @do_not_convert
    def next_train_inputs(self, iterator: Any) -> Any:
        """Returns the inputs of the next training step; runs on the host, traced."""
        return next(iterator)

    @do_not_convert
    def train_step(self, iterator: Any) -> None:
        """Runs one step in cross-replica context, traced."""
        next_inputs = convert(self.next_train_inputs)
        self._train_on_batch(self._input_mark.next(lambda: next_inputs(iterator)))

    @do_not_convert
    def _train_on_batch(self, inputs: Any) -> None:
        with self._traces.of_own("train", self._task.train_step, inputs):
            publish.deliver(self._dispatched(inputs) if self._dispatches else self._run_replicas(inputs))
        if self._average is not None:
            self._average.update(self._global_step)

    @do_not_convert
    def _run_replicas(self, inputs: Any) -> publish.Tensors | None:
        # Bound, not passed: a TPU would make a tensor of it.
        step = functools.partial(
            self._replica_train_step,
            # Here, because AutoGraph does not know in the threads of replicas that it is at work.
            step_of_task=convert(self._step_of_task()),
            publishes=publish.is_requested(),
        )
        return self._strategy.run(step, args=(inputs,))

    def _dispatched(self, inputs: Any) -> publish.Tensors | None:
        """Runs the step of one of several tasks; one that publishes is called eagerly, and traced for its task."""
        if not publish.is_requested() or not self._train_options.use_tf_function:
            return self._task.dispatch(self._strategy, inputs, self._run_replicas)
        if self._publishing_run is None:
            self._publishing_run = tf.function(self._traces.watched("train", self._run_replicas))
        return self._task.dispatch(self._strategy, inputs, self._publishing_run)

    @property
    def _dispatches(self) -> bool:
        """Whether a step is that of one of several tasks, chosen by the batch."""
        return isinstance(self._task, MultiTask) and self._task.dispatches

    def _step_of_task(self) -> Callable[..., Any]:
        """Returns the task's step, over micro-batches if the run accumulates gradients."""
        accumulator = self._accumulator
        if accumulator is None:
            return self._task.train_step

        def streams(number: tf.Tensor) -> Any:
            place = self._place_in_data().read_value() * accumulator.num_micro_batches + number
            return self._streams.named("train", place)

        return accumulator.over(self._task.train_step, self._task.loss, streams)

    @do_not_convert
    def _replica_train_step(
        self, inputs: Any, step_of_task: Callable[..., Any], publishes: bool
    ) -> publish.Tensors | None:
        self._begin_streams()
        step = self._streams.around(
            publish.collecting(step_of_task, is_wanted=publishes), "train", self._place_in_data()
        )
        if self._enable_xla and not self._compiles_windows:
            step = tf.function(step, jit_compile=True)
        logs, published = step(inputs, model=self._model, optimizer=self._optimizer, metrics=self._train_metrics)
        if self._task.loss not in logs:
            raise ValueError(
                f"{type(self._task).__name__}.train_step must return {self._task.loss!r}, got {list(logs)}"
            )
        loss = tf.cast(logs[self._task.loss], tf.float32)
        loss = loss if loss.shape.rank == 0 else tf.reduce_mean(loss)
        self._keep_loss(loss)
        with tf.control_dependencies([loss]):  # a step whose data never came must not count
            self._global_step.assign_add(1)
        return published if publishes else None  # a TPU has no replica return a structure without a tensor in it

    def _keep_loss(self, loss: tf.Tensor) -> None:
        """Adds a step's loss, scalar float32, to what summaries tell; called in replica context, traced."""
        self._train_loss.update_state(loss)
        self._loss_trace.update(loss)

    def _begin_streams(self) -> None:
        """Sets the generators of the model for this step; called in replica context, traced."""
        self._streams.begin_step(self._global_step)

    def _place_in_data(self) -> Any:
        """Returns what tells this step's random numbers from those of others; has `read_value()`, int64."""
        return self._global_step
