"""Metrics that belong to the model itself: training and evaluation count in them, neither sees the other's counts."""

import pytest

from official_trainer.lazy import keras
from tests.support.cases import cases
from tests.support.toy import STRATEGIES, Undropped, build


class Measured(Undropped):
    """Its model brings a metric of its own, in which both steps count."""

    def build_model(self):
        model = super().build_model()
        model.compile(metrics=[keras.metrics.Sum("examples")])
        model.compiled_metrics.build(0.0, 0.0)
        return model

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(labels, model_outputs)
        metrics[1].update_state(keras.backend.ones_like(labels))


def _trained(strategy, *, evaluates):
    trainer = build(task_cls=Measured, strategy=strategy)
    trainer.run_steps(2)
    results = trainer.evaluate(-1) if evaluates else {}
    trainer.run_steps(1)
    return float(trainer.train_loop_end()["examples"]), results


@pytest.mark.parametrize("strategy", cases(STRATEGIES, "off"))
def test_an_evaluation_leaves_what_training_has_counted_in_the_models_metrics(strategy):
    """T2: a row of training metrics is the same whether an evaluation lies in it or not."""
    counted, results = _trained(strategy, evaluates=True)
    assert float(results["examples"]) == 101
    assert counted == _trained(strategy, evaluates=False)[0] == 30
