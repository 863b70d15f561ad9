"""Outputs of a model for a dataset: one row for each example, in the order of the examples.

Owns: the traced inference step under the strategy in scope; joining the outputs of all replicas; which outputs are
allowed. Does not own: which model and data (`runs/predict.py`), files (`runs/predictions.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.engine.traces import batch_signature
from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.tasks import export
from official_trainer.tasks.autograph import convert, do_not_convert, engine_function
from official_trainer.tasks.random_streams import RandomStreams, required_by
from official_trainer.tasks.task import Task, features_and_labels
from official_trainer.user_code import during

Columns = Mapping[str, Any]
"""NumPy arrays `[rows, …]` by the names of the outputs."""

_NUM_EXAMPLES = "number of examples"


class OutputError(UserError, ValueError):
    """The outputs of an inference step do not have one row for each example."""


class Inference:
    """The inference step of a task.

    Attributes:
      strategy: the strategy in scope at construction.
    """

    def __init__(
        self,
        task: Any,
        model: Any,
        *,
        seed: int = 0,
        use_tf_function: bool = True,
        streams: RandomStreams | None = None,
    ) -> None:
        """Takes the task and the model.

        Args:
          task: its `predict_step(features, model, labels)`, or `inference_step(features, model)` if it has none, is
            called in replica context; it returns nests of tensors `[batch, …]`.
          model: passed to the step.
          seed: seed of the step's random numbers; a batch gets the same ones each time.
          use_tf_function: whether the step is traced.
          streams: the random numbers of a run; None makes those of `seed`.
        """
        self._task, self._model = task, model
        self._streams = streams or RandomStreams(model, seed, required_by(task))
        self.strategy = tf.distribute.get_strategy()
        predict_step = getattr(type(task), "predict_step", None)
        # The one that the author of the task wrote, for messages.
        self._method = "inference_step" if predict_step is None or predict_step is Task.predict_step else "predict_step"
        self._step_of_task = export.predict_step_of(task)
        self._name = f"{type(task).__name__}.{self._method}"
        self._step = tf.function(engine_function(self._next_outputs)) if use_tf_function else self._next_outputs

    def batches(
        self,
        dataset: Any,
        first: int = 0,
    ) -> Iterator[tuple[int, Columns]]:
        """Yields the number of each batch and its rows: NumPy arrays `[rows, …]` by the names of the outputs.

        Args:
          dataset: batches `(features, labels)`, or of features alone; distributed if the strategy needs that.
          first: number of the dataset's first batch.

        Raises:
          OutputError: an output has no row for each example.
        """
        iterator = iter(dataset)
        for number in itertools.count(first):
            try:
                with during(f"predicting batch {number}", task=self._task):
                    outputs = self._step(iterator, tf.constant(number, tf.int64))
            except (StopIteration, tf.errors.OutOfRangeError):
                return
            counts = [int(count) for count in outputs.pop(_NUM_EXAMPLES)]
            yield number, _joined(outputs, counts, self._name) if sum(counts) else {}

    def _next_outputs(self, iterator: Any, number: tf.Tensor) -> dict[str, Any]:
        inputs, step_of_task = next(iterator), convert(self._step_of_task)
        step = functools.partial(self._replica_outputs, step_of_task=step_of_task)
        outputs = self.strategy.run(step, args=(inputs, number))
        return {name: self.strategy.experimental_local_results(value) for name, value in outputs.items()}

    @do_not_convert
    def _replica_outputs(
        self, inputs: Any, number: tf.Tensor, step_of_task: Callable[..., Any]
    ) -> dict[str, tf.Tensor]:
        num_examples = num_examples_of(inputs)
        self._streams.begin_step(-number)  # for layers that draw in predictions too

        def infer() -> dict[str, tf.Tensor]:
            notes = during(task=self._task, method=self._method, batch=lambda: batch_signature(inputs))
            with self._streams.named("prediction", number), notes:
                features, labels = features_and_labels(inputs)
                outputs = step_of_task(features, self._model, labels)
            for value in tf.nest.flatten(outputs, expand_composites=False):
                if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
                    raise OutputError(
                        f"{self._name} returns a {type(value).__name__}; predictions are rows of dense tensors, so "
                        "return its to_tensor(), or tf.sparse.to_dense of it"
                    )
            return export.by_name(outputs, self._model)

        # The last batch may leave a replica without examples, and not every layer accepts an empty batch.
        is_alone = self.strategy.num_replicas_in_sync == 1
        outputs = infer() if is_alone else compute_if_busy(num_examples, infer)
        return {**outputs, _NUM_EXAMPLES: num_examples}


def _joined(outputs: Mapping[str, Any], counts: Sequence[int], method: str) -> Columns:
    """Returns the rows of all replicas, in their order.

    Args:
      outputs: by name, what each replica computed.
      counts: how many examples each replica had.
      method: of the task that computed them, for the message.

    Raises:
      OutputError: an output has no row for each example.
    """
    import numpy as np

    columns = {}
    for name, values in outputs.items():
        busy = [on_host(part) for part, count in zip(values, counts, strict=True) if count]
        for part, count in zip(busy, filter(None, counts), strict=True):
            if part.shape[:1] != (count,):
                raise OutputError(
                    f"{method}: the output '{name}' has shape {list(part.shape)} for {count} examples; it needs a row "
                    "for each, [batch, …]"
                )
        columns[name] = np.concatenate(busy)
    return columns


def num_examples_of(inputs: Any) -> tf.Tensor:
    """Returns the size of a batch's first dimension, scalar int32; 1 for a batch of scalars."""
    first = tf.nest.flatten(inputs)[0]
    return tf.constant(1) if first.shape.rank == 0 else tf.shape(first)[0]


def compute_if_busy(num_examples: tf.Tensor, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns `compute()`, or an empty result of the same structure for a replica without examples; traced."""
    outputs: dict[str, Any] = {}

    def busy() -> dict[str, Any]:
        outputs.update(compute())
        return outputs

    def empty(value: tf.Tensor) -> tf.Tensor:  # with size 0 in each open dimension, else zeros
        return tf.zeros([0 if size is None else size for size in value.shape], value.dtype)

    def idle() -> dict[str, Any]:  # traced after `busy`
        return tf.nest.map_structure(empty, outputs)

    computed: dict[str, Any] = tf.cond(num_examples > 0, busy, idle)
    return computed


def on_host(value: Any) -> Any:
    """Returns a tensor as a NumPy array; one of bfloat16, which NumPy has not, as float32."""
    value = tf.convert_to_tensor(value)
    return (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy()
