"""Moving averages of training metrics."""

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.tasks import MovingAverage
from tests.support.cases import cases
from tests.support.toy import ToyTask, build, experiment


class Smoothed(ToyTask):
    """Replicas have equal parts of a batch, so the mean over replicas is the mean of the batch."""

    def build_metrics(self, training=True):
        accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
        return [accuracy, MovingAverage(keras.metrics.SparseCategoricalAccuracy("accuracy"), 0.1)][: 1 + training]


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_the_moving_average_of_a_metric_goes_on_from_summary_to_summary(strategy):
    """G19: of the values of all batches, weighted by age, and not reset."""
    one_by_one, trainer = (build(experiment(), task_cls=Smoothed, strategy=strategy) for _ in range(2))
    values = [float(one_by_one.train(1)["accuracy"]) for _ in range(6)]
    trainer.train(2)
    logs = trainer.train(4)
    expected = np.average(values, weights=[0.9**age for age in range(5, -1, -1)])
    assert float(logs["smoothed_accuracy"]) == pytest.approx(expected, rel=1e-5)
    assert float(logs["accuracy"]) == pytest.approx(np.mean(values[-4:]), rel=1e-5)


def test_a_weight_out_of_range_is_refused():
    """G19: with the metric it is for."""
    with pytest.raises(ValueError, match=r"weight of MovingAverage\(mae\) is 0; it must be above 0, at most 1"):
        MovingAverage(keras.metrics.MeanAbsoluteError("mae"), weight=0)


def test_checkpoints_hold_it(tmp_path):
    """G19, N1: a restart goes on with the same bits."""
    unbroken, before, after = (build(experiment(), task_cls=Smoothed) for _ in range(3))
    expected = unbroken.train(6)["smoothed_accuracy"]
    before.train(4)
    path = before.checkpoint.write(str(tmp_path / "state"))
    after.checkpoint.read(path).assert_consumed()
    after.train_iterator.reset()
    assert float(after.train(2)["smoothed_accuracy"]) == float(expected)
