"""Every optimizer of Keras, and settings of some, on a small model that is trained with and without our wrappers."""

import inspect

import numpy as np
import tensorflow as tf
import tf_keras as keras

from official_trainer.tasks import optimization

STEPS = 3

KINDS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": kind
    for module in (keras.optimizers, keras.optimizers.legacy)
    for name, kind in sorted(vars(module).items())
    if inspect.isclass(kind) and name not in ("Optimizer", "LossScaleOptimizer")
}

QUICK_KINDS = ("optimizers.Adam", "optimizers.SGD", "legacy.Adam")


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

QUICK_SETTINGS = ("averages", "compiled", "loss scale")


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


def by_gradients(optimizer, loss, weights, tape):
    gradients = tape.gradient(loss, weights)
    optimization.apply_gradients(optimizer, zip(gradients, weights, strict=True), after=loss)


def check_alike(create, ways):
    expected = trained(create(), by_keras)
    assert expected[-1] == STEPS
    for way in ways:
        for ours, theirs in zip(trained(create(), way), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def check_kind(name):
    check_alike(KINDS[name], [optimization.minimize, by_gradients])


def check_setting(name):
    scales = "loss scale" in name  # by_gradients is for gradients that are not scaled
    check_alike(SETTINGS[name], [optimization.minimize] if scales else [optimization.minimize, by_gradients])


def check_large_model(kind, monkeypatch):
    monkeypatch.setattr(optimization, "_SMALL_MODEL", 0)
    check_alike(kind, [optimization.minimize, by_gradients])
