"""Keras 3 as the engine needs it: names, what a checkpoint holds, and one Keras for a run."""

import re

import keras
import pytest
import tensorflow as tf

from official_trainer.lazy import keras as keras2
from official_trainer.tasks import Task
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.contract import ContractError, model_of, other_keras
from official_trainer.tasks.keras import keras3


def build():
    """A model with layers that have a name of their own and with others, one of them inside another model."""
    inner = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)], name="head")
    x = inputs = keras.Input([4])
    x = keras.layers.Dense(3)(x)
    x = keras.layers.Dropout(0.5)(x)
    x = keras.layers.Dense(3, name="block_7")(x)
    return keras.Model(inputs, inner(keras.layers.Dense(3)(x)))


def test_a_checkpoint_holds_values_by_name(tmp_path):
    """N40: of the model, the slots of the optimizer, and a metric."""

    def keys(part):
        prefix = tf.train.Checkpoint(part=part).write(str(tmp_path / "ckpt"))
        return [key for key, _ in tf.train.list_variables(prefix) if key.startswith("part/")]

    model, optimizer = build(), keras.optimizers.Adam(0.1)
    keras3.KERAS.build_slots(optimizer, model.trainable_variables)
    assert "part/block_7/kernel/.ATTRIBUTES/VARIABLE_VALUE" in keys(keras3.KERAS.trackable(model))
    of_optimizer = [key.split("/.ATTR")[0] for key in keys(keras3.KERAS.trackable_optimizer(optimizer, model))]
    assert "part/slots/dense_1/kernel/momentum" in of_optimizer
    assert "part/slots/block_7/bias/velocity" in of_optimizer
    assert {"part/iteration", "part/learning_rate"} <= {*of_optimizer}
    assert len(of_optimizer) == 2 + 2 * 8
    metric = keras.metrics.SparseCategoricalAccuracy(name="hits")
    assert [key.split("/")[1] for key in keys(keras3.KERAS.trackable(metric))] == ["count", "total"]


def test_random_layers_and_draws_without_a_seed_have_generators():
    """N37: each once, in the same order in each process."""
    model = build()
    found = keras3.KERAS.generators(model)
    assert len(found) == 2  # of the dropout, and of keras.random.normal(shape)
    assert found == keras3.KERAS.generators(model)


def test_a_step_can_be_kept_from_updating():
    """N37: `apply` and `apply_gradients`, and both work afterwards."""
    variable, optimizer = keras.Variable([1.0]), keras.optimizers.SGD(1.0)
    optimizer.build([variable])
    with kerases.without_updates([optimizer]) as updated:
        optimizer.apply([tf.constant([1.0])], [variable])
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert variable.numpy().tolist() == [1.0]
    assert updated == [[variable]]
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert variable.numpy().tolist() == [0.0]


@pytest.mark.parametrize("of_3", [True, False])
def test_a_model_and_an_optimizer_of_two_kerases_are_refused(of_3):
    """N37: the error names both."""
    one, other = (keras, keras2) if of_3 else (keras2, keras)
    model = one.Sequential([one.Input([2]), one.layers.Dense(1)])
    said = other_keras(model, [other.optimizers.Adam()])
    assert "Adam is of Keras" in said and "the model Sequential of Keras" in said
    assert said.endswith(f"take both from {'`import keras`' if of_3 else '`from official_trainer.lazy import keras`'}")
    assert not other_keras(model, [one.optimizers.Adam(), one.optimizers.Adam, "adam"])


class Holding(keras.Model):
    """Computes with something that Keras 3 does not see."""

    def __init__(self, held):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.held = held


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tf.Variable(1.0, name="scale"), "'scale:0', .* neither trained nor saved; create it in a layer"),
        (lambda: [keras2.layers.Dense(1, name="of_2")], "'of_2', .*; take all layers from one Keras"),
    ],
)
def test_what_a_model_holds_beside_its_layers_is_refused(make, said):
    """N37: a variable of TensorFlow, and a layer of the other Keras; not what nothing would train."""

    class HoldingTask(Task):
        def build_model(self):
            return Holding(make())

    with pytest.raises(ContractError) as caught:
        model_of(HoldingTask(None))
    assert re.search(said, " ".join(str(caught.value).split()))
    make = lambda: [keras.Variable(1.0), tf.Variable(0, trainable=False), None]  # noqa: E731
    assert isinstance(model_of(HoldingTask(None)), Holding)
