"""Combinations of what `compile` and `fit` take, each run by a Program and by Keras 3 on the same model and data."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from official_trainer.lazy import tf
from tests.support.fits import (
    BY_NAME,
    CLASS_WEIGHTS,
    LISTED,
    ONE_HOT,
    WEIGHTS,
    Y_BY_NAME,
    Fit,
    X,
    Y,
    arrays,
    compare_fit,
    dataset,
    sparse_rows,
    unknown,
    worse,
)
from tests.support.programs import CLASSES, EXAMPLES, FEATURES, Writes, generated

CLOSE = 1e-6


class Diary(Writes, keras.callbacks.Callback):
    """Writes down every call."""


def lightly(owner, **settings):
    """Compiles with the optimizer that is traced fastest."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    owner.compile(**{"optimizer": "sgd", "loss": loss, "metrics": ["accuracy"], **settings})
    return owner


# Models.


def of(*layers, seed=1, before=lambda: None, features=FEATURES):
    """Layers between the features and the classes; built when it is called."""

    def make():
        keras.utils.set_random_seed(seed)
        before()
        return keras.Sequential([keras.Input([features]), *[layer() for layer in layers], keras.layers.Dense(CLASSES)])

    return make


def light():
    return of()()


def dense():
    return keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")


def build():
    """Batch statistics, and a loss of a regularizer."""
    return of(dense, keras.layers.BatchNormalization)()


def two(*, by_name=False):
    """Two inputs, and two outputs, in a list or by name."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input([2], name="a"), keras.Input([4], name="b")
    hidden = keras.layers.Concatenate()([a, b])
    outputs = {name: keras.layers.Dense(CLASSES, name=name)(hidden) for name in ("left", "right")}
    return keras.Model({"a": a, "b": b}, outputs if by_name else list(outputs.values()))


def two_listed():
    keras.utils.set_random_seed(1)
    a, b = keras.Input([2], name="a"), keras.Input([4], name="b")
    hidden = keras.layers.Concatenate()([a, b])
    return keras.Model([a, b], [keras.layers.Dense(CLASSES, name=name)(hidden) for name in ("left", "right")])


def two_by_name():
    return two(by_name=True)


class Subclassed(keras.Model):
    """Built by its first batch; its call takes no `training`."""

    def __init__(self):
        super().__init__()
        self.dense, self.last = keras.layers.Dense(4, "relu"), keras.layers.Dense(CLASSES)

    def call(self, x):
        return self.last(self.dense(x))


def subclassed():
    keras.utils.set_random_seed(1)
    return Subclassed()


class OwnSteps(keras.Model):
    """Has steps of its own, which return a metric and another number."""

    def __init__(self):
        super().__init__()
        self.dense, self.mean = keras.layers.Dense(CLASSES), keras.metrics.Mean("mean")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x, training=None):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), from_logits=True)
            loss = keras.ops.mean(losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean.update_state(loss)
        return {"mean": self.mean.result(), "last": loss * 2}

    def test_step(self, data):
        self.mean.update_state(keras.ops.mean(self(data[0])))
        return {"mean": self.mean.result()}


def with_own_steps():
    keras.utils.set_random_seed(1)
    model = OwnSteps()
    model(np.zeros([2, FEATURES], "float32"))
    return model


class OwnResults(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": keras.ops.max(y_pred)}


def with_own_results():
    model = build()
    return OwnResults(model.inputs, model.outputs)


class Adds(keras.layers.Layer):
    """Adds a loss of what it gets."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(x))
        return x


def of_ragged_rows():
    keras.utils.set_random_seed(1)
    inputs = keras.Input([None], dtype="int32")
    means = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4, mask_zero=True)(inputs))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(means))


def of_sparse():
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES], sparse=True)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(inputs))


def under(policy):
    """The model of batch statistics, with this precision."""

    def make():
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return of(lambda: keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization)()
        finally:
            keras.config.set_dtype_policy(before)

    return make


# What is compiled.


def cross_entropy(**arguments):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def by_name():
    return {
        "loss": {"left": cross_entropy(), "right": cross_entropy()},
        "metrics": {"left": ["accuracy"], "right": ["accuracy", "sparse_categorical_crossentropy"]},
        "loss_weights": {"left": 1.0, "right": 0.2},
    }


def for_both(**settings):
    return lambda: {"loss": [cross_entropy(), cross_entropy()], "metrics": [["accuracy"], ["accuracy"]], **settings}


class Extremes(keras.metrics.Metric):
    """A metric with two numbers."""

    def __init__(self):
        super().__init__(name="extremes")
        self.low, self.high = (self.add_weight(name=name, initializer="zeros") for name in ("low", "high"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.low.assign(keras.ops.minimum(self.low, keras.ops.min(y_pred)))
        self.high.assign(keras.ops.maximum(self.high, keras.ops.max(y_pred)))

    def result(self):
        return {"low": self.low + 0.0, "high": self.high + 0.0}


def of_functions():
    """A loss and a metric that are functions, and one with several numbers."""
    return {
        "loss": lambda y, found: keras.ops.square(keras.ops.one_hot(keras.ops.reshape(y, [-1]), CLASSES) - found)
    } | {"metrics": [lambda y, found: keras.ops.mean(keras.ops.abs(found), axis=-1), Extremes()]}


def with_optimizer(make):
    return lambda: {"optimizer": make()}


class Parts(keras.utils.PyDataset):
    """Batches of two sizes."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return tuple(array[number * 20 : (number + 1) * 20] for array in (X, Y))


# Callbacks.


class StopAt(keras.callbacks.Callback):
    """Ends training at the second call of one of its methods."""

    def __init__(self, where):
        super().__init__()
        count = iter(range(1, 1000))

        def stop(*arguments, **keywords):
            if next(count) == 2:
                self.model.stop_training = True

        setattr(self, where, stop)


def fit(data=arrays, **fields):
    return Fit(data=data, **{"model": light, "rtol": CLOSE, **fields})


def stopped(where, **arguments):
    return fit(lambda: arrays(epochs=4, batch_size=16, **arguments), callbacks=lambda folder: [StopAt(where)])


def called(callback, **arguments):
    return fit(lambda: worse(**arguments), callbacks=lambda folder: [callback(folder)])


def halved():
    """A LambdaCallback that changes the rate after an epoch."""
    found = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: found.model.optimizer.learning_rate.assign(0.1 / (epoch + 2))
    )
    return found


# What is done before.


def one_batch_at_a_time(program, model):
    found = [program.train_on_batch(X[:9], Y[:9]), program.train_on_batch(X, Y, class_weight=CLASS_WEIGHTS)]
    found += [program.train_on_batch(X, Y, sample_weight=WEIGHTS, return_dict=True)]
    return [*found, program.test_on_batch(X[9:], Y[9:], sample_weight=WEIGHTS[9:])]


def fit_and_compile(program, model):
    history = program.fit(X, ONE_HOT, shuffle=False, verbose=0).history
    lightly(program, optimizer="adam")
    return history


def freeze(program, model):
    model.layers[0].trainable = False
    lightly(program)


COMBINATIONS = {
    # Data.
    "arrays": fit(),
    "a smaller last batch": fit(lambda: arrays(batch_size=7)),
    "doubles": fit(lambda: arrays(x=X.astype(np.float64), y=Y.astype(np.int64))),
    "tensors": fit(lambda: arrays(x=tf.constant(X), y=tf.constant(Y))),
    "inputs in a list, outputs too": fit(
        lambda: arrays(x=LISTED, y=[Y, Y], validation_split=0.2),
        model=two_listed,
        settings=for_both(loss_weights=[1.0, 0.3]),
    ),
    "inputs by name, outputs too": fit(
        lambda: arrays(x=BY_NAME, y=Y_BY_NAME, validation_split=0.2), model=two_by_name, settings=by_name
    ),
    "dataset": fit(lambda: {"x": dataset(), "validation_data": dataset(), "epochs": 2}),
    "dataset with weights": fit(lambda: {"x": dataset(X, Y, WEIGHTS), "epochs": 2}),
    "dataset that repeats": fit(lambda: {"x": dataset().repeat(), "steps_per_epoch": 4, "epochs": 3}),
    "dataset of unknown size, in one epoch": fit(lambda: {"x": unknown(), "validation_data": unknown()}),
    "generator with weights": fit(lambda: {"x": generated(12, X, Y, WEIGHTS), "steps_per_epoch": 3, "epochs": 4}),
    "generator of one epoch": fit(lambda: {"x": generated(7)}),
    "PyDataset": fit(lambda: {"x": Parts(), "epochs": 3, "shuffle": False}),
    "sparse": fit(sparse_rows, model=of_sparse),
    "words with masks": fit(lambda: arrays(x=np.abs(X * 5).astype("int32")), model=of_ragged_rows),
    # Losses, weights and metrics.
    "weights of examples": fit(lambda: arrays(sample_weight=WEIGHTS)),
    "weights of classes": fit(lambda: arrays(class_weight=CLASS_WEIGHTS)),
    "classes as one-hot": fit(
        lambda: arrays(y=ONE_HOT, class_weight=CLASS_WEIGHTS),
        settings=lambda: {"loss": keras.losses.CategoricalCrossentropy(from_logits=True)},
    ),
    "weighted metrics": fit(
        lambda: arrays(sample_weight=WEIGHTS, validation_split=0.2),
        settings=lambda: {"weighted_metrics": ["accuracy"]},
    ),
    "loss and metrics of the user's": fit(lambda: arrays(validation_split=0.2), settings=of_functions),
    "names alone": fit(settings=lambda: {"loss": "mse", "metrics": ["mae", "mse"]}, data=lambda: arrays(y=ONE_HOT)),
    "a sum over examples": fit(settings=lambda: {"loss": cross_entropy(reduction="sum")}),
    "losses that layers add": fit(lambda: arrays(validation_split=0.2), model=of(dense, Adds)),
    "added losses alone": fit(
        lambda: arrays(y=None), model=of(dense, Adds), settings=lambda: {"loss": None, "metrics": None}
    ),
    # Validation, epochs and steps.
    "weights of a validation": fit(
        lambda: arrays(sample_weight=WEIGHTS, validation_data=(X[40:], Y[40:], WEIGHTS[40:]))
    ),
    "a validation in some epochs": fit(lambda: arrays(validation_split=0.3, epochs=5, validation_freq=2)),
    "batches of a validation": fit(
        lambda: arrays(batch_size=16, validation_split=0.4, validation_batch_size=3, validation_steps=4)
    ),
    "first epoch": fit(lambda: arrays(initial_epoch=1, epochs=5, validation_split=0.2, validation_freq=3)),
    "several steps at once": fit(
        lambda: arrays(batch_size=8, validation_data=(X[:32], Y[:32])),
        settings=lambda: {"steps_per_execution": 2},
    ),
    "a second fit": fit(
        settings=lambda: {"optimizer": "adam"},
        before=lambda program, model: program.fit(X, Y, epochs=2, shuffle=False, verbose=0).history,
    ),
    "one batch at a time before": fit(before=one_batch_at_a_time),
    "compiled again after a fit": fit(
        settings=lambda: {"loss": "mse", "metrics": ["mae"], "optimizer": "rmsprop"}, before=fit_and_compile
    ),
    # Callbacks. What they write, and their numbers, are compared as well.
    "EarlyStopping": called(lambda folder: keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)),
    "EarlyStopping by a metric": called(
        lambda folder: keras.callbacks.EarlyStopping("val_accuracy", patience=1, min_delta=0.01)
    ),
    "ReduceLROnPlateau": called(lambda folder: keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.3)),
    "LearningRateScheduler": called(
        lambda folder: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    ),
    "LambdaCallback": called(lambda folder: halved()),
    "ModelCheckpoint": called(
        lambda folder: keras.callbacks.ModelCheckpoint(str(folder / "{epoch:02d}.keras"), save_best_only=True)
    ),
    "ModelCheckpoint in epochs": called(
        lambda folder: keras.callbacks.ModelCheckpoint(
            str(folder / "{epoch}-{batch}.weights.h5"), save_weights_only=True, save_freq=3
        ),
        batch_size=10,
    ),
    "CSVLogger": called(lambda folder: keras.callbacks.CSVLogger(str(folder / "log.csv"))),
    "TerminateOnNaN": fit(
        lambda: arrays(x=np.where(np.arange(EXAMPLES)[:, None] == 20, np.inf, X), batch_size=8),
        callbacks=lambda folder: [keras.callbacks.TerminateOnNaN()],
    ),
    "stop after a batch": stopped("on_train_batch_end", validation_split=0.2),
    "stop after an epoch": stopped("on_epoch_end", validation_split=0.2),
    # Models.
    "batch statistics": fit(lambda: arrays(validation_split=0.2), model=build, settings=lambda: {"optimizer": "adam"}),
    "recurrent": fit(
        lambda: arrays(batch_size=16),
        model=of(lambda: keras.layers.Reshape([FEATURES, 1]), keras.layers.Masking, lambda: keras.layers.SimpleRNN(4)),
    ),
    "subclassed, built by its first batch": fit(lambda: arrays(validation_split=0.2), model=subclassed),
    "steps of the model": fit(lambda: arrays(validation_split=0.2), model=with_own_steps),
    "results of the model": fit(lambda: arrays(validation_split=0.2), model=with_own_results),
    "frozen before compile": fit(model=build, before=freeze),
    # How steps run.
    "eager": fit(lambda: arrays(validation_split=0.2), settings=lambda: {"run_eagerly": True}),
    "XLA": fit(lambda: arrays(batch_size=25), settings=lambda: {"jit_compile": True}),
    "bfloat16": fit(model=under("mixed_bfloat16")),
    "float16 with a loss scale": fit(model=under("mixed_float16")),
    "a rate that decays, and a clipped norm": fit(
        lambda: arrays(epochs=3),
        settings=with_optimizer(
            lambda: keras.optimizers.SGD(
                keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9, global_clipnorm=0.1
            )
        ),
    ),
    "averages and weight decay of the optimizer": fit(
        settings=with_optimizer(lambda: keras.optimizers.AdamW(0.1, use_ema=True, ema_momentum=0.5)),
    ),
    "accumulation of the optimizer": fit(
        lambda: arrays(batch_size=10),
        settings=with_optimizer(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)),
    ),
    # What differs.
    "fewer steps": fit(
        lambda: arrays(steps_per_epoch=2, batch_size=10, epochs=4),
        differs="Keras ends an epoch where the data ends, and here each epoch has `steps_per_epoch` batches",
    ),
    "shuffled": fit(lambda: arrays(shuffle=True), differs="the order of an epoch follows from (`seed`, epoch)"),
    "dropout": fit(model=of(lambda: keras.layers.Dropout(0.5)), differs="what layers draw follows from (`seed`, step)"),
}

IN_SHORT = ("inputs by name, outputs too", "weighted metrics", "EarlyStopping", "steps of the model")
"""Those of each test run: several outputs, weights, a callback that looks at metrics, a model's own steps."""


def compare(name: str, folder: Path) -> None:
    """Trains with Keras 3 and with a Program; history, calls, weights, evaluation, predictions and files are equal."""
    compare_fit(COMBINATIONS[name], folder, lightly, Diary)
