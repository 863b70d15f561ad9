"""Metrics that the engine always computes: loss of the last step, its moving average, number of evaluated examples.

Owns: these variables, moving averages of other metrics, the metrics of one of several tasks, the rule that names
differ, and which values of a metric are better. Does not own: a task's metrics, names of results
(`tracking/monitored.py`), where numbers go (`tracking/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, tf
from official_trainer.tracking.monitored import Direction

SMOOTHING_WEIGHT = 0.01
"""Weight of a new loss in the moving average."""


class MetricDirectionError(UserError, ValueError):
    """It is not declared which values of a metric are better, or the declaration is not a known word."""

    exit_code = ExitCode.CONFIG


class LossTrace(tf.Module):
    """The last step's loss and the moving average of all losses, each a mean over replicas."""

    NAMES = ("batch_loss", "smoothed_loss")
    """The names of the results."""

    def __init__(self) -> None:
        super().__init__(name="loss_trace")
        on_read = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.MEAN}
        self.last = tf.Variable(0.0, trainable=False, name="batch_loss", **on_read)
        self.average = tf.Variable(0.0, trainable=False, name="smoothed_loss", **on_read)

    def update(self, loss: tf.Tensor) -> None:
        """Takes one step's loss, scalar float32; called in replica context, traced.

        As few operations as possible: for a small model each is a hundredth of a step.
        """
        self.average.assign_add(SMOOTHING_WEIGHT * (loss - self.average.read_value()))
        self.last.assign(loss)

    def results(self, num_steps: int) -> dict[str, float]:
        """Returns both by name, after `num_steps` updates.

        The average starts at zero; dividing by the sum of the losses' weights corrects that (Kingma and Ba, 2014,
        section 3).
        """
        sum_of_weights = 1.0 - (1.0 - SMOOTHING_WEIGHT) ** num_steps
        return {
            "batch_loss": float(self.last.numpy()),
            "smoothed_loss": float(self.average.numpy()) / max(sum_of_weights, 1e-12),
        }


class MovingAverage(keras.metrics.Metric):
    """The moving average of a training metric over all steps of a run: what `smoothed_loss` is for the loss.

    It takes the value of each batch, a mean over replicas. Summaries do not reset it, and checkpoints hold it.

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

    def __init__(self, metric: keras.metrics.Metric, weight: float = SMOOTHING_WEIGHT, name: str | None = None) -> None:
        """Takes what is averaged.

        Args:
          metric: its value for a batch is one number; of this object only.
          weight: of a new value, above 0 and at most 1.
          name: None for `smoothed_` and the metric's name.

        Raises:
          ValueError: the weight is not in its range.
        """
        if not 0 < weight <= 1:
            raise ValueError(f"weight of MovingAverage({metric.name}) is {weight}; it must be above 0, at most 1")
        super().__init__(name=name or f"smoothed_{metric.name}", dtype=tf.float32)
        self._metric, self._weight = metric, weight
        mean = {"aggregation": tf.VariableAggregation.MEAN, "initializer": "zeros"}
        self._average = self.add_weight("average", **mean)
        self._sum_of_weights = self.add_weight("sum_of_weights", **mean)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Takes a batch; the arguments are those of the metric."""
        metric = self._metric
        metric.reset_state()
        metric.update_state(*args, **kwargs)
        # Not `metric.result()`, which sums over replicas: within a step these would have to talk to each other.
        value = tf.cast(type(metric).result(metric), tf.float32)
        self._average.assign_add(self._weight * (value - self._average))
        self._sum_of_weights.assign_add(self._weight * (1.0 - self._sum_of_weights))

    def result(self) -> tf.Tensor:
        """Returns the average, float32; it starts at zero, which the division corrects (see `LossTrace`)."""
        return tf.math.divide_no_nan(self._average, self._sum_of_weights)

    def reset_state(self) -> None:
        """Does nothing: the average goes on."""


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
        self.loss = keras.metrics.Mean("training_loss", dtype=tf.float32)
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
            metric.reset_states()


def example_counter() -> tf.Variable:
    """Returns a variable that each replica adds to and that reads as the sum over replicas, int64."""
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="examples",
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def variables_of(metrics: Sequence[Any]) -> list[tf.Variable]:
    """Returns the variables of metrics, of those that have any."""
    return [variable for metric in metrics for variable in getattr(metric, "variables", ())]


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
    means = [metric for metric in metrics if isinstance(metric, keras.metrics.Mean)]
    return [metric.name for metric in means if float(metric.count.numpy()) == 0]


def direction_of(metric: Any) -> Direction | None:
    """Returns which values of a metric are better, by its declaration or its class; None if neither is known.

    A metric declares it by an attribute `direction`: `"max"` or `"up"`, `"min"` or `"down"`.

    Raises:
      MetricDirectionError: the declaration has another value.
    """
    declared = getattr(metric, "direction", None)
    if declared is not None:
        return checked_direction(declared, f"{type(metric).__name__}.direction")
    known: tuple[tuple[Direction, str], ...] = (("max", _HIGHER_IS_BETTER), ("min", _LOWER_IS_BETTER))
    for direction, classes in known:
        names = classes.split()
        if isinstance(metric, tuple(getattr(keras.metrics, name) for name in names)) or _measures(metric, names):
            return direction
    return None


def _measures(metric: Any, classes: Sequence[str]) -> bool:
    """Whether a metric is the mean of the Keras function that corresponds to one of these classes.

    `compile` makes such metrics for the names `"accuracy"` and `"mae"`.
    """
    function = getattr(metric, "_fn", None) if isinstance(metric, keras.metrics.MeanMetricWrapper) else None
    name = getattr(function, "__name__", "")
    if not name or function not in (getattr(keras.metrics, name, None), getattr(keras.losses, name, None)):
        return False
    # The loss of this name is the negative of the metric.
    return name != "cosine_similarity" and name.replace("_", "") in [each.lower() for each in classes]


def checked_direction(declared: Any, place: str) -> Direction:
    """Returns a declared direction in its first spelling; `place` names the declaration in the error.

    Raises:
      MetricDirectionError: it is not a known word.
    """
    spellings: dict[Any, Direction] = {"max": "max", "up": "max", "min": "min", "down": "min"}
    if declared not in spellings:
        raise MetricDirectionError(f'{place} is {declared!r}; allowed: "max" (or "up"), "min" (or "down")')
    return spellings[declared]


_HIGHER_IS_BETTER = """
    AUC Accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy SparseTopKCategoricalAccuracy
    TopKCategoricalAccuracy CosineSimilarity F1Score FBetaScore IoU MeanIoU Precision Recall PrecisionAtRecall
    RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity R2Score TruePositives TrueNegatives
"""
_LOWER_IS_BETTER = """
    BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy CategoricalHinge Hinge SquaredHinge
    KLDivergence LogCoshError MeanAbsoluteError MeanAbsolutePercentageError MeanRelativeError MeanSquaredError
    MeanSquaredLogarithmicError RootMeanSquaredError Poisson FalsePositives FalseNegatives
"""
