"""Which number is monitored, and which of two is better: declared, never guessed."""

import contextlib
import math

import pytest

from official_trainer.errors import ExitCode
from official_trainer.lazy import keras
from official_trainer.tasks import metrics
from official_trainer.tracking.monitored import MissingMetricError, find_metric, is_better, names, required_value
from tests.support import toy


def test_an_improvement_is_strict():
    """C1: by more than min_delta; NaN is never one, and any number is better than none."""
    assert is_better(0.6, 0.5, "max")
    assert not is_better(0.5, 0.5, "max")
    assert not is_better(0.6, 0.5, "min")
    assert is_better(0.4, 0.5, "min")
    assert not is_better(0.625, 0.5, "max", min_delta=0.125)
    assert is_better(0.626, 0.5, "max", min_delta=0.125)
    assert not is_better(0.375, 0.5, "min", min_delta=0.125)
    assert is_better(-9.0, None, "max")
    assert is_better(-9.0, math.nan, "max")
    assert not is_better(math.nan, None, "min")
    assert not is_better(math.inf, math.inf, "max")


def test_a_number_inside_a_named_set_is_found_by_a_bar():
    """B4: in nested results, and in the flat ones that actions get."""
    nested = {"dev": {"accuracy": 0.5}, "loss": 1.0, "odd|name": 2.0}
    assert find_metric(nested, "dev|accuracy") == 0.5
    assert find_metric({"dev/accuracy": 0.5}, "dev|accuracy") == 0.5
    assert find_metric(nested, "odd|name") == 2.0
    assert find_metric(nested, "dev") is None
    assert find_metric(nested, "dev|loss") is None
    assert names(nested) == ["dev|accuracy", "loss", "odd|name"]
    with pytest.raises(MissingMetricError, match=r"left out 'f1' this time; it produced dev\|accuracy, loss"):
        required_value(nested, "f1")


def direction_of(metric):
    """Returns what is known of a metric of a task that declares nothing; None for nothing."""
    with contextlib.suppress(metrics.MetricDirectionError):
        return metrics.direction_of(None, [metric], metric.name, metric.name)


def test_directions_of_known_classes():
    """C1: by class, so also of subclasses with any name; a mean of anything says nothing."""

    class Mine(keras.metrics.SparseCategoricalAccuracy):
        pass

    assert direction_of(Mine(name="error")) == "max"
    assert direction_of(keras.metrics.AUC(name="loss")) == "max"
    assert direction_of(keras.metrics.MeanSquaredError(name="accuracy")) == "min"
    assert direction_of(keras.metrics.SparseCategoricalCrossentropy()) == "min"
    assert direction_of(keras.metrics.Mean(name="accuracy")) is None
    assert direction_of(keras.metrics.Sum(name="loss")) is None


def test_every_metric_of_keras_is_known_or_means_nothing_by_itself():
    """C1: the lists of classes leave none out, and have none twice."""
    higher, lower = metrics._BETTER["max"].split(), metrics._BETTER["min"].split()
    assert len({*higher, *lower}) == len(higher) + len(lower)
    classes = {value for value in vars(keras.metrics).values() if isinstance(value, type)}
    declared = {getattr(keras.metrics, name) for name in (*higher, *lower)}
    undeclared = {cls.__name__ for cls in classes if not issubclass(cls, tuple(declared))}
    assert undeclared == {"Mean", "MeanMetricWrapper", "MeanTensor", "Metric", "Sum"} | {"BaseKDE"} & undeclared


@pytest.mark.parametrize(("declared", "direction"), [("up", "max"), ("max", "max"), ("down", "min"), ("min", "min")])
def test_a_metric_declares_its_direction(declared, direction):
    """C1: in either spelling; what it declares comes before its class."""
    metric = keras.metrics.SparseCategoricalAccuracy()
    metric.direction = declared
    assert direction_of(metric) == direction


class Declaring(toy.ToyTask):
    metric_directions = {"accuracy": "min", "dev|f1": "up", "test|f1": "sideways"}  # noqa: RUF012

    def build_metrics(self, training=True):
        return [*super().build_metrics(training), keras.metrics.Mean("perplexity"), keras.metrics.MeanSquaredError("x")]


def test_the_trainer_knows_a_metrics_direction():
    """C1: the task's word first, then the metric's; the loss is the engine's own; the rest is an error."""
    trainer = toy.build(task_cls=Declaring)
    assert trainer.evaluation.metric_direction("accuracy") == "min"
    assert trainer.evaluation.metric_direction("dev|accuracy") == "min"
    assert trainer.evaluation.metric_direction("dev|f1") == "max"
    assert trainer.evaluation.metric_direction("x") == "min"
    assert trainer.evaluation.metric_direction("validation_loss") == "min"
    with pytest.raises(metrics.MetricDirectionError) as caught:
        trainer.evaluation.metric_direction("perplexity")
    assert caught.value.exit_code == ExitCode.CONFIG
    assert str(caught.value) == (
        "it is unknown whether a higher or a lower 'perplexity' is better: Mean does not declare it; set mode to max "
        'or min, or declare it in the code: Declaring.metric_directions = {"perplexity": "max"}'
    )
    with pytest.raises(metrics.MetricDirectionError, match=r"lower 'dev\|x' is better: it is no metric object of Decl"):
        trainer.evaluation.metric_direction("dev|x")
    message = r"Declaring.metric_directions\['test\|f1'\] is 'sideways'; allowed: \"max\" \(or \"up\"\), \"min\""
    with pytest.raises(metrics.MetricDirectionError, match=message):
        trainer.evaluation.metric_direction("test|f1")
