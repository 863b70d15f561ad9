"""Combinations of what `fit` takes, each run by a Program and by Keras on the same model, seed and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.programs import (
    CLASSES,
    EXAMPLES,
    FEATURES,
    Diary,
    Halves,
    build,
    examples,
    generated,
    light,
    lightly,
    with_own_steps,
)

X, Y = examples()
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[Y]
WEIGHTS = np.linspace(0.1, 2, EXAMPLES).astype(np.float32)
LISTED, BY_NAME = [X[:, :2], X[:, 2:]], {"a": X[:, :2], "b": X[:, 2:]}
Y_BY_NAME = {"left": Y, "right": Y}
CLASS_WEIGHTS = {0: 1.0, 1: 0.5, 2: 3.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """One combination; functions, because Keras and the Program each get values of their own.

    Attributes:
      data: the arguments of `fit`.
      model: builds the model.
      settings: the arguments of `compile`, beside those of `lightly`.
      callbacks: returns callbacks, which may write to a folder.
      before: what is done before `fit`, to the Program and to its model; its result is compared.
      rtol: by how much numbers may differ, relative; 0 compares their bits.
      differs: why the history is not that of Keras; the page of names of other systems has it too.
    """

    data: Callable[[], dict[str, Any]]
    model: Callable[[], Any] = light
    settings: Callable[[], dict[str, Any]] = dict
    callbacks: Callable[[Path], list[Any]] = lambda folder: []
    before: Callable[[Any, Any], Any] = lambda program, model: None
    rtol: float = 0.0
    differs: str = ""


# Data.


def arrays(**arguments):
    return {"x": X, "y": Y, "epochs": 2, "shuffle": False, **arguments}


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts or (X, Y)).batch(8)


def unknown():
    return tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: x[0] > 0).batch(8)


def sequence(**arguments):
    return {"x": Halves((X, Y)), "epochs": 3, "shuffle": False, **arguments}


def sparse_rows():
    return arrays(x=tf.sparse.from_dense(X * (X > 0)), batch_size=8)


# Models.


def two(*, by_name=False):
    """Two inputs, and two outputs, in a list or by name."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input([2], name="a"), keras.Input([4], name="b")
    hidden = keras.layers.Concatenate()([a, b])
    outputs = {name: keras.layers.Dense(CLASSES, name=name)(hidden) for name in ("left", "right")}
    return keras.Model({"a": a, "b": b}, outputs if by_name else list(outputs.values()))


def two_by_name():
    return two(by_name=True)


def of(*layers, seed=1):
    """Layers between the features and the classes; built when it is called."""

    def make():
        keras.utils.set_random_seed(seed)
        return keras.Sequential([keras.Input([FEATURES]), *[layer() for layer in layers], keras.layers.Dense(CLASSES)])

    return make


class OwnResults(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": tf.reduce_max(y_pred)}


def with_own_results():
    model = build()
    return OwnResults(model.inputs, model.outputs)


def with_added():
    """Losses and metrics that layers and the model add."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(8, activity_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(hidden))
    model.add_loss(tf.reduce_mean(hidden) * 0.1)
    model.add_metric(tf.reduce_mean(hidden), name="hidden", aggregation="mean")
    return model


class Rivals(keras.Model):
    """Two networks with an optimizer each, and a `compile` of its own, as in Keras's example of a GAN."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(CLASSES), keras.layers.Dense(CLASSES)

    def compile(self, optimizer="sgd", second="adam", **settings):
        super().compile(optimizer, **settings)
        self.other = keras.optimizers.get(second)

    def call(self, x):
        return self.first(x) - self.second(x)

    def train_step(self, data):
        x, y = data
        found = {}
        for name, layer, optimizer in (("first", self.first, self.optimizer), ("second", self.second, self.other)):
            with tf.GradientTape() as tape:
                found[name] = self.compute_loss(x, y, self(x))
            optimizer.minimize(found[name], layer.trainable_variables, tape=tape)
        return {**found, **self.compute_metrics(x, y, self(x), None)}


def rivals():
    keras.utils.set_random_seed(1)
    model = Rivals()
    model(X[:2])
    return model


def under(policy):
    """The model of batch statistics, with this precision."""

    def make():
        before = keras.mixed_precision.global_policy()
        keras.mixed_precision.set_global_policy(policy)
        try:
            return of(lambda: keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization)()
        finally:
            keras.mixed_precision.set_global_policy(before)

    return make


# What is compiled.


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def by_name():
    return {
        "loss": {"left": cross_entropy(), "right": cross_entropy()},
        "metrics": {"left": ["accuracy"], "right": ["mae"]},
        "loss_weights": {"left": 1.0, "right": 0.2},
    }


class Extremes(keras.metrics.Metric):
    """A metric with two numbers."""

    def __init__(self):
        super().__init__(name="extremes")
        self.low, self.high = (self.add_weight(name, initializer="zeros") for name in ("low", "high"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.low.assign(tf.minimum(self.low, tf.reduce_min(y_pred)))
        self.high.assign(tf.maximum(self.high, tf.reduce_max(y_pred)))

    def result(self):
        return {"low": self.low, "high": self.high}


def of_functions():
    """A loss and a metric that are functions, and one with several numbers."""
    return {"loss": lambda y, found: tf.square(tf.one_hot(tf.cast(tf.squeeze(y), tf.int32), CLASSES) - found)} | {
        "metrics": [lambda y, found: tf.reduce_mean(tf.abs(found), axis=-1), Extremes()]
    }


def with_optimizer(make):
    return lambda: {"optimizer": make()}


# Callbacks.


class StopAt(keras.callbacks.Callback):
    """Ends training at the second call of one of its methods; at the first if there is only one."""

    def __init__(self, where):
        super().__init__()
        count = iter(range(1, 1000))
        last = 1 if where == "on_train_begin" else 2

        def stop(*arguments, **keywords):
            if next(count) == last:
                self.model.stop_training = True

        setattr(self, where, stop)

    def _implements_train_batch_hooks(self):
        return any("train_batch" in name for name in vars(self))

    def _implements_test_batch_hooks(self):
        return any("test_batch" in name for name in vars(self))


def stopped(where, *, validation=False):
    of_validation = {"validation_split": 0.2} if validation else {}
    return Fit(data=lambda: arrays(epochs=4, batch_size=16, **of_validation), callbacks=lambda folder: [StopAt(where)])


def worse(**arguments):
    """Data of a validation that gets worse from epoch to epoch."""
    return arrays(epochs=5, validation_data=(X, (Y + 1) % CLASSES), **arguments)


def called(callback, **arguments):
    return Fit(data=lambda: worse(**arguments), callbacks=lambda folder: [callback(folder)])


# What is done before.


def one_batch_at_a_time(program, model):
    found = [program.train_on_batch(X[:9], Y[:9], reset_metrics=reset) for reset in (True, False)]
    found += [program.train_on_batch(X, Y, class_weight=CLASS_WEIGHTS, return_dict=True)]
    return [*found, program.test_on_batch(X[9:], Y[9:], sample_weight=WEIGHTS[9:])]


def freeze(program, model):
    model.layers[1].trainable = False  # has no effect before `compile` is called again


def freeze_and_compile(program, model):
    freeze(program, model)
    lightly(program)


COMBINATIONS = {
    # Data.
    "arrays": Fit(data=arrays),
    "a smaller last batch": Fit(data=lambda: arrays(batch_size=7)),
    "doubles": Fit(data=lambda: arrays(x=X.astype(np.float64), y=Y.astype(np.int64))),
    "lists of numbers": Fit(data=lambda: arrays(x=X.tolist(), y=Y.tolist())),
    "tensors": Fit(data=lambda: arrays(x=tf.constant(X), y=tf.constant(Y))),
    "inputs in a list, outputs too": Fit(
        data=lambda: arrays(x=LISTED, y=[Y, Y], validation_split=0.2),
        model=two,
        settings=lambda: {"loss_weights": [1.0, 0.3]},
    ),
    "inputs by name, outputs too": Fit(
        data=lambda: arrays(x=BY_NAME, y=Y_BY_NAME, validation_split=0.2), model=two_by_name, settings=by_name
    ),
    "dataset with weights": Fit(data=lambda: {"x": dataset(X, Y, WEIGHTS), "epochs": 2}),
    "dataset of structures": Fit(data=lambda: {"x": dataset(BY_NAME, (Y, Y)), "epochs": 2}, model=two),
    "dataset that repeats": Fit(data=lambda: {"x": dataset().repeat(), "steps_per_epoch": 4, "epochs": 3}),
    "dataset of unknown size, in one epoch": Fit(data=lambda: {"x": unknown(), "validation_data": unknown()}),
    "dataset that ends in an epoch": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset().take(1), "steps_per_epoch": 3, "epochs": 4}
    ),
    "dataset that ends with an epoch": Fit(data=lambda: {"x": dataset().take(6), "steps_per_epoch": 3, "epochs": 3}),
    "generator with weights": Fit(data=lambda: {"x": generated(12, X, Y, WEIGHTS), "steps_per_epoch": 3, "epochs": 4}),
    "generator that ends": Fit(
        data=lambda: {"x": generated(7), "steps_per_epoch": 3, "epochs": 4}, settings=lambda: {"steps_per_execution": 2}
    ),
    "generator of one epoch": Fit(data=lambda: {"x": generated(7)}),
    "sequence, validated by another": Fit(data=lambda: sequence(validation_data=Halves((X, Y)))),
    "sequence in part": Fit(data=lambda: sequence(steps_per_epoch=2)),
    "sequence and classes": Fit(data=lambda: sequence(class_weight=CLASS_WEIGHTS)),
    # Losses, weights and metrics.
    "weights of examples": Fit(data=lambda: arrays(sample_weight=WEIGHTS)),
    "weights of classes": Fit(data=lambda: arrays(class_weight=CLASS_WEIGHTS)),
    "classes as one-hot": Fit(
        data=lambda: arrays(y=ONE_HOT, class_weight=CLASS_WEIGHTS),
        settings=lambda: {"loss": keras.losses.CategoricalCrossentropy(from_logits=True)},
    ),
    "weights by name": Fit(
        data=lambda: arrays(x=BY_NAME, y=Y_BY_NAME, sample_weight={"left": WEIGHTS, "right": WEIGHTS[::-1].copy()}),
        model=two_by_name,
        settings=by_name,
    ),
    "weighted metrics": Fit(
        data=lambda: arrays(sample_weight=WEIGHTS, validation_split=0.2),
        settings=lambda: {"weighted_metrics": ["accuracy"]},
    ),
    "loss and metrics of the user's": Fit(data=lambda: arrays(validation_split=0.2), settings=of_functions),
    "added losses and metrics": Fit(data=lambda: arrays(validation_split=0.2), model=with_added),
    "added losses alone": Fit(
        data=lambda: arrays(y=None), model=with_added, settings=lambda: {"loss": None, "metrics": None}
    ),
    # Validation.
    "weights of a validation": Fit(
        data=lambda: arrays(sample_weight=WEIGHTS, validation_data=(X[40:], Y[40:], WEIGHTS[40:]))
    ),
    "a validation in some epochs": Fit(data=lambda: arrays(validation_split=0.3, epochs=5, validation_freq=2)),
    "validations in a list, of a dataset": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset().take(2), "validation_freq": [1, 3], "epochs": 3}
    ),
    "batches of a validation": Fit(
        data=lambda: arrays(batch_size=16, validation_split=0.4, validation_batch_size=3, validation_steps=4)
    ),
    "validated by a dataset that repeats": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset().repeat(), "validation_steps": 3, "epochs": 2}
    ),
    # Epochs and steps.
    "first epoch and frequency": Fit(
        data=lambda: arrays(initial_epoch=1, epochs=5, validation_split=0.2, validation_freq=3)
    ),
    "no epoch is left": Fit(data=lambda: arrays(initial_epoch=2)),
    "fewer steps": Fit(data=lambda: arrays(steps_per_epoch=2, batch_size=10, epochs=4)),
    "more steps": Fit(data=lambda: arrays(steps_per_epoch=7, batch_size=10)),
    "several steps at once, with a rest": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset(), "epochs": 2},
        settings=lambda: {"steps_per_execution": 3},
    ),
    "more steps at once than there are": Fit(
        data=lambda: arrays(batch_size=7), settings=lambda: {"steps_per_execution": 100}
    ),
    "a second fit": Fit(
        data=arrays,
        settings=lambda: {"optimizer": "adam"},
        before=lambda program, model: program.fit(X, Y, epochs=2, shuffle=False, verbose=0).history,
    ),
    "one batch at a time before": Fit(data=arrays, before=one_batch_at_a_time),
    # Callbacks. What they write, and their numbers, are compared as well.
    "EarlyStopping": called(lambda folder: keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)),
    "ReduceLROnPlateau": called(lambda folder: keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.3)),
    "LearningRateScheduler": called(
        lambda folder: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    ),
    "ModelCheckpoint": called(
        lambda folder: keras.callbacks.ModelCheckpoint(
            str(folder / "{epoch:02d}-{val_loss:.3f}.h5"), save_best_only=True
        )
    ),
    "ModelCheckpoint in epochs": called(
        lambda folder: keras.callbacks.ModelCheckpoint(
            str(folder / "{epoch}-{batch}.weights.h5"), save_weights_only=True, save_freq=3
        ),
        batch_size=10,
    ),
    "CSVLogger": called(lambda folder: keras.callbacks.CSVLogger(folder / "log.csv")),
    "BackupAndRestore": called(lambda folder: keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)),
    "Callback": called(lambda folder: keras.callbacks.Callback()),
    "History": called(lambda folder: keras.callbacks.History()),
    "LambdaCallback": called(
        lambda folder: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: (folder / f"{epoch}").touch())
    ),
    "ProgbarLogger": called(lambda folder: keras.callbacks.ProgbarLogger("steps")),
    "RemoteMonitor": called(lambda folder: keras.callbacks.RemoteMonitor("http://127.0.0.1:1")),
    "SidecarEvaluatorModelExport": called(
        lambda folder: keras.callbacks.SidecarEvaluatorModelExport(str(folder / "export"), str(folder / "checkpoints"))
    ),
    "TensorBoard": called(lambda folder: keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq=2)),
    "TerminateOnNaN": Fit(
        data=lambda: arrays(x=np.where(np.arange(EXAMPLES)[:, None] == 20, np.inf, X), batch_size=8),
        callbacks=lambda folder: [keras.callbacks.TerminateOnNaN()],
    ),
    "stop as training begins": stopped("on_train_begin"),
    "stop as an epoch begins": stopped("on_epoch_begin", validation=True),
    "stop before a batch": stopped("on_train_batch_begin"),
    "stop after a batch": stopped("on_train_batch_end", validation=True),
    "stop in a validation": stopped("on_test_batch_end", validation=True),
    "stop after an epoch": stopped("on_epoch_end", validation=True),
    # Models.
    "batch statistics": Fit(
        data=lambda: arrays(validation_split=0.2), model=build, settings=lambda: {"optimizer": "adam"}
    ),
    "recurrent, with masks": Fit(
        data=lambda: arrays(batch_size=16),
        model=of(lambda: keras.layers.Reshape([FEATURES, 1]), keras.layers.Masking, lambda: keras.layers.SimpleRNN(4)),
    ),
    "steps of the model": Fit(data=lambda: arrays(validation_split=0.2), model=with_own_steps),
    "results of the model": Fit(data=lambda: arrays(validation_split=0.2), model=with_own_results),
    "two optimizers": Fit(data=arrays, model=rivals),
    "frozen after compile": Fit(data=arrays, model=build, before=freeze),
    "frozen before compile": Fit(data=arrays, model=build, before=freeze_and_compile),
    # How steps run.
    "eager": Fit(data=lambda: arrays(validation_split=0.2), settings=lambda: {"run_eagerly": True}),
    "XLA": Fit(data=lambda: arrays(batch_size=25), settings=lambda: {"jit_compile": True}, rtol=1e-6),
    "bfloat16": Fit(data=arrays, model=under("mixed_bfloat16"), rtol=1e-6),
    "float16 with a loss scale": Fit(data=arrays, model=under("mixed_float16"), rtol=1e-6),
    "a rate that decays": Fit(
        data=lambda: arrays(epochs=3),
        settings=with_optimizer(
            lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9)
        ),
    ),
    "averages of the optimizer": Fit(
        data=arrays, settings=with_optimizer(lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
    ),
    "an optimizer of before": Fit(
        data=arrays, settings=with_optimizer(lambda: keras.optimizers.legacy.Adam(0.01, clipnorm=0.1))
    ),
    # What differs.
    "shuffled": Fit(data=lambda: arrays(shuffle=True), differs="the order of an epoch follows from (`seed`, epoch)"),
    "dropout": Fit(
        data=arrays, model=of(lambda: keras.layers.Dropout(0.5)), differs="what layers draw follows from (`seed`, step)"
    ),
    "several epochs of unknown size": Fit(
        data=lambda: {"x": unknown(), "epochs": 3},
        settings=lambda: {"optimizer": "adam"},
        differs="Keras finds the end by asking for one more batch",
    ),
}

IN_SHORT = (
    *("dataset that ends in an epoch", "weights of examples", "first epoch and frequency", "steps of the model"),
    *("one batch at a time before", "EarlyStopping", "TerminateOnNaN"),
)
"""Those of each test run: data of both kinds, weights, epochs with and without validation, a model's own steps."""


def compare(name: str, folder: Path) -> None:
    """Trains with Keras and with a Program; history, calls, weights, evaluation, predictions and files are the same."""
    compare_fit(COMBINATIONS[name], folder, lightly, Diary)


def compare_fit(fit: Fit, folder: Path, compiled: Callable[..., Any], diary_class: Any) -> None:
    """Does so for one combination, with what compiles a model or a Program, and writes down calls of callbacks."""
    found = []
    for owner in (lambda model: model, Program):
        place = folder / str(len(found))
        place.mkdir()
        model = fit.model()
        found.append(_everything(fit, compiled(owner(model), **fit.settings()), model, place, diary_class()))
    theirs, ours = found
    if fit.differs:
        assert ours["history"] != theirs["history"], "it is the same now: say so on the page"
        assert [ours["epochs"], *ours["history"]] == [theirs["epochs"], *theirs["history"]]
        return
    for what, value in theirs.items():
        if what in ("weights", "predictions"):  # the graphs around the steps differ
            for each, expected in zip(tf.nest.flatten(ours[what]), tf.nest.flatten(value), strict=True):
                rtol = 1e-5 if each.dtype == np.float32 else 1e-2
                assert each.dtype == expected.dtype
                np.testing.assert_allclose(each, expected, rtol=rtol, atol=1e-6, err_msg=what)
        elif fit.rtol:
            _assert_close(ours[what], value, fit.rtol, what)
        else:
            assert _plain(ours[what]) == _plain(value), what


def _everything(fit: Fit, program: Any, model: Any, folder: Path, diary: Any) -> dict[str, Any]:
    """Returns what there is to compare."""
    found: dict[str, Any] = {"before": fit.before(program, model)}
    callbacks, given = fit.callbacks(folder), fit.data()
    history = program.fit(callbacks=[*callbacks, diary], verbose=0, **given)
    found |= {"history": history.history, "epochs": history.epoch, "weights": model.get_weights()}
    found["callbacks"] = [
        {name: value for name, value in vars(each).items() if isinstance(value, bool | int | float)}
        for each in callbacks
    ]
    found["files"] = {
        "events" if "tfevents" in path.name else path.name: path.read_text() if path.suffix == ".csv" else ""
        for path in sorted(folder.rglob("*"))
    }
    given = fit.data()  # generators are used up
    others = {"y": given["y"], "sample_weight": given.get("sample_weight")} if "y" in given else {"steps": 2}
    found["evaluation"] = program.evaluate(given["x"], verbose=0, callbacks=[diary], **others)
    others = {} if "y" in given else {"steps": 2}
    found["predictions"] = program.predict(fit.data()["x"], verbose=0, callbacks=[diary], **others)
    found["calls"] = diary.calls
    return found


def _plain(value: Any) -> Any:
    """Returns a value in which what is not a number is equal to itself."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return "NaN" if isinstance(value, float) and np.isnan(value) else value


def _assert_close(ours: Any, theirs: Any, rtol: float, what: str) -> None:
    tf.nest.assert_same_structure(ours, theirs)
    for each, expected in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        is_number = isinstance(expected, float)
        assert each == (pytest.approx(expected, rel=rtol, nan_ok=True) if is_number else expected), what
