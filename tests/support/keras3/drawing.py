"""A model of Keras 3 whose layers draw random numbers in every way that Keras 3 has, and optimizers that have state.

Owns: the layers and the model that kill tests train. Does not own: its task (`workspace/experiments/keras3_chaos.py`).
"""

import functools

import keras

CLASSES = 3


class SeededNoise(keras.layers.Layer):
    """Draws from a generator of its own, twice in a call."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generator = keras.random.SeedGenerator(7)

    def call(self, x, training=False):
        if not training:
            return x
        shape = keras.ops.shape(x)
        scale = keras.random.uniform((), 0.5, 1.0, seed=self.generator)
        return x + keras.ops.cast(0.1 * scale * keras.random.normal(shape, seed=self.generator), x.dtype)


class Noise(keras.layers.Layer):
    """Draws without a seed, from what Keras has once for a process."""

    def call(self, x, training=False):
        noise = 0.1 * keras.random.normal(keras.ops.shape(x))
        return x + keras.ops.cast(noise, x.dtype) if training else x


def build(parts):
    """Returns the model: `logits`, `augmented` images, and the `mask` that a dropout makes of ones."""
    image = x = keras.Input((8, 8, 1), name="image")
    x = keras.layers.RandomFlip("horizontal")(x) if "flip" in parts else x
    augmented = x = keras.layers.RandomTranslation(0.2, 0.2)(x) if "translation" in parts else x
    x = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = keras.layers.BatchNormalization(momentum=0.8)(x) if "batch_norm" in parts else x
    x = SeededNoise()(x) if "seeded_noise" in parts else x
    x = Noise()(x) if "noise" in parts else x
    x = keras.layers.MaxPool2D(4)(x)
    if "lstm" in parts:
        x = keras.layers.LSTM(4, dropout=0.2)(keras.layers.Reshape((4, 4))(x))
    x = keras.layers.Dense(8, "tanh")(keras.layers.Flatten()(x))
    mask = keras.ops.ones_like(x)
    if "dropout" in parts:
        x, mask = keras.layers.Dropout(0.3)(x), keras.layers.Dropout(0.5)(mask)
    outputs = {"augmented": augmented, "mask": mask}
    logits = keras.layers.Dense(CLASSES, dtype="float32", name="logits")(x)
    return keras.Model(image, {"logits": logits, **outputs})


def scaling():
    """Overflows at the beginning, and again whenever it has grown enough."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=2.0**20, dynamic_growth_steps=5
    )


OPTIMIZERS = {
    "adam": functools.partial(keras.optimizers.Adam, keras.optimizers.schedules.CosineDecay(0.01, 50)),
    "averaging": functools.partial(
        keras.optimizers.AdamW, 0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4
    ),
    "scaling": scaling,
    "accumulating": functools.partial(keras.optimizers.Adam, 0.01, gradient_accumulation_steps=3),
}
