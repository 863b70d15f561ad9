"""Names of what models of Keras 3 hold: each value has one of its own, the same in each process."""

import keras
import pytest
import tensorflow as tf

from official_trainer.tasks import export, optimization
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.variables import flatten
from tests.support import toy
from tests.support.keras3 import shapes


@pytest.mark.parametrize("shape", shapes.EXPECTED)
def test_each_value_has_a_name_of_its_own_that_counts_within_the_model(shape):
    """N40: of nested models, lists, shared and wrapped layers; whatever was built before in the process."""
    model, second = shapes.build(shape), shapes.build(shape)
    found, slots = shapes.names(model)
    assert sorted(found) == sorted(shapes.EXPECTED[shape])
    assert len(found) == len(set(found)) == len(model.weights)
    assert shapes.names(second) == (found, slots)
    trained = {name for name, _ in kerases.of(model).named(model, trainable=True)}
    assert [slot for slot in slots if slot.startswith("slots/")] == sorted(f"slots/{name}/momentum" for name in trained)


def test_a_slot_belongs_to_the_layer_whose_gradients_it_has():
    """N40: also where two layers have one path in Keras."""
    model = shapes.build("nested")
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    gradients = [float(number) * tf.ones(each.shape) for number, each in enumerate(model.trainable_variables, start=1)]
    optimizer.apply(gradients, model.trainable_variables)
    kind = kerases.of(model)
    slots = kind.trackable_optimizer(optimizer, model)["slots"]
    rate = float(optimizer.learning_rate)
    for number, (name, _) in enumerate(kind.named(model, trainable=True), start=1):
        slot = slots
        for part in name.split("/"):
            slot = slot[part]
        assert slot["momentum"].numpy()[0, 0] == pytest.approx(-rate * number), name


def test_a_variable_with_the_name_of_a_layer_has_another():
    """N40: in a checkpoint a name is either a folder or a value."""

    class Both(keras.layers.Layer):
        def build(self, shape):
            self.inside = keras.layers.Dense(2, use_bias=False, name="part")
            self.inside.build(shape)
            self.part = self.add_weight(shape=[2], name="part")
            self.twice = [self.add_weight(shape=[2], name="twice"), self.add_weight(shape=[2], name="twice")]

        def call(self, inputs):
            return self.inside(inputs) + self.part

    given = keras.Input([3])
    model = keras.Model(given, Both(name="both")(given))
    assert [*flatten(model)] == ["both/part_2", "both/twice", "both/twice_2", "both/part/kernel"]
    tree = kerases.of(model).trackable(model)
    assert tree["both"]["part"]["kernel"].shape == (3, 2) and tree["both"]["part_2"].shape == (2,)


def test_outputs_have_names_that_count_within_the_model():
    """N37: those of operations that are no layers, too."""

    def build():
        given = keras.Input([4], name="given")
        return keras.Model(given, [keras.layers.Dense(2)(given), keras.ops.add(given, 1.0), keras.ops.add(given, 2.0)])

    for model in (build(), build()):
        outputs = export.by_name(model(tf.ones([1, 4])), model)
        assert [*outputs] == ["dense", "add", "add_1"]


def test_an_optimizer_for_no_model_is_of_tf_keras_where_a_process_uses_both():
    """N37: Model Garden's driver calls `create_optimizer` so, also after something has imported Keras 3."""
    assert kerases.is_2(optimization.build_optimizer(toy.experiment().trainer.optimizer_config))
