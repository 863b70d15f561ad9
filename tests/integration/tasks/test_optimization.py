"""What is put around an update changes nothing of it: an optimizer of Keras ends with the bits that it has alone."""

import inspect
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from official_trainer.program.keras_fit import keras2 as keras_fit
from official_trainer.tasks.keras import keras2
from tests.support.cases import cases

STEPS = 3

KINDS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": kind
    for module in (keras.optimizers, keras.optimizers.legacy)
    for name, kind in sorted(vars(module).items())
    if inspect.isclass(kind) and name not in ("Optimizer", "LossScaleOptimizer")
}


def decaying(kind):
    return kind(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))


SETTINGS = {
    "schedule": lambda: decaying(keras.optimizers.Adam),
    "legacy schedule": lambda: decaying(keras.optimizers.legacy.Adam),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "decay": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "norm": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.1),
    "legacy norm": lambda: keras.optimizers.legacy.SGD(0.1, global_clipnorm=0.1),
    "compiled": lambda: keras.optimizers.Adam(0.1, jit_compile=True),
    "loss scale": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
    "legacy loss scale": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.legacy.Adam(0.1)),
}


def a_model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(8, 4, input_length=3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input([3], dtype="int32"), *layers])


def trained(optimizer, apply):
    """Returns weights and the counter after a few steps in one traced loop."""
    model = a_model()
    optimizer.build(model.trainable_variables) if hasattr(optimizer, "build") else None
    batches = tf.constant(np.random.default_rng(0).integers(0, 8, [STEPS, 5, 3]))

    @tf.function
    def run():
        for number in tf.range(STEPS):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batches[number], training=True) ** 2)
            apply(optimizer, loss, model.trainable_variables, tape)

    run()
    return [*(weight.numpy() for weight in model.weights), optimizer.iterations.numpy()]


def by_keras(optimizer, loss, weights, tape):
    optimizer.minimize(loss, weights, tape=tape)


def by_fit(optimizer, loss, weights, tape):
    """As a Program does."""
    keras_fit.KERAS.minimize(optimizer, loss, types.SimpleNamespace(trainable_variables=weights), tape)


def by_gradients(optimizer, loss, weights, tape):
    gradients = tape.gradient(loss, weights)
    keras2.KERAS.apply(optimizer, list(zip(gradients, weights, strict=True)), after=loss)


@pytest.mark.parametrize("name", cases([*KINDS, *SETTINGS], "legacy.Adam", "averages", "loss scale"))
def test_an_update_is_that_of_the_optimizer(name):
    """T3, K2: dense and sparse gradients; schedules, decay, clipping, averages, loss scales, XLA."""
    create = {**KINDS, **SETTINGS}[name]
    expected = trained(create(), by_keras)
    assert expected[-1] == STEPS
    for way in [by_fit] if "loss scale" in name else [by_fit, by_gradients]:  # the second takes unscaled gradients
        for ours, theirs in zip(trained(create(), way), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("create", [keras.optimizers.Adam, keras.optimizers.legacy.Adam], ids=["new", "legacy"])
def test_a_step_without_data_does_not_count(create):
    model, optimizer = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), create()
    iterator = iter(tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat(2))
    optimizer.build(model.trainable_variables) if hasattr(optimizer, "build") else None

    @tf.function
    def run(iterator):
        for _ in tf.range(5):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(next(iterator)) ** 2)
            by_fit(optimizer, loss, model.trainable_variables, tape)

    with pytest.raises(tf.errors.OutOfRangeError):
        run(iterator)
    assert optimizer.iterations.numpy() == 2
