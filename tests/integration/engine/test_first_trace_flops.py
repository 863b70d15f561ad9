"""The FLOPs of a step: products by hand, 2 for a weight and an example forwards, 4 backwards, and a little beside."""

import pytest

from official_trainer.engine.first_trace import flops_of_train_step
from official_trainer.inputs import from_arrays
from official_trainer.lazy import keras
from tests.support import toy

PRODUCTS = 10 * (6 * (6 * 8 + 8 * 3) - 2 * 6 * 8)  # no gradient of the features


class OpenShapes(toy.ToyTask):
    """Nothing says how many examples the last batch has."""

    def build_inputs(self, params, input_context=None):
        return toy.examples(toy.NUM_EXAMPLES).batch(10).repeat()


class Recurrent(toy.ToyTask):
    """Runs a loop."""

    def build_model(self):
        features = keras.Input((6,))
        hidden = keras.layers.GRU(4)(keras.layers.Reshape((6, 1))(features))
        return keras.Model(features, keras.layers.Dense(3)(hidden))


class Arrays(toy.ToyTask):
    """Data in blocks."""

    def build_inputs(self, params, input_context=None):
        return from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@pytest.mark.parametrize(("strategy", "task_cls"), [("mirrored2", toy.ToyTask), ("off", Arrays)])
def test_a_step_is_counted_and_not_run(strategy, task_cls):
    """N10: on all replicas together, and nothing has changed."""
    trainer = toy.build(toy.experiment(), strategy=strategy, task_cls=task_cls)
    with trainer.strategy.scope():
        counted = flops_of_train_step(trainer)
    assert PRODUCTS < counted < 1.5 * PRODUCTS
    assert int(trainer.global_step.numpy()) == 0
    assert int(trainer.train(2)["accuracy"].numpy() >= 0)


@pytest.mark.parametrize("task_cls", [OpenShapes, Recurrent])
def test_what_the_graph_does_not_say_is_not_guessed(task_cls):
    """N10: shapes that are open, and loops."""
    assert flops_of_train_step(toy.build(toy.experiment(), task_cls=task_cls)) is None
