"""Validation sets: the data that is evaluated with the run's weights, the task's own set and others with names.

Owns: the parts of one set (task, model, data, metrics, loss, number of steps), the step on a batch of it, names and
directions of its metrics, the error about an unknown metric. Does not own: the loop over batches (`evaluation.py`), or
which sets there are (`trainer.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.engine.inference import compute_if_busy, num_examples_of
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.errors import ExitCode, UserError, nearest
from official_trainer.lazy import keras, tf
from official_trainer.tasks import metrics
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tracking import monitored


class MonitoredMetricError(UserError, LookupError):
    """A setting needs a metric that evaluations do not produce."""

    exit_code = ExitCode.CONFIG

    def __init__(self, name: str, wanted_by: str, produced: Sequence[str]) -> None:
        near = nearest(name, produced)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"{wanted_by}: evaluation does not produce {name!r}; it produces {', '.join(sorted(produced))}{hint}"
        )


IS_BUSY = "replica had examples"
"""Key in the logs of a step: whether each replica had examples, where some may have none."""


class ValidationSet:
    """A validation set: examples, and what is measured on them.

    Attributes:
      name: the key of its results; empty for the task's own set, whose results have no key of their own.
      task: has the `validation_step` and `aggregate_logs` that are called.
      model: what they are called with; the run's, or a part of it.
      builder: builds the data.
      steps: batches of an evaluation, -1 for all; None for the number that the evaluation is called with.
      loss: mean over the examples of the last evaluation.
      metrics: the task's and the model's.
      dataset: the distributed data; None until it is built.
      loop_fn: the evaluation loop; None until it is created.
      num_examples: examples that were evaluated so far, one value for each replica.
    """

    def __init__(
        self,
        context: StepContext,
        task: Any,
        model: keras.Model,
        builder: DatasetBuilder,
        *,
        name: str = "",
        steps: int | None = None,
    ) -> None:
        """Takes the parts of the set; `build_metrics` builds the metrics."""
        self._context = context
        self.dataset: Any = None
        self.loop_fn: Callable[[Any, int, Any], Any] | None = None
        self.name, self.task, self.model, self.builder, self.steps = name, task, model, builder, steps
        self.loss = keras.metrics.Mean("validation_loss", dtype=tf.float32)
        self.metrics: list[Any] = []
        self.num_examples = metrics.example_counter()

    def build_metrics(self) -> None:
        """Builds the metrics; called under the strategy's scope.

        Raises:
          ValueError: two metrics share a name.
        """
        name = self.name
        self.metrics = [*self.task.build_metrics(training=False), *getattr(self.model, "metrics", [])]
        metrics.check_names(self.measures, f"evaluation ({name})" if name else "evaluation")

    @property
    def measures(self) -> list[Any]:
        """The metrics and the loss."""
        return [*self.metrics, self.loss]

    @property
    def has_data(self) -> bool:
        """Whether there is data to evaluate."""
        return self.dataset is not None or self.builder.params is not None

    @do_not_convert
    def run(self, inputs: Any) -> dict[str, Any]:
        """Evaluates a batch in cross-replica context, traced; returns logs, each a tuple with a value per replica."""
        step_of_task = convert(self.task.validation_step)
        step = functools.partial(self.run_on_replica, step_of_task=step_of_task)
        outputs = self._context.strategy.run(step, args=(inputs,))
        return {
            name: tf.nest.map_structure(self._context.strategy.experimental_local_results, value)
            for name, value in outputs.items()
        }

    @do_not_convert
    def run_on_replica(self, inputs: Any, step_of_task: Callable[..., Any]) -> dict[str, Any]:
        """Evaluates a replica's batch; called in replica context, traced."""
        num_examples = num_examples_of(inputs)
        self.num_examples.assign_add(tf.cast(num_examples, tf.int64))
        evaluate = functools.partial(self._evaluate, inputs, num_examples, step_of_task)
        if not self._context.options.skips_idle_replicas or self._context.strategy.num_replicas_in_sync == 1:
            return evaluate()
        # The last batch may leave a replica without examples, and a mean over nothing is not a number.
        return {**compute_if_busy(num_examples, evaluate), IS_BUSY: num_examples > 0}

    def _evaluate(self, inputs: Any, num_examples: tf.Tensor, step_of_task: Callable[..., Any]) -> dict[str, Any]:
        with self._context.streams.named("validation", self.num_examples):
            logs = step_of_task(inputs, model=self.model, metrics=self.metrics)
        if self.task.loss in logs:
            loss = tf.reduce_mean(tf.cast(logs[self.task.loss], tf.float32))
            self.loss.update_state(loss, sample_weight=tf.cast(num_examples, tf.float32))
        return tf.nest.map_structure(tf.convert_to_tensor, dict(logs))

    def metric_names(self) -> set[str]:
        """Returns the names of its metrics among all results: `accuracy`, or `dev|accuracy` of the set `dev`."""
        prefix = f"{self.name}|" if self.name else ""
        return {prefix + metric.name for metric in self.measures}

    def results(self, aggregated_logs: Any, global_step: tf.Variable) -> dict[str, Any]:
        """Returns the results of an evaluation; called eagerly."""
        logs: dict[str, Any] = {metric.name: metric.result() for metric in self.metrics}
        if self.loss.count.numpy() > 0:
            logs[self.loss.name] = self.loss.result()
        if aggregated_logs is not None:
            logs.update(self.task.reduce_aggregated_logs(aggregated_logs, global_step=global_step))
        return logs

    def direction(self, name: str, full_name: str) -> monitored.Direction:
        """Returns which values of a metric, by its name in this set, are better; see `Evaluation.metric_direction`."""
        task = type(self.task).__name__
        declared: Mapping[str, Any] = getattr(self.task, "metric_directions", {})  # Model Garden's tasks have none
        for key in (name, name.rpartition("|")[2]):
            if key in declared:
                return metrics.checked_direction(declared[key], f"{task}.metric_directions[{key!r}]")
        if name == self.loss.name:
            return "min"
        found = next((metric for metric in self.metrics if metric.name == name), None)
        if found is not None and (direction := metrics.direction_of(found)) is not None:
            return direction
        cause = f"it is no metric object of {task}" if found is None else f"{type(found).__name__} does not declare it"
        raise metrics.MetricDirectionError(
            f"it is unknown whether a higher or a lower {full_name!r} is better: {cause}; set mode to max or min, or "
            f'declare it in the code: {task}.metric_directions = {{"{name}": "max"}}'
        )
