"""Small models, data and callbacks for programs."""

from __future__ import annotations

import numpy as np

from official_trainer.lazy import keras, tf

EXAMPLES, FEATURES, CLASSES = 50, 6, 3


def examples():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0.5).astype(np.int32)
    return x, y


def of(*layers):
    """Returns what builds a model of a Keras with these layers between the features and the classes."""

    def build(k=keras, *, seed=1):
        k.utils.set_random_seed(seed)
        pixels = x = k.Input([FEATURES])
        for layer in layers:
            x = layer(k)(x)
        return k.Model(pixels, k.layers.Dense(CLASSES)(x))

    return build


def dense(k):
    return k.layers.Dense(8, activation="tanh", kernel_regularizer="l2")


def norm(k):
    return k.layers.BatchNormalization()


light, deep = of(), of(dense, norm)
"""One layer, for what does not depend on the model: it is traced in half the time; and several."""


def cross_entropy(k, **arguments):
    return k.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def lightly(owner, k=keras, **settings):
    """Compiles with the optimizer that is traced fastest."""
    owner.compile(**{"optimizer": "sgd", "loss": cross_entropy(k), "metrics": ["accuracy"], **settings})
    return owner


class Writes:
    """Writes down every call; for a class of callbacks of either Keras."""

    def __init__(self, batches: bool = True) -> None:
        super().__init__()
        self.calls = []
        for name in dir(keras.callbacks.Callback):
            if name.startswith(("on_train", "on_test", "on_epoch", "on_pred")) and (batches or "batch" not in name):
                setattr(self, name, self._writing(name))

    def _writing(self, name):
        def write(*arguments, **keywords):
            logs = keywords.get("logs")
            found = [a for a in arguments if not isinstance(a, dict)]
            logs = next((a for a in arguments if isinstance(a, dict)), logs)
            self.calls.append((name, *found, {k: _told(v) for k, v in (logs or {}).items()}))

        return write

    def _implements_train_batch_hooks(self):
        return any("train_batch" in name for name in vars(self))

    def _implements_test_batch_hooks(self):
        return any("test_batch" in name for name in vars(self))


def diary_of(k=keras, *, batches=True):
    """Returns a callback of a Keras, whose `calls` are those that it got."""
    return type("Diary", (Writes, k.callbacks.Callback), {})(batches)


def _told(value):
    """Returns a number, or the shapes of the outputs of a batch."""
    is_number = not tf.nest.is_nested(value) and np.ndim(value) == 0
    return float(value) if is_number else tf.nest.map_structure(lambda each: tuple(np.shape(each)), value)


class Halves(keras.utils.Sequence):
    """Batches of two sizes; says how often an epoch has ended."""

    def __init__(self, data):
        super().__init__()
        self._data, self.epochs = data, 0

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return tuple(array[number * 20 : (number + 1) * 20] for array in self._data)

    def on_epoch_end(self):
        self.epochs += 1


def generated(count, *arrays):
    """Yields batches of ten, over and over."""
    for number in range(count):
        rows = slice(number * 10 % EXAMPLES, number * 10 % EXAMPLES + 10)
        yield tuple(array[rows] for array in arrays or examples())


def assert_alike(history, expected, rtol=1e-6):
    """Compares the numbers of two histories."""
    assert history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=rtol, err_msg=name)
