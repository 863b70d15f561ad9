"""Combinations of what `fit` takes, each run by a Program and by its Keras on the same model, seed and data.

A case is a function of `k`, tf_keras or Keras 3, wherever it needs an object of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras as keras3
import numpy as np
import pytest

from official_trainer.lazy import keras as keras2
from official_trainer.lazy import tf
from official_trainer.program import Program
from tests.support.programs import (
    CLASSES,
    EXAMPLES,
    FEATURES,
    Halves,
    cross_entropy,
    deep,
    dense,
    diary_of,
    examples,
    generated,
    light,
    lightly,
    norm,
    of,
)

KERASES = {"2": keras2, "3": keras3}
EXACT = {"2": 0.0, "3": 1e-6}
"""By how much numbers may differ, relative; 0 compares their bits."""

X, Y = examples()
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[Y]
WEIGHTS = np.linspace(0.1, 2, EXAMPLES).astype(np.float32)
LISTED, BY_NAME = [X[:, :2], X[:, 2:]], {"a": X[:, :2], "b": X[:, 2:]}
Y_BY_NAME = {"left": Y, "right": Y}
CLASS_WEIGHTS = {0: 1.0, 1: 0.5, 2: 3.0}


# Models.


def two(k: Any, *, by_name: bool = False, listed: bool = False) -> Any:
    """Two inputs, and two outputs, in a list or by name."""
    k.utils.set_random_seed(1)
    inputs = {"a": k.Input([2], name="a"), "b": k.Input([4], name="b")}
    hidden = k.layers.Concatenate()(list(inputs.values()))
    outputs = {name: k.layers.Dense(CLASSES, name=name)(hidden) for name in ("left", "right")}
    return k.Model(list(inputs.values()) if listed else inputs, outputs if by_name else list(outputs.values()))


def own_steps(k: Any) -> Any:
    """Steps of the model's own, which return a metric and another number."""

    class OwnSteps(k.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.mean = k.layers.Dense(CLASSES), k.metrics.Mean("mean")

        @property
        def metrics(self):
            return [self.mean]

        def call(self, x, training=None):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(k.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.mean.update_state(loss)
            return {"mean": self.mean.result(), "last": loss * 2}

        def test_step(self, data):
            self.mean.update_state(tf.reduce_mean(self(data[0])))
            return {"mean": self.mean.result()}

    k.utils.set_random_seed(1)
    model = OwnSteps()
    model(np.zeros([2, FEATURES], np.float32))
    return model


def adding(k: Any) -> Any:
    """A layer that adds a loss of what it gets."""

    class Adds(k.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * tf.reduce_mean(x))
            return x

    return Adds()


def under(policy: str) -> Callable[[Any], Any]:
    """Returns what builds the model of batch statistics with this precision."""

    def build(k: Any) -> Any:
        mixed = k.mixed_precision
        before = mixed.global_policy() if k is keras2 else k.config.dtype_policy()
        (mixed.set_global_policy if k is keras2 else k.config.set_dtype_policy)(policy)
        try:
            return of(lambda k: k.layers.Dense(8, "tanh"), norm)(k)
        finally:
            (mixed.set_global_policy if k is keras2 else k.config.set_dtype_policy)(before)

    return build


# Data.


def arrays(**arguments: Any) -> dict[str, Any]:
    return {"x": X, "y": Y, "epochs": 2, "shuffle": False, **arguments}


def dataset(*parts: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts or (X, Y)).batch(8)


def unknown() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: x[0] > 0).batch(8)


def worse(**arguments: Any) -> dict[str, Any]:
    """Data of a validation that gets worse from epoch to epoch."""
    return arrays(epochs=5, validation_data=(X, (Y + 1) % CLASSES), **arguments)


# What is compiled, called back, and done before.


def by_name(k: Any) -> dict[str, Any]:
    return {
        "loss": {"left": cross_entropy(k), "right": cross_entropy(k)},
        "metrics": {"left": ["accuracy"], "right": ["accuracy", "sparse_categorical_crossentropy"]},
        "loss_weights": {"left": 1.0, "right": 0.2},
    }


def of_functions(k: Any) -> dict[str, Any]:
    """A loss and a metric that are functions, and one with several numbers."""

    class Extremes(k.metrics.Metric):
        def __init__(self):
            super().__init__(name="extremes")
            self.low, self.high = (self.add_weight(name=name, initializer="zeros") for name in ("low", "high"))

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.low.assign(tf.minimum(self.low, tf.reduce_min(y_pred)))
            self.high.assign(tf.maximum(self.high, tf.reduce_max(y_pred)))

        def result(self):
            return {"low": self.low + 0.0, "high": self.high + 0.0}

    def loss(y, found):
        return tf.square(tf.one_hot(tf.cast(tf.reshape(y, [-1]), tf.int32), CLASSES) - found)

    return {"loss": loss, "metrics": [lambda y, found: tf.reduce_mean(tf.abs(found), axis=-1), Extremes()]}


def decaying(k: Any) -> dict[str, Any]:
    rate = k.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    return {"optimizer": k.optimizers.SGD(rate, momentum=0.9, global_clipnorm=0.1)}


def stop_at(k: Any, where: str) -> Any:
    """A callback that ends training at the second call of one of its methods; at the first if there is only one."""
    calls = iter(range(1, 1000))
    last = 1 if where == "on_train_begin" else 2

    def stop(self, *arguments, **keywords):
        if next(calls) == last:
            self.model.stop_training = True

    return type("StopAt", (k.callbacks.Callback,), {where: stop})()


def one_batch_at_a_time(k: Any, program: Any, model: Any) -> Any:
    found = [program.train_on_batch(X[:9], Y[:9]), program.train_on_batch(X, Y, class_weight=CLASS_WEIGHTS)]
    found += [program.train_on_batch(X, Y, sample_weight=WEIGHTS, return_dict=True)]
    return [*found, program.test_on_batch(X[9:], Y[9:], sample_weight=WEIGHTS[9:])]


def fit_before(k: Any, program: Any, model: Any) -> Any:
    return program.fit(X, Y, epochs=2, shuffle=False, verbose=0).history


def fit_and_compile(k: Any, program: Any, model: Any) -> Any:
    history = fit_before(k, program, model)
    lightly(program, k, optimizer="adam")
    return history


def freeze(k: Any, program: Any, model: Any) -> None:
    model.layers[1].trainable = False  # has no effect in tf_keras before `compile` is called again


def freeze_and_compile(k: Any, program: Any, model: Any) -> None:
    freeze(k, program, model)
    lightly(program, k)


# The table.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """One combination; functions, because Keras and the Program each get values of their own.

    Attributes:
      data: the arguments of `fit`.
      model: builds the model.
      settings: the arguments of `compile`, beside those of `lightly`.
      callbacks: returns callbacks, which may write to a folder.
      before: what is done before `fit`, to the Program and to its model; its result is compared.
      kerases: those that have it.
      rtol: by how much numbers may differ, if not by EXACT.
      differs: why the history is not that of Keras, by Keras; the page of names of other systems has it too.
    """

    data: Callable[[], dict[str, Any]] = arrays
    model: Callable[[Any], Any] = light
    settings: Callable[[Any], dict[str, Any]] = lambda k: {}
    callbacks: Callable[[Any, Path], list[Any]] = lambda k, folder: []
    before: Callable[[Any, Any, Any], Any] = lambda k, program, model: None
    kerases: str = "23"
    rtol: float | None = None
    differs: Mapping[str, str] = dataclasses.field(default_factory=dict)


def of_arrays(**arguments: Any) -> Callable[[], dict[str, Any]]:
    return lambda: arrays(**arguments)


def validated(**fields: Any) -> Fit:
    return Fit(data=of_arrays(validation_split=0.2), **fields)


def stopped(where: str, **fields: Any) -> Fit:
    data = of_arrays(epochs=4, batch_size=16, validation_split=0.2)
    return Fit(data=data, callbacks=lambda k, folder: [stop_at(k, where)], **fields)


def called(callback: Callable[[Any, Path], Any], kerases: str = "23", **arguments: Any) -> Fit:
    return Fit(data=lambda: worse(**arguments), callbacks=lambda k, f: [callback(k.callbacks, f)], kerases=kerases)


ORDER = "the order of an epoch follows from (`seed`, epoch)"
DRAWS = "what layers draw follows from (`seed`, step)"
ENDS = "Keras finds the end by asking for one more batch"
STEPS = "Keras ends an epoch where the data ends, and here each epoch has `steps_per_epoch` batches"

DATA = {
    "arrays": Fit(),
    "doubles": Fit(data=of_arrays(x=X.astype(np.float64), y=Y.astype(np.int64))),
    "tensors": Fit(data=lambda: arrays(x=tf.constant(X), y=tf.constant(Y))),
    "inputs in a list, outputs too": Fit(
        data=of_arrays(x=LISTED, y=[Y, Y], validation_split=0.2),
        model=functools.partial(two, listed=True),
        settings=lambda k: {
            "loss": [cross_entropy(k), cross_entropy(k)],
            "metrics": [["accuracy"], ["accuracy"]],
            "loss_weights": [1.0, 0.3],
        },
    ),
    "inputs by name, outputs too": Fit(
        data=of_arrays(x=BY_NAME, y=Y_BY_NAME, validation_split=0.2),
        model=functools.partial(two, by_name=True),
        settings=by_name,
    ),
    "dataset with weights": Fit(data=lambda: {"x": dataset(X, Y, WEIGHTS), "epochs": 2}),
    "dataset of structures": Fit(data=lambda: {"x": dataset(BY_NAME, (Y, Y)), "epochs": 2}, model=two, kerases="2"),
    "dataset that repeats": Fit(data=lambda: {"x": dataset().repeat(), "steps_per_epoch": 4, "epochs": 3}),
    "dataset of unknown size, in one epoch": Fit(data=lambda: {"x": unknown(), "validation_data": unknown()}),
    "dataset that ends in an epoch": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset().take(1), "steps_per_epoch": 3, "epochs": 4},
        kerases="2",
    ),
    "generator with weights": Fit(data=lambda: {"x": generated(12, X, Y, WEIGHTS), "steps_per_epoch": 3, "epochs": 4}),
    "generator that ends": Fit(
        data=lambda: {"x": generated(7), "steps_per_epoch": 3, "epochs": 4},
        settings=lambda k: {"steps_per_execution": 2},
        kerases="2",
    ),
    "generator of one epoch": Fit(data=lambda: {"x": generated(7)}),
    "sequence in part, with classes": Fit(
        data=lambda: {
            **{"x": Halves((X, Y)), "validation_data": Halves((X, Y)), "epochs": 3, "shuffle": False},
            **{"steps_per_epoch": 2, "class_weight": CLASS_WEIGHTS},
        },
        kerases="2",
    ),
    "several epochs of unknown size": Fit(
        data=lambda: {"x": unknown(), "epochs": 3},
        settings=lambda k: {"optimizer": "adam"},
        differs={"2": ENDS},
        kerases="2",
    ),
    "shuffled": Fit(data=of_arrays(shuffle=True), differs={"2": ORDER, "3": ORDER}),
}

ARGUMENTS = {
    "weights of examples": Fit(data=of_arrays(sample_weight=WEIGHTS)),
    "classes as one-hot": Fit(
        data=of_arrays(y=ONE_HOT, class_weight=CLASS_WEIGHTS),
        settings=lambda k: {"loss": k.losses.CategoricalCrossentropy(from_logits=True)},
    ),
    "weights by name": Fit(
        data=of_arrays(x=BY_NAME, y=Y_BY_NAME, sample_weight={"left": WEIGHTS, "right": WEIGHTS[::-1].copy()}),
        model=functools.partial(two, by_name=True),
        settings=by_name,
        kerases="2",
    ),
    "weights of a validation": Fit(
        data=of_arrays(sample_weight=WEIGHTS, validation_data=(X[40:], Y[40:], WEIGHTS[40:]))
    ),
    "validations in a list, of a dataset": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset().take(2), "validation_freq": [1, 3], "epochs": 3}
    ),
    "batches of a validation": Fit(
        data=of_arrays(batch_size=16, validation_split=0.4, validation_batch_size=3, validation_steps=4)
    ),
    "validated by a dataset that repeats": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset().repeat(), "validation_steps": 3, "epochs": 2},
        kerases="2",
    ),
    "first epoch and frequency": Fit(
        data=of_arrays(initial_epoch=1, epochs=5, validation_split=0.2, validation_freq=3)
    ),
    "fewer steps": Fit(data=of_arrays(steps_per_epoch=2, batch_size=10, epochs=4), differs={"3": STEPS}),
    "more steps": Fit(data=of_arrays(steps_per_epoch=7, batch_size=10), kerases="2"),
    "several steps at once, with a rest": Fit(
        data=lambda: {"x": dataset(), "validation_data": dataset(), "epochs": 2},
        settings=lambda k: {"steps_per_execution": 3},
        kerases="2",
    ),
    "several steps at once": Fit(
        data=of_arrays(batch_size=8, x=X[:48], y=Y[:48], validation_data=(X[:32], Y[:32])),
        settings=lambda k: {"steps_per_execution": 2},
    ),
    "a second fit": Fit(settings=lambda k: {"optimizer": "adam"}, before=fit_before),
    "compiled again after a fit": Fit(settings=lambda k: {"optimizer": "rmsprop"}, before=fit_and_compile),
    "one batch at a time before": Fit(before=one_batch_at_a_time),
}

CALLBACKS = {
    "EarlyStopping": called(lambda c, folder: c.EarlyStopping(patience=1, restore_best_weights=True)),
    "ReduceLROnPlateau": called(lambda c, folder: c.ReduceLROnPlateau(patience=1, factor=0.3)),
    "LearningRateScheduler": called(lambda c, folder: c.LearningRateScheduler(lambda epoch, rate: rate * 0.5)),
    "ModelCheckpoint": called(
        lambda c, folder: c.ModelCheckpoint(str(folder / "{epoch:02d}.keras"), save_best_only=True)
    ),
    "ModelCheckpoint in epochs": called(
        lambda c, folder: c.ModelCheckpoint(
            str(folder / "{epoch}-{batch}.weights.h5"), save_weights_only=True, save_freq=3
        ),
        batch_size=10,
    ),
    "CSVLogger": called(lambda c, folder: c.CSVLogger(str(folder / "log.csv"))),
    "BackupAndRestore": called(lambda c, folder: c.BackupAndRestore(folder, delete_checkpoint=False), kerases="2"),
    "LambdaCallback": called(
        lambda c, folder: c.LambdaCallback(on_epoch_end=lambda epoch, logs: (folder / f"{epoch}").touch())
    ),
    "ProgbarLogger": called(lambda c, folder: c.ProgbarLogger("steps"), kerases="2"),
    "RemoteMonitor": called(lambda c, folder: c.RemoteMonitor("http://127.0.0.1:1"), kerases="2"),
    "SidecarEvaluatorModelExport": called(
        lambda c, folder: c.SidecarEvaluatorModelExport(str(folder / "export"), str(folder / "checkpoints")),
        kerases="2",
    ),
    "TensorBoard": called(lambda c, folder: c.TensorBoard(folder, histogram_freq=1, update_freq=2), kerases="2"),
    "TerminateOnNaN": Fit(
        data=of_arrays(x=np.where(np.arange(EXAMPLES)[:, None] == 20, np.inf, X), batch_size=8),
        callbacks=lambda k, folder: [k.callbacks.TerminateOnNaN()],
    ),
    "stop as training begins": stopped("on_train_begin", kerases="2"),
    "stop as an epoch begins": stopped("on_epoch_begin", kerases="2"),
    "stop before a batch": stopped("on_train_batch_begin", kerases="2"),
    "stop after a batch": stopped("on_train_batch_end"),
    "stop in a validation": stopped("on_test_batch_end", kerases="2"),
    "stop after an epoch": stopped("on_epoch_end"),
}

MODELS = {
    "batch statistics": validated(model=deep, settings=lambda k: {"optimizer": "adam"}),
    "recurrent, with masks": Fit(
        data=of_arrays(batch_size=16),
        model=of(
            *(lambda k: k.layers.Reshape([FEATURES, 1]), lambda k: k.layers.Masking()),
            lambda k: k.layers.SimpleRNN(4),
        ),
    ),
    "steps of the model": validated(model=own_steps),
    "frozen after compile": Fit(model=deep, before=freeze, kerases="2"),
    "frozen before compile": Fit(model=deep, before=freeze_and_compile),
    "dropout": Fit(model=of(lambda k: k.layers.Dropout(0.5)), differs={"2": DRAWS, "3": DRAWS}),
    "losses that layers add": validated(model=of(dense, adding)),
    "added losses alone": Fit(
        data=of_arrays(y=None), model=of(dense, adding), settings=lambda k: {"loss": None, "metrics": None}
    ),
}

SETTINGS = {
    "weighted metrics": Fit(
        data=of_arrays(sample_weight=WEIGHTS, validation_split=0.2),
        settings=lambda k: {"weighted_metrics": ["accuracy"]},
    ),
    "loss and metrics of the user's": validated(settings=of_functions),
    "names alone": Fit(data=of_arrays(y=ONE_HOT), settings=lambda k: {"loss": "mse", "metrics": ["mae", "mse"]}),
    "a sum over examples": Fit(settings=lambda k: {"loss": cross_entropy(k, reduction="sum")}),
    "eager": validated(settings=lambda k: {"run_eagerly": True}),
    "XLA": Fit(data=of_arrays(batch_size=25), settings=lambda k: {"jit_compile": True}, rtol=1e-6),
    "bfloat16": Fit(model=under("mixed_bfloat16"), rtol=1e-6),
    "float16 with a loss scale": Fit(model=under("mixed_float16"), rtol=1e-6),
    "a rate that decays, and a clipped norm": Fit(data=of_arrays(epochs=3), settings=decaying),
    "averages of the optimizer": Fit(
        settings=lambda k: {"optimizer": k.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)}
    ),
    "accumulation of the optimizer": Fit(
        data=of_arrays(batch_size=10),
        settings=lambda k: {"optimizer": k.optimizers.SGD(0.1, gradient_accumulation_steps=2)},
        kerases="3",
    ),
    "an optimizer of before": Fit(
        settings=lambda k: {"optimizer": k.optimizers.legacy.Adam(0.01, clipnorm=0.1)}, kerases="2"
    ),
}

COMBINATIONS = {**DATA, **ARGUMENTS, **CALLBACKS, **MODELS, **SETTINGS}
CASES = [(name, which) for name, fit in COMBINATIONS.items() for which in fit.kerases]
IN_SHORT = [
    ("first epoch and frequency", "2"),
    ("EarlyStopping", "3"),
]
"""Those of each test run: data of both kinds, weights, epochs with and without validation."""
IN_SYSTEM = [("steps of the model", "3"), ("float16 with a loss scale", "3")]
"""Those that run with whole processes, because each takes two seconds."""


# Comparing.


def compare(name: str, which: str, folder: Path) -> None:
    """Trains with Keras and with a Program; history, calls, weights, evaluation, predictions and files are the same."""
    fit, k, found = COMBINATIONS[name], KERASES[which], []
    rtol = EXACT[which] if fit.rtol is None else fit.rtol
    for owner in (lambda model: model, Program):
        place = folder / str(len(found))
        place.mkdir()
        model = fit.model(k)
        found.append(_everything(fit, k, lightly(owner(model), k, **fit.settings(k)), model, place))
    theirs, ours = found
    if which in fit.differs:
        assert ours["history"] != theirs["history"], "it is the same now: say so on the page"
        assert [ours["epochs"], *ours["history"]] == [theirs["epochs"], *theirs["history"]]
        return
    for what, value in theirs.items():
        if what in ("weights", "predictions"):  # the graphs around the steps differ
            for each, expected in zip(tf.nest.flatten(ours[what]), tf.nest.flatten(value), strict=True):
                assert each.dtype == expected.dtype
                close = 1e-5 if each.dtype == np.float32 else 1e-2
                np.testing.assert_allclose(each, expected, rtol=close, atol=1e-6, err_msg=what)
        else:
            _assert_close(ours[what], value, rtol, what)


def _everything(fit: Fit, k: Any, program: Any, model: Any, folder: Path) -> dict[str, Any]:
    """Returns what there is to compare."""
    diary, found = diary_of(k), {"before": fit.before(k, program, model)}
    callbacks, given = fit.callbacks(k, folder), fit.data()
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


def _assert_close(ours: Any, theirs: Any, rtol: float, what: str) -> None:
    tf.nest.assert_same_structure(ours, theirs)
    for each, expected in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        is_number = isinstance(expected, float)
        assert each == (pytest.approx(expected, rel=rtol, abs=rtol * 1e-6, nan_ok=True) if is_number else expected), (
            what
        )
