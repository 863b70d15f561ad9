"""Which variables a model has."""

import numpy as np
import tensorflow as tf

from official_trainer.lazy import keras
from official_trainer.tasks import variables
from tests.support import toy


class Twins(keras.layers.Layer):
    """Two variables with one name."""

    def build(self, shape):
        self.first = self.add_weight("kernel", [2, 3])
        self.second = self.add_weight("kernel", [4], trainable=False)

    def call(self, inputs):
        return inputs


def small():
    inputs = keras.Input((2,))
    hidden = Twins(name="twins")(keras.layers.Dense(2, name="dense")(inputs))
    return keras.Model(inputs, keras.layers.BatchNormalization(name="norm")(hidden))


def test_paths_tell_variables_apart():
    """B10: names as Keras gives them, in the model's order; of equal ones the second is numbered."""
    model = small()
    found = variables.flatten(model)
    assert list(found) == [
        "dense/kernel", "dense/bias", "twins/kernel", "twins/kernel_2",
        "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance",
    ]  # fmt: skip
    assert [id(v) for v in found.values()] == [id(v) for v in model.variables]


def test_keys_and_places_come_before_names():
    """B10: mappings and sequences of variables, models and arrays."""
    step, array = tf.Variable(1, name="step"), np.zeros(3)
    tree = {"model": small(), "state": {"step": step}, "slots": [step, array], "pair": (small(),)}
    found = variables.flatten(tree)
    assert list(found)[:2] == ["model/dense/kernel", "model/dense/bias"]
    assert found["state/step"] is step and found["slots/step"] is step
    assert found["slots/1"] is array
    assert "pair/0/norm/beta" in found
    assert list(variables.flatten(step)) == ["step"]
    assert list(variables.flatten(keras.optimizers.SGD())) == ["iteration"]


def test_the_table_is_aligned_and_ends_in_sums():
    """B10: path, shape, dtype, count, trainable."""
    assert variables.summary(small()) == (
        "path                  shape   dtype    count  trainable\n"
        "dense/kernel          (2, 2)  float32      4  yes\n"
        "dense/bias            (2)     float32      2  yes\n"
        "twins/kernel          (2, 3)  float32      6  yes\n"
        "twins/kernel_2        (4)     float32      4  no\n"
        "norm/gamma            (2)     float32      2  yes\n"
        "norm/beta             (2)     float32      2  yes\n"
        "norm/moving_mean      (2)     float32      2  no\n"
        "norm/moving_variance  (2)     float32      2  no\n"
        "24 parameters, 16 of them trainable, 96 bytes"
    )


def test_what_is_frozen_is_not_trainable():
    """B10: as the model trains, not as its variables were made."""
    model = small()
    model.get_layer("dense").trainable = False
    assert variables.count(model) == variables.Count(trainable=10, total=24, size_bytes=96)


def test_types_have_their_sizes():
    """B10: bytes, of TensorFlow's types and NumPy's; a size that is not known counts nothing."""
    tree = {
        "half": tf.Variable(tf.zeros([4, 4], tf.float16)),
        "step": np.zeros([], np.int64),
        "open": tf.Variable(tf.zeros([2, 2]), shape=[None, 2]),
    }
    rows = {row.path: row for row in variables.table(tree)}
    assert (rows["half"].dtype, rows["half"].size_bytes, rows["half"].is_trainable) == ("float16", 32, True)
    assert (rows["step"].dtype, rows["step"].size_bytes, rows["step"].is_trainable) == ("int64", 8, False)
    assert (rows["open"].shape, rows["open"].count) == ((None, 2), 0)
    assert "(?, 2)" in variables.summary(tree)


def test_a_strategy_changes_nothing():
    """B10: a variable on several replicas is one."""
    trainer = toy.build(strategy="mirrored2")
    assert variables.count(trainer.model).trainable == 6 * 8 + 8 + 8 * 3 + 3
    assert set(variables.flatten(trainer.model)) == {"dense/kernel", "dense/bias", "logits/kernel", "logits/bias"}
