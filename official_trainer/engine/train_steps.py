"""Training steps: from batches to updates, and windows of traced steps.

Owns: the traced step, and running a window of steps on all processes. Does not own: what a step is recorded in
(`measures.py`), the order of events (`loop.py`), where batches come from (`train_iterator.py`), how steps become a
traced loop (`windows.py`).
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.distributed.collective import collective
from official_trainer.distributed.replicas import local_sum
from official_trainer.engine import windows
from official_trainer.engine.measures import NO_STEP, TrainMeasures
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.traces import batch_signature
from official_trainer.engine.train_iterator import TrainData
from official_trainer.lazy import tf
from official_trainer.tasks import accumulation, contract, publish
from official_trainer.tasks.autograph import convert, do_not_convert, engine_function
from official_trainer.tasks.step_updates import StepUpdates
from official_trainer.tracking import Histogram, Image
from official_trainer.user_code import during


class TrainStep:
    """The training step on one batch: the task's step on every replica, then what is counted and averaged.

    Attributes:
      accumulator: runs the task's step over micro-batches; None for one update per batch.
      compiles_windows: whether XLA compiles whole windows of steps.
    """

    def __init__(
        self,
        context: StepContext,
        measures: TrainMeasures,
        accumulator: accumulation.Accumulator | None,
        *,
        compiles_windows: bool = False,
    ) -> None:
        """Takes what a step needs.

        Args:
          context: what the parts of a trainer share.
          measures: what each step is recorded in.
          accumulator: None for one update per batch.
          compiles_windows: whether XLA compiles whole windows of steps.
        """
        self._context, self._measures = context, measures
        self.accumulator, self.compiles_windows = accumulator, compiles_windows

    def run(self, inputs: Any) -> None:
        """Trains on a batch of all replicas; called in cross-replica context, traced."""
        context = self._context
        if context.trainable is not None and not context.options.as_fit:  # Keras's `fit` has a rule of its own
            contract.check_trainable(context.task, context.model, context.trainable)
            context.trainable = None  # steps may do so, as those of two models that train in turn
        with context.changed_state.of_traced():
            if context.dispatches:
                publish.deliver(self._dispatched(inputs))
            else:
                with self._step_on_replica(inputs) as step:
                    publish.deliver(context.strategy.run(step, args=(inputs,)))
        if context.average is not None:
            context.average.update(context.global_step)

    @contextlib.contextmanager
    def _step_on_replica(self, inputs: Any) -> Iterator[Callable[[Any], publish.Tensors | None]]:
        """For a step: yields what each replica runs, and then makes the updates that replicas have registered."""
        context, updates = self._context, StepUpdates()
        # Bound, not passed: a TPU would make a tensor of it.
        yield functools.partial(
            self.run_on_replica,
            step_of_task=self.step_of_task(),
            updates=updates,
            publishes=publish.is_requested(),
        )
        updates.make(context.strategy, after=context.global_step)

    def _dispatched(self, inputs: Any) -> publish.Tensors | None:
        """Runs the step of one of several tasks; one that publishes is called eagerly, and traced for its task."""
        task, strategy = self._context.task, self._context.strategy
        if not publish.is_requested() or not self._context.train_options.use_tf_function:
            return task.dispatch(strategy, inputs, self._run_of_one)
        return task.dispatch(strategy, inputs, self._publishing_run)

    def _run_of_one(self, inputs: Any) -> publish.Tensors | None:
        with self._step_on_replica(inputs) as step:
            return self._context.strategy.run(step, args=(inputs,))

    @functools.cached_property
    def _publishing_run(self) -> Callable[[Any], publish.Tensors | None]:
        return tf.function(self._context.traces.watched("train", engine_function(self._run_of_one)))

    def step_of_task(self) -> Callable[..., Any]:
        """Returns the task's step, which returns logs; over micro-batches, their mean loss.

        Called outside the threads of replicas, in which AutoGraph does not know that it is active.
        """
        accumulator, step = self.accumulator, convert(self._context.task.train_step)
        if accumulator is None:
            return step

        def streams(number: tf.Tensor) -> Any:
            return self._context.streams.of_part("train", self._stream_number(), number, accumulator.num_micro_batches)

        return accumulator.over(step, self._measures.record, streams)

    def _measured(self, returned: Any) -> tf.Tensor:
        """Returns the loss, scalar float32, of what `step_of_task` returned, and records the other numbers; traced."""
        return self._measures.record(returned) if self.accumulator is None else returned

    @do_not_convert
    def run_on_replica(
        self,
        inputs: Any,
        step_of_task: Callable[..., Any],
        updates: StepUpdates,
        publishes: bool,
    ) -> publish.Tensors | None:
        """Trains on a replica's batch; returns what the step publishes; called in replica context, traced."""
        context, number = self._context, self._stream_number()
        if context.workers is None:  # workers share the generators, which are set before a window
            context.streams.begin_step(context.global_step)

        @contextlib.contextmanager
        def of_step() -> Iterator[publish.Tensors]:
            streams = context.streams.named("train", number)
            collecting = publish.collecting(is_wanted=publishes)
            with streams, collecting as published, updates.collecting(), context.whole_losses():
                yield published

        objects = {"model": context.model, "optimizer": context.optimizer, "metrics": self._measures.metrics}
        with during(task=context.task, method="train_step", batch=lambda: batch_signature(inputs)):
            if context.enables_xla and not self.compiles_windows:
                loss, published = self._compiled(step_of_task, of_step, objects)(inputs)
            else:
                with of_step() as published:
                    loss = self._measured(step_of_task(inputs, **objects))
        if context.options.measures_loss:
            self._measures.take_loss(loss)
        with tf.control_dependencies([loss]):  # a step whose data never came must not count
            context.global_step.assign_add(1)
        return published if publishes else None  # on a TPU, a replica cannot return a structure without tensors

    def _compiled(
        self,
        step_of_task: Callable[..., Any],
        of_step: Callable[[], contextlib.AbstractContextManager[publish.Tensors]],
        objects: Mapping[str, Any],
    ) -> Callable[[Any], Any]:
        """Returns the task's step as one XLA program, which returns what is measured and what is published."""

        def step(inputs: Any) -> Any:
            with of_step() as published:
                return self._measured(step_of_task(inputs, **objects)), published

        return tf.function(engine_function(step), jit_compile=True)

    def _stream_number(self) -> Any:
        """Returns what the step's random numbers depend on; has `read_value()`, int64.

        With workers it is the batch, because several of them have the same step.
        """
        return self._context.global_step if self._context.workers is None else self._context.workers.batches


class WindowRunner:
    """What `Trainer.run_steps` needs for a window of steps, on all processes.

    Attributes:
      step: the traced step.
      measures: what the steps are recorded in.
      published: what was published from inside the last step, by name; None if the window was not to publish.
    """

    def __init__(
        self, context: StepContext, trainer: Any, step: TrainStep, measures: TrainMeasures, train_iterator: TrainData
    ) -> None:
        """Takes what a window needs.

        Args:
          context: what the parts of a trainer share.
          trainer: Model Garden's override points: `train_step` and `create_train_loop_fn`.
          step: the traced step, which the trainer's calls.
          measures: what the steps are recorded in.
          train_iterator: the batches.
        """
        self.process_group = context.process_group
        self.published: Mapping[str, float | Histogram | Image] | None = None
        self.step, self.measures = step, measures
        self._context, self._trainer, self._train_iterator = context, trainer, train_iterator
        self._mean_loss, self._first_bad_step = 0.0, NO_STEP
        self._has_data_ended = False

    @property
    def mean_loss(self) -> float:
        """Mean training loss since the last `train_loop_end`; not finite if any step's loss was not.

        0 if the trainer does not check that.
        """
        if not self._context.options.measures_loss:
            return 0.0
        loss = self.measures.numbers.training_loss
        return float(loss.result()) if self.process_group.is_alone else self._mean_loss

    @property
    def first_bad_step(self) -> int | None:
        """The first step since the last `train_loop_end` whose loss was bad, on any replica; None for none."""
        step = self.measures.bad_step_here() if self.process_group.is_alone else self._first_bad_step
        return None if step == NO_STEP else step

    @property
    def losses(self) -> dict[str, float]:
        """`batch_loss` of the last step, and `smoothed_loss`, its moving average."""
        return self.measures.numbers.losses(self._context.step)

    @collective
    def results(self) -> dict[str, Any]:
        """Returns the logs that `train_loop_end` would return, and resets nothing."""
        with self.process_group.reading(self.measures.variables):
            return self.measures.results()

    def begin(self, position: Sequence[int] | None) -> int:
        """Begins a window at the chief's position in the data, if that is given; returns the current step."""
        self.published, self._has_data_ended = None, False
        if position is not None:
            self._train_iterator.go_to(position)
        return self._context.step

    def goes_on(self, goal: int) -> bool:
        """Whether there are steps and data left for a window up to step `goal`."""
        return self._context.step < goal and not self._has_data_ended

    @contextlib.contextmanager
    def reading(self, goal: int, *, publishes: bool) -> Iterator[tuple[windows.WindowLoop, Any, tf.Tensor]]:
        """For a call of the loop: yields it, the iterator whose next batch is that of the current step, and its steps.

        The data may end in the call; then the next epoch begins, or the window is over.
        """
        context, data, step = self._context, self._train_iterator, self._context.step
        try:
            # A step may have been counted before an operation beside it fails.
            with during(lambda: f"training at step {min(context.step + 1, goal)}", task=context.task):
                iterator = data.iterator()
                with data.reading(), during(batch=lambda: batch_signature(iterator)):
                    try:
                        yield self._loop_over(iterator, publishes), iterator, tf.constant(goal - step, tf.int32)
                    except BaseException:
                        if isinstance(iterator, windows.Blocks):  # only global_step knows how many steps were done
                            data.reset()
                        raise
        except (StopIteration, tf.errors.OutOfRangeError):
            self._has_data_ended = not data.handle_end()
        else:
            reached = context.step  # everything is timed by it
            if reached != goal:
                raise RuntimeError(
                    f"{goal - step} steps moved global_step from {step} to {reached}, not to {goal}; "
                    f"{type(self._trainer).__name__}.train_step must add 1 to self.global_step"
                )
        finally:
            context.clock.end_window()

    def end(self, first: int) -> int:
        """Ends a window that began at step `first`; returns how many steps ran."""
        if not self.process_group.is_alone:
            loss = self.measures.numbers.training_loss
            loss_here = float(local_sum(loss.total) / max(local_sum(loss.count), 1.0))
            losses_and_steps = self.process_group.exchange((loss_here, self.measures.bad_step_here()))
            self._mean_loss = statistics.fmean(loss for loss, _ in losses_and_steps)
            self._first_bad_step = min(step for _, step in losses_and_steps)
        self._context.traces.check("train")
        ran = self._context.step - first
        accumulation.check_used(self.step.accumulator if ran > 0 else None, self._trainer)
        return ran

    def create_loop(self) -> windows.WindowLoop:
        """Returns `loop(iterator, num_steps)` over the trainer's steps: on workers, or here, batch by batch."""
        context, options = self._context, self._context.train_options
        if context.workers is not None:
            return context.workers.create_loop(self._trainer.train_step)
        return windows.stepping_loop(
            self._trainer.train_step,
            context.traces,
            "train",
            traced_step=options.use_tf_function,
            traced_loop=options.use_tf_while_loop,
        )

    def _loop_over(self, iterator: Any, publishes: bool) -> windows.WindowLoop:
        """Returns the loop over an iterator; one that publishes runs one step, and takes what it has published."""
        in_blocks = isinstance(iterator, windows.Blocks)
        if not publishes:
            return self._loop_over_blocks if in_blocks else self.loop

        def loop(iterator: Any, num_steps: tf.Tensor) -> None:
            tensors = self._publishing_from_block(next(iterator)) if in_blocks else self._publishing_step(iterator)
            self.published = publish.on_host(tensors, self._context.strategy)

        return loop

    @functools.cached_property
    def _loop_over_blocks(self) -> windows.WindowLoop:
        return windows.block_loop(self.step.run, self._context.traces, compiles=self.step.compiles_windows)

    @functools.cached_property
    def _publishing_from_block(self) -> Callable[[Any], publish.Tensors]:
        """`step(batch)`, the same step as in a window, traced once more to return what it publishes."""
        step = engine_function(publish.returning(self.step.run))
        watched = self._context.traces.watched("train", step)
        return tf.function(watched, jit_compile=True if self.step.compiles_windows else None)

    @functools.cached_property
    def _publishing_step(self) -> Callable[[Any], publish.Tensors]:
        """The same of an iterator over batches."""
        context, train_step = self._context, self._trainer.train_step
        if context.workers is not None:
            return context.workers.create_publishing_step(train_step)
        step = publish.returning(train_step)
        if context.dispatches:
            return step  # traced for one task, because no value leaves a branch
        return tf.function(context.traces.watched("train", step)) if context.train_options.use_tf_function else step

    @functools.cached_property
    def loop(self) -> windows.WindowLoop:
        """`loop(iterator, num_steps)` over single batches, created when it is first needed."""
        return self._trainer.create_train_loop_fn()
