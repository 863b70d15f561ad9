"""Metrics of a task or of a model, as the engine uses them: of either Keras, Model Garden's, and of several tasks.

Owns: reading and resetting them, moving averages, the metrics of one of several tasks, the rule that names differ, and
which values of a metric are better. Does not own: the numbers that the engine measures by itself (`numbers.py`), names
of results (`tracking/monitored.py`), where numbers go (`tracking/`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.numbers import SMOOTHING_WEIGHT, Mean
from official_trainer.tracking.monitored import Direction


class MetricDirectionError(UserError, ValueError):
    """It is not declared which values of a metric are better, or the declaration is not a known word."""

    exit_code = ExitCode.CONFIG


def MovingAverage(metric: Any, weight: float = SMOOTHING_WEIGHT, name: str | None = None) -> Any:
    """Returns a metric: the moving average of a training metric over all steps, what `smoothed_loss` is for the loss.

    It takes the value of each batch, a mean over replicas. Summaries do not reset it, and checkpoints hold it.

    Args:
      metric: of either Keras; its value for a batch is one number; of this object only.
      weight: of a new value, above 0 and at most 1.
      name: None for `smoothed_` and the metric's name.

    Raises:
      ValueError: the weight is not in its range.

    Example:
      In `Task.build_metrics`, for training:

      >>> from official_trainer.lazy import keras
      >>> from official_trainer.tasks import MovingAverage
      >>> accuracy = MovingAverage(keras.metrics.BinaryAccuracy(name="accuracy"), weight=0.5)
      >>> accuracy.name
      'smoothed_accuracy'
      >>> accuracy.update_state([[1.0]], [[1.0]])  # 1
      >>> accuracy.update_state([[1.0]], [[0.0]])  # 0
      >>> round(float(accuracy.result()), 3)  # (0.5 * 0 + 0.25 * 1) / 0.75
      0.333
    """
    if not 0 < weight <= 1:
        raise ValueError(f"weight of MovingAverage({metric.name}) is {weight}; it must be above 0, at most 1")
    metric_class = next(cls for cls in type(metric).__mro__ if cls.__name__ == "Metric")
    return _moving_average_class(metric_class)(metric, weight, name or f"smoothed_{metric.name}")


@functools.cache
def _moving_average_class(metric_class: Any) -> Any:
    """Returns the class of moving averages for the class `Metric` of a Keras."""

    class Average(metric_class):
        def __init__(self, metric: Any, weight: float, name: str) -> None:
            super().__init__(name=name, dtype="float32")
            self._metric, self._weight = metric, weight
            is_3 = kerases.is_3(metric)
            mean = {"aggregation": "mean" if is_3 else tf.VariableAggregation.MEAN, "initializer": "zeros"}
            add = functools.partial(self.add_variable, shape=()) if is_3 else self.add_weight
            self._average = add(name="average", **mean)
            self._sum_of_weights = add(name="sum_of_weights", **mean)

        def update_state(self, *args: Any, **kwargs: Any) -> None:
            metric = self._metric
            metric.reset_state()
            metric.update_state(*args, **kwargs)
            # Not `metric.result()`, which sums over replicas: within a step these would have to talk to each other.
            value = tf.cast(type(metric).result(metric), tf.float32)
            self._average.assign_add(self._weight * (value - self._average))
            self._sum_of_weights.assign_add(self._weight * (1.0 - self._sum_of_weights))

        def result(self) -> tf.Tensor:
            """Returns the average, float32; it starts at zero, which the division corrects (see `Numbers.losses`)."""
            return tf.math.divide_no_nan(
                tf.convert_to_tensor(self._average), tf.convert_to_tensor(self._sum_of_weights)
            )

        def reset_state(self) -> None:
            """Does nothing: the average goes on."""

    Average.__name__ = Average.__qualname__ = "MovingAverage"
    return Average


class TaskMetrics(tf.Module):
    """The training metrics of one of several tasks; the engine uses it like one metric.

    Attributes:
      loss: mean over the steps of the task.
      metrics: of the task itself.
    """

    def __init__(self, name: str, metrics: Sequence[Any]) -> None:
        """Takes the task's name and its metrics.

        Raises:
          ValueError: two of them have the same name.
        """
        super().__init__()
        self._task_name = name  # a module's own name must be an identifier
        self.loss = Mean("training_loss")
        self.metrics = list(metrics)
        self._all = [*self.metrics, self.loss]
        check_names(self._all, f"training ({name})")

    @property
    def name(self) -> str:
        """The name of the task."""
        return self._task_name

    @property
    def by_flat_name(self) -> dict[str, Any]:
        """The metrics by the names under which they are recorded."""
        return {f"{self.name}/{metric.name}": metric for metric in self._all}

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of all metrics."""
        return variables_of(self._all)

    def result(self) -> dict[str, Any]:
        """Returns the results by name; empty if the task has had no step since the last reset."""
        if self.loss.count.numpy() == 0:
            return {}
        return {metric.name: metric.result() for metric in self._all}

    def reset_states(self) -> None:
        """Resets all metrics."""
        for metric in self._all:
            reset(metric)


def variables_of(metrics: Sequence[Any]) -> list[tf.Variable]:
    """Returns the variables of metrics, of those that have any."""
    return [variable for metric in metrics for variable in kerases.of(metric).variables(metric)]


def results_of(metric: Any) -> dict[str, Any]:
    """Returns the results of a metric by name; those of the metrics of `compile`, of Keras 3, under their own names.

    Variables are read here: a metric may return one, and it is reset before the numbers are written.
    """
    result = read(metric.result())
    return {metric.name: result} if inner_metrics(metric) == [metric] else dict(result)


def read(result: Any) -> Any:
    """Returns a result, also a mapping of them, with the value that a variable of either Keras has now."""
    if isinstance(result, Mapping):
        return {name: read(part) for name, part in result.items()}
    result = kerases.value(result)
    return result.read_value() if isinstance(result, tf.Variable) else result


def inner_metrics(metric: Any) -> list[Any]:
    """Returns the metrics of `compile` inside the object that Keras 3 has for them; of others, the metric itself."""
    return list(metric.metrics) if "CompileMetrics" in kerases.kinds(metric) else [metric]


def reset(metric: Any) -> None:
    """Resets a metric: Keras 3 has one of the two names of this, and Model Garden's own metrics the other."""
    (getattr(metric, "reset_states", None) or metric.reset_state)()


def check_names(metrics: Sequence[Any], split: str) -> None:
    """Refuses two metrics of a split with the same name: one would hide the other.

    Raises:
      ValueError: names the metric and the classes that use it.
    """
    seen: dict[str, Any] = {}
    for metric in metrics:
        if metric.name in seen:
            raise ValueError(
                f"two {split} metrics are named {metric.name!r} ({type(seen[metric.name]).__name__} and "
                f"{type(metric).__name__}); give one of them another name"
            )
        seen[metric.name] = metric


def never_updated(metrics: Sequence[Any]) -> list[str]:
    """Returns the names of metrics that are means, and have got no value since they were reset."""
    means = [metric for metric in metrics if "Mean" in kerases.kinds(metric)]
    return [metric.name for metric in means if float(metric.count.numpy()) == 0]


def direction_of(task: Any, metrics: Sequence[Any], name: str, full_name: str) -> Direction:
    """Returns which values of an evaluation's metric are better.

    It is never guessed from the name: the task declares it in `metric_directions`, or the metric by an attribute
    `direction`, `"max"` or `"up"`, `"min"` or `"down"`, or its class is one of Keras's.

    Args:
      task: whose metric it is; those of Model Garden declare nothing.
      metrics: of the evaluation.
      name: of the metric, in its validation set.
      full_name: its name in the results of all sets.

    Raises:
      MetricDirectionError: it is not declared, or by another word.
    """
    declared: Mapping[str, Any] = getattr(task, "metric_directions", {})
    for key in (name, name.rpartition("|")[2]):
        if key in declared:
            return _checked(declared[key], f"{type(task).__name__}.metric_directions[{key!r}]")
    inner = [part for metric in metrics for part in inner_metrics(metric)]
    metric = next((metric for metric in inner if metric.name == name), None)
    if (said := getattr(metric, "direction", None)) is not None:
        return _checked(said, f"{type(metric).__name__}.direction")
    classes = kerases.kinds(metric) | {_class_of_function(metric)}
    for direction, names in _BETTER.items():
        if classes & {*names.split()}:
            return direction
    task_name = type(task).__name__
    cause = f"it is no metric object of {task_name}"
    cause = cause if metric is None else f"{type(metric).__name__} does not declare it"
    raise MetricDirectionError(
        f"it is unknown whether a higher or a lower {full_name!r} is better: {cause}; set mode to max or min, or "
        f'declare it in the code: {task_name}.metric_directions = {{"{name}": "max"}}'
    )


def _checked(declared: Any, where: str) -> Direction:
    """Returns a declared direction in its first spelling, or the rule that it is; `where` is for the message.

    Raises:
      MetricDirectionError: it is another word.
    """
    spellings: dict[Any, Direction] = {"max": "max", "up": "max", "min": "min", "down": "min"}
    if not callable(declared) and declared not in spellings:
        raise MetricDirectionError(f'{where} is {declared!r}; allowed: "max" (or "up"), "min" (or "down")')
    return declared if callable(declared) else spellings[declared]


def _class_of_function(metric: Any) -> str:
    """Returns the class of metrics whose function a metric is the mean of; empty for functions that are not Keras's.

    `compile` makes such metrics for the names `"accuracy"` and `"mae"`.
    """
    function = getattr(metric, "_fn", None) if "MeanMetricWrapper" in kerases.kinds(metric) else None
    name = getattr(function, "__name__", "")
    is_of_keras = getattr(function, "__module__", "").partition(".")[0] in ("keras", "tf_keras")
    if not is_of_keras or name == "cosine_similarity":  # the loss of this name is the negative of the metric
        return ""
    classes = " ".join(_BETTER.values()).split()
    return next((cls for cls in classes if cls.lower() == name.replace("_", "")), "")


_BETTER: Mapping[Direction, str] = {
    "max": """
        AUC Accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy SparseTopKCategoricalAccuracy
        TopKCategoricalAccuracy CosineSimilarity F1Score FBetaScore IoU MeanIoU Precision Recall PrecisionAtRecall
        RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity R2Score TruePositives TrueNegatives
    """,
    "min": """
        BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy CategoricalHinge Hinge SquaredHinge
        KLDivergence LogCoshError MeanAbsoluteError MeanAbsolutePercentageError MeanRelativeError MeanSquaredError
        MeanSquaredLogarithmicError RootMeanSquaredError Poisson FalsePositives FalseNegatives
    """,
}
"""The metrics of Keras of which a higher, or a lower, value is better."""
