"""Small models of Keras 3 that learn from arrays: what each is, its data, its losses, its optimizer.

Owns: the cases, and the weights that every training of a case begins with. Does not own: who trains them (`sides.py`).

A case has no dropout where losses are compared, because Keras's `fit` and the engine draw different masks. Models of
KerasHub are built from their configs; nothing is downloaded.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

BATCH, STEPS = 16, 50
CLASSES = 3
TOKENS, WORDS = 12, 50


def cross_entropy(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


@dataclasses.dataclass(frozen=True)
class ModelCase:
    """One model, and how it is trained.

    Attributes:
      build: `build(dropout=0.0)` returns a new, built model.
      features: of all steps in their order, arrays `[800, …]` in the structure that the model takes.
      losses: of the model's outputs, functions `(labels, outputs) -> [batch]`; several by the names of the outputs.
      labels: arrays `[800, …]`, in the structure of `losses`.
      optimizer: returns a new optimizer.
      dtype: `runtime.mixed_precision_dtype`.
      needs: the package that has to be installed.
    """

    build: Callable[..., keras.Model]
    features: Callable[[], Any]
    labels: Callable[[], Any]
    losses: Any = cross_entropy
    optimizer: Callable[[], keras.optimizers.Optimizer] = lambda: keras.optimizers.Adam(0.01)
    dtype: str | None = None
    needs: str = "keras"

    @property
    def policy(self):
        """What Keras calls `dtype`."""
        return f"mixed_{self.dtype}" if self.dtype else "float32"


def random(*shape, seed=0):
    return np.random.RandomState(seed).randn(BATCH * STEPS, *shape).astype("float32")


def classes(seed=1):
    """Labels that can be learned: the first numbers of the features decide."""
    return np.random.RandomState(seed).randint(0, CLASSES, BATCH * STEPS).astype("int32")


def learnable(shape, seed=0):
    """Returns features whose mean depends on the label."""
    return random(*shape, seed=seed) + classes()[(slice(None), *[None] * len(shape))] - 1


def logits(x, name="logits"):
    return keras.layers.Dense(CLASSES, dtype="float32", name=name)(x)


# The models.


def dense(dropout=0.0):
    features = keras.Input((6,), name="features")
    x = keras.layers.Dropout(dropout)(keras.layers.Dense(16, "tanh")(features))
    return keras.Model(features, logits(keras.layers.Dense(16, "relu")(x)))


def convolutions(dropout=0.0):
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(8, 3, use_bias=False)(image))
    x = keras.layers.MaxPool2D()(keras.layers.Activation("relu")(x))
    x = keras.layers.BatchNormalization(momentum=0.9)(keras.layers.Conv2D(8, 3)(x))
    return keras.Model(image, logits(keras.layers.Dropout(dropout)(keras.layers.Flatten()(x))))


def recurrent(dropout=0.0):
    features = keras.Input((TOKENS, 4), name="features")
    x = keras.layers.LSTM(8, dropout=dropout, return_sequences=True)(features)
    return keras.Model(features, logits(keras.layers.GRU(8, recurrent_dropout=dropout)(x)))


def two_heads(dropout=0.0):
    """Two inputs, two outputs, and a layer that both inputs share."""
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    shared = keras.layers.Dense(8, "tanh", name="shared")
    x = keras.layers.Dropout(dropout)(keras.layers.Concatenate()([shared(left), shared(right)]))
    outputs = {"kind": logits(x, "kind"), "size": keras.layers.Dense(1, name="size")(x)}
    return keras.Model({"left": left, "right": right}, outputs)


def bert(dropout=0.0):
    from keras_hub.models import BertBackbone, BertTextClassifier

    backbone = BertBackbone(
        vocabulary_size=WORDS, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, dropout=dropout,
        max_sequence_length=TOKENS,
    )  # fmt: skip
    return BertTextClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None, dropout=dropout)


def lora(dropout=0.0):
    """The dense layers' own weights are frozen, the last layer's are not."""
    model = dense(dropout)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense) and layer.name != "logits":
            layer.enable_lora(rank=2)
    return model


@keras.saving.register_keras_serializable("tests")
class Sparse(keras.layers.Layer):
    """Adds a loss that depends on the batch."""

    def call(self, features):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.abs(features)))
        return features


def added_loss(dropout=0.0):
    features = keras.Input((6,), name="features")
    x = keras.layers.Dense(16, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))(features)
    return keras.Model(features, logits(keras.layers.Dropout(dropout)(Sparse()(x))))


# The cases.


def words(seed=2):
    """Tokens of which one says the label."""
    found = np.random.RandomState(seed).randint(CLASSES + 1, WORDS, (BATCH * STEPS, TOKENS)).astype("int32")
    found[:, 3] = 1 + classes()
    return found


def bert_features():
    lengths = np.random.RandomState(3).randint(6, TOKENS, BATCH * STEPS)
    mask = (np.arange(TOKENS) < lengths[:, None]).astype("int32")
    return {"token_ids": words() * mask, "padding_mask": mask, "segment_ids": np.zeros_like(mask)}


def kinds_and_sizes():
    return {"kind": classes(), "size": 0.5 * random(1, seed=4)}


def averaging():
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=10)


def scaling():
    """Overflows in its first steps, which are skipped, and grows again on the way."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=2.0**22, dynamic_growth_steps=8
    )


def _features(*shape):
    return functools.partial(learnable, shape)


CASES = {
    "convolutions": ModelCase(convolutions, _features(8, 8, 3), classes),
    "two_heads": ModelCase(
        two_heads,
        lambda: {"left": learnable((6,)), "right": random(6, seed=5)},
        kinds_and_sizes,
        {"kind": cross_entropy, "size": keras.losses.mean_squared_error},
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, STEPS), momentum=0.9),
    ),
    "averaged": ModelCase(dense, _features(6), classes, optimizer=averaging),
    "float16": ModelCase(dense, _features(6), classes, optimizer=scaling, dtype="float16"),
    "bert": ModelCase(bert, bert_features, classes, needs="keras_hub"),
    "lora": ModelCase(lora, _features(6), classes),
    "added_loss": ModelCase(added_loss, _features(6), classes),
}


def _sgd(**options):
    return functools.partial(keras.optimizers.SGD, 0.1, **options)


OPTIMIZERS = {
    "sgd": _sgd(),
    "clipnorm": _sgd(clipnorm=0.02),
    "global_clipnorm": _sgd(global_clipnorm=0.05),
    "accumulating": _sgd(gradient_accumulation_steps=2),
}
"""Optimizers whose weights tell what was done to gradients; each clips in nearly every step."""


OVERFLOWS_AT = 20
"""The step whose last example makes gradients that float16 cannot hold, with a loss that is finite."""


def large_example():
    features = learnable((6,))
    features[OVERFLOWS_AT * BATCH - 1] = 3000
    return features


def linear(dropout=0.0):
    features = keras.Input((6,), name="features")
    outputs = keras.layers.Dense(CLASSES)(features)
    return keras.Model(features, keras.layers.Activation("linear", dtype="float32")(outputs))


def scaling_once():
    """Its scale changes where gradients overflow, and nowhere else."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**10)


ALL = {
    **CASES,
    "dense": ModelCase(dense, _features(6), classes),
    "recurrent": ModelCase(recurrent, _features(TOKENS, 4), classes),
    "overflow": ModelCase(linear, large_example, classes, optimizer=scaling_once, dtype="float16"),
}
"""With those that only some tests use."""


@functools.cache
def first_weights(name):
    """Returns the weights that every training of a case begins with."""
    keras.utils.set_random_seed(0)
    rng = np.random.RandomState(6)
    # Zeros and ones (the second matrix of LoRA, those of batch norm) would hide a mistake.
    values = ALL[name].build().get_weights()
    return [v if v.dtype == "int32" else v + 0.05 * rng.rand(*v.shape).astype(v.dtype) for v in values]


def built(name, dropout=0.0):
    """Returns a new model of a case with its first weights."""
    first = first_weights(name)
    model = ALL[name].build(dropout)
    model.set_weights(first)
    return model
