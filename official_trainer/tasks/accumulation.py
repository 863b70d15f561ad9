"""Gradient accumulation: a batch in micro-batches, one after another, and one update with their mean gradient.

Owns: cutting a replica's batch, summing the gradients that a task's step passes to the optimizer, and refusing what
cannot be accumulated. Does not own: the step (`task.py`), calling it (`engine/train_steps.py`).

It needs nothing of the task. The task's step runs once for each micro-batch, and the gradients that it passes to
`optimizer.apply_gradients` are summed; only the last call reaches the optimizer, with the mean. All but the last
micro-batch are the body of one loop, so a step needs the memory of one of them and of one sum, and replicas communicate
once for each update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import publish
from official_trainer.tasks.keras import AccumulationError
from official_trainer.tasks.scopes import during

Step = Callable[..., Any]
"""A task's `train_step(inputs, model, optimizer, metrics)`."""


class _MicroBatch:
    """Takes the gradients that one call of a step passes to the optimizer; set during the call."""

    def __init__(self, variables: Sequence[Any], sums: Sequence[tf.Tensor], scale: float | None) -> None:
        """Adds to `sums`, one for each of `variables`; with a `scale`, applies the sums times the scale."""
        self._numbers = {id(variable): number for number, variable in enumerate(variables)}
        self.sums = list(sums)
        self._scale = scale
        self.is_last = scale is not None
        self.calls = 0

    def take(self, apply: Callable[..., Any], gradients: Sequence[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        pairs = [(gradient, variable) for gradient, variable in gradients if gradient is not None]
        for gradient, variable in pairs:
            if (number := self._numbers.get(id(variable))) is None:
                raise AccumulationError(
                    f"{_FIELD}: the step has a gradient of {variable.name}, which is not one of "
                    "model.trainable_variables"
                )
            self.sums[number] += tf.cast(tf.convert_to_tensor(gradient), self.sums[number].dtype)
        if self._scale is None:
            return tf.no_op()
        means = [(self.sums[self._numbers[id(variable)]] * self._scale, variable) for _, variable in pairs]
        return apply(means, *args, **kwargs)


_FIELD = "trainer.gradient_accumulation_steps"
_micro_batch: ContextVar[_MicroBatch | None] = ContextVar("micro_batch", default=None)


class Accumulator:
    """Runs a task's step over micro-batches with one update."""

    def __init__(self, optimizer: Any, model: Any, num_micro_batches: int) -> None:
        """Makes `optimizer.apply_gradients` sum gradients while a micro-batch is being computed."""
        self.num_micro_batches = num_micro_batches
        self.is_used = False
        self._model = model

        def take(apply: Callable[..., Any], pairs: Any, *args: Any, **kwargs: Any) -> Any:
            micro_batch = _micro_batch.get()
            if micro_batch is None:
                return apply(pairs, *args, **kwargs)
            return micro_batch.take(apply, list(pairs), *args, **kwargs)

        kerases.of(optimizer).intercept(optimizer, take)

    def over(self, step: Step, loss_of: Callable[[dict[str, Any]], tf.Tensor], entered: Callable[[Any], Any]) -> Step:
        """Returns `step` over micro-batches, as a function with the same arguments that returns the mean of their loss.

        Args:
          step: the task's, as AutoGraph converts it; called in replica context, traced.
          loss_of: returns the loss in what the step returns, scalar float32.
          entered: returns the context of a call, for the number of the micro-batch (scalar int64).
        """

        def run(inputs: Any, **kwargs: Any) -> tf.Tensor:
            return self._mean_loss(lambda part: loss_of(step(part, **kwargs)), entered, inputs)

        return run

    def _mean_loss(self, step: Callable[[Any], tf.Tensor], entered: Callable[[Any], Any], inputs: Any) -> tf.Tensor:
        """Runs `step(part of inputs)` for each micro-batch; returns the mean of the losses that it returns, float32."""
        self.is_used = True
        count = self.num_micro_batches
        sizes = tf.nest.map_structure(lambda whole: _micro_batch_size(whole, count), inputs)  # tasks may have others
        if isinstance(inputs, tuple) and len({size for size in tf.nest.flatten(sizes) if isinstance(size, int)}) > 1:
            raise AccumulationError(
                f"{_FIELD}: an example has more rows in one tensor of the batch than in another, so no part of the "
                "batch is a batch; set it to 1"
            )
        variables = list(self._model.trainable_variables)

        def call(number: Any, sums: Sequence[tf.Tensor], scale: float | None) -> tuple[list[tf.Tensor], Any]:
            part = tf.nest.map_structure(lambda whole, size: _part(whole, number, size), inputs, sizes)
            micro_batch = _MicroBatch(variables, sums, scale)
            with during(_micro_batch, micro_batch), entered(tf.cast(number, tf.int64)):
                returned = step(part)
            if micro_batch.calls != 1:
                raise AccumulationError(
                    f"{_FIELD}: the task's train_step called optimizer.apply_gradients {micro_batch.calls} times; "
                    "gradients can be accumulated if it calls it once, with all of them. Change the step, or set it "
                    "to 1"
                )
            return micro_batch.sums, returned

        def body(number: tf.Tensor, total_loss: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            with publish.discarded(), tf.name_scope(""):
                added, loss = call(number, sums, None)
            return [number + 1, total_loss + loss, *added]

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        first = [tf.constant(0), tf.constant(0.0), *zeros]
        try:
            last, total_loss, *sums = tf.while_loop(
                lambda number, *_: number < count - 1, body, first, parallel_iterations=1
            )
        except RuntimeError as error:
            if "merge_call" not in str(error):
                raise
            raise AccumulationError(
                f"{_FIELD}: replicas communicate within the task's step, as in synchronized batch norm; with "
                "accumulation they can only do so once for each update. Use other layers, or set it to 1"
            ) from error
        _, loss = call(last, sums, 1.0 / count)
        return (total_loss + loss) / count


def accumulator_of(trainer_config: Any, optimizer: Any, model: Any) -> Accumulator | None:
    """Returns the accumulator of `trainer.gradient_accumulation_steps`; None if one batch is one update."""
    count = getattr(trainer_config, "gradient_accumulation_steps", 1)  # Model Garden's configs have no such field
    return None if count == 1 or optimizer is None else Accumulator(optimizer, model, count)


def is_update() -> bool:
    """Whether the step that is being traced ends with an update; false for all but the last micro-batch."""
    micro_batch = _micro_batch.get()
    return micro_batch is None or micro_batch.is_last


def check_used(accumulator: Accumulator | None, trainer: Any) -> None:
    """Refuses a step that has bypassed the accumulator.

    Raises:
      AccumulationError: names the class that overrides the step.
    """
    if accumulator is not None and not accumulator.is_used:
        raise AccumulationError(
            f"{_FIELD}: {type(trainer).__name__}.train_step does not call the method that it overrides, which "
            "accumulates; call super().train_step, or set it to 1"
        )


def _micro_batch_size(whole: Any, count: int) -> Any:
    """Returns the examples of a micro-batch: an int where the batch's size is known, else a tensor that is checked."""
    if isinstance(whole, tf.SparseTensor):
        raise AccumulationError(f"{_FIELD}: sparse tensors cannot be cut into micro-batches; make them dense")
    size = whole.shape[0]
    if size is not None:
        if size % count:
            raise AccumulationError(_does_not_divide(size, count))
        return size // count
    size = whole.nrows(tf.int32) if isinstance(whole, tf.RaggedTensor) else tf.shape(whole)[0]
    check = tf.debugging.assert_equal(size % count, 0, _does_not_divide("a replica's batch", count))
    with tf.control_dependencies([check] if check is not None else []):
        return size // count


def _does_not_divide(size: Any, count: int) -> str:
    what = f"{size} examples of a replica do" if isinstance(size, int) else f"{size} does"
    number = f"a number that divides {size}" if isinstance(size, int) else "another number"
    return (
        f"{_FIELD}: {what} not divide into {count} micro-batches of one size; set it to {number}, or have build_inputs "
        f"yield batches of a multiple of {count} examples for each replica, without a smaller last one"
    )


def _part(whole: Any, number: Any, size: Any) -> Any:
    """Returns micro-batch `number` of a tensor."""
    if isinstance(size, int) and isinstance(whole, tf.Tensor):  # XLA needs a static size
        begin = tf.concat([[number * size], tf.zeros([whole.shape.rank - 1], tf.int32)], 0)
        return tf.slice(whole, begin, [size, *(-1 if length is None else length for length in whole.shape[1:])])
    return whole[number * size : (number + 1) * size]
