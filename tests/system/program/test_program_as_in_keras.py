"""Hooks of data, `num_batches`, a model's own `compile`: Keras's own methods beside those of a Program."""

from __future__ import annotations

import contextlib

import keras as keras3
import numpy as np
import pytest

from official_trainer.config import RuntimeConfig, TrainerConfig
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.program import ArgumentError, Program
from tests.support.cases import cases
from tests.support.fits import KERASES, X, Y
from tests.support.programs import EXAMPLES, FEATURES, light, lightly

PART = 10  # examples of a batch


def compiled(keras, owner, **settings):
    return lightly(owner(light(keras)), keras, **settings)


def base(keras):
    return keras.utils.PyDataset if keras is keras3 else keras.utils.Sequence


def parts_of(keras, calls, name="train", *, count=3, changes=True, **attributes):
    """Returns batches that write down the calls of their hooks, and are others after each of them.

    Without `changes` they are not: Keras reads ahead, where an epoch ends before the data does.
    """

    class Parts(base(keras)):
        def __init__(self):
            super().__init__()
            self.factor = 1.0

        def __getitem__(self, number):
            at = slice(number * PART % EXAMPLES, number * PART % EXAMPLES + PART)
            return X[at] * np.float32(self.factor), Y[at]

        def on_epoch_begin(self):
            self.factor += 0.5 * changes
            calls.append((name, "begin"))

        def on_epoch_end(self):
            self.factor -= 0.25 * changes
            calls.append((name, "end"))

    for key, value in {"__len__": lambda self: count, **attributes}.items():
        setattr(Parts, key, value)
    return Parts()


def counted(keras, calls, name="train", *, count, has_len=False):
    """Returns batches as Keras 3 describes them, whose `__len__`, if they have one, says something else."""
    parts = parts_of(keras, calls, name, count=2, changes=count is not None, num_batches=property(lambda self: count))
    if not has_len:
        del type(parts).__len__
    return parts


def told_by(keras, calls, sets=None, at=""):
    """Returns a callback that writes down its calls among those of the data, and sets an attribute of the model."""

    class Told(keras.callbacks.Callback):
        pass

    def telling(name):
        def tell(self, *arguments, **keywords):
            calls.append((name, *[each for each in arguments if isinstance(each, int)]))
            if name == at:
                setattr(self.model, sets, True)

        return tell

    for name in dir(keras.callbacks.Callback):
        if name.startswith(("on_epoch", "on_train", "on_test", "on_predict")):
            setattr(Told, name, telling(name))
    return Told()


# What is done; each returns all that it shows.


def fitted(x=None, *, sets=None, at="", settings=(), **arguments):
    """Trains on `x`, and tells of the calls, and the history in its order."""

    def run(keras, owner):
        calls, given = [], {"epochs": 3, "shuffle": False, "verbose": 0, **arguments}
        given = {name: value(keras, calls) if callable(value) else value for name, value in given.items()}
        data = {"x": X, "y": Y, "batch_size": PART} if x is None else {"x": x(keras, calls)}
        program = compiled(keras, owner, **dict(settings))
        history = program.fit(**{**data, **given, "callbacks": [told_by(keras, calls, sets, at)]})
        return calls, list(history.history.items())

    return run


def read(x=None, *, settings=(), **arguments):
    """Evaluates and predicts."""

    def run(keras, owner):
        found, program = [], compiled(keras, owner, **dict(settings))
        for method in (program.evaluate, program.predict):
            data = {"x": X, "batch_size": PART} if x is None else {"x": x(keras, found)}
            data |= {"y": Y} if x is None and method == program.evaluate else {}
            found.append(method(**data, verbose=0, callbacks=[told_by(keras, found)], **arguments))
        return found

    return run


def in_order(keras, owner):
    program = compiled(keras, owner)
    found = [program.evaluate(X, Y, verbose=0, return_dict=True), program.train_on_batch(X, Y, return_dict=True)]
    return [list(each.items()) for each in [*found, program.test_on_batch(X, Y, return_dict=True)]]


def one_batch_of_classes(keras, owner):
    return compiled(keras, owner).train_on_batch(X, Y, class_weight={1: 5.0})


def adversaries(is_built=True, **settings):
    """A model with two optimizers, a `compile` and a `train_step` of its own, no loss and no `call`."""

    def run(keras, owner):
        class Adversaries(keras.Model):
            def __init__(self):
                super().__init__()
                self.critic, self.maker = (
                    keras.Sequential([*([keras.Input([size])] if is_built else []), keras.layers.Dense(out)])
                    for size, out in ((FEATURES, 1), (4, FEATURES))
                )
                self.mean = keras.metrics.Mean("mean")

            def compile(self, critics, makers, scale=1.0):
                super().compile(**settings)
                self.critics, self.makers, self.scale = critics, makers, scale

            @property
            def metrics(self):
                return [self.mean]

            def train_step(self, data):
                x = data[0] if isinstance(data, tuple) else data
                with tf.GradientTape(persistent=True) as tape:
                    made = tf.reduce_mean(self.critic(self.maker(x[:, :4])) ** 2)
                    loss = made * self.scale - tf.reduce_mean(self.critic(x))
                for optimizer, model, value in ((self.critics, self.critic, loss), (self.makers, self.maker, made)):
                    gradients = tape.gradient(value, model.trainable_variables)
                    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                self.mean.update_state(loss)
                return {"mean": self.mean.result(), "made": made}

        keras.utils.set_random_seed(1)
        model = Adversaries()
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.02), scale=0.5)
        program = owner(model)
        history = program.fit(X, epochs=3, batch_size=PART, shuffle=False, verbose=0)
        return list(history.history.items()), model.get_weights()

    return run


WITH_VALIDATION = {"validation_data": lambda keras, calls: parts_of(keras, calls, "validation")}
UNCOUNTED = {"x": lambda keras, calls: counted(keras, calls, count=None, has_len=True)}
BY_ROUNDED = {"loss": "mse", "metrics": []}
AT_ONCE = {"steps_per_execution": 3}

OF_BOTH = {
    "hooks": fitted(parts_of, **WITH_VALIDATION),
    "hooks, some steps of a validation": fitted(parts_of, **WITH_VALIDATION, validation_steps=2, validation_freq=2),
    "hooks, fewer steps": fitted(
        lambda keras, calls: parts_of(keras, calls, count=4, changes=False), steps_per_epoch=2
    ),
    "hooks, stopped in an epoch": fitted(parts_of, sets="stop_training", at="on_train_batch_end"),
    "hooks, stopped after an epoch": fitted(parts_of, sets="stop_training", at="on_epoch_end"),
    "hooks, evaluated": read(parts_of),
    "hooks, some steps": read(parts_of, steps=2),
    "order of results": in_order,
    "a rest, evaluated": read(settings=AT_ONCE),
    "compile of the model": adversaries(),
    "compile of the model, eager": adversaries(is_built=False, run_eagerly=True),
}

OF_3 = {
    "num_batches": fitted(lambda keras, calls: counted(keras, calls, count=4)),
    "num_batches and another length": fitted(lambda keras, calls: counted(keras, calls, count=4, has_len=True)),
    "no end": fitted(
        lambda keras, calls: counted(keras, calls, count=None),
        steps_per_epoch=2,
        validation_data=lambda keras, calls: counted(keras, calls, "validation", count=None),
        validation_steps=2,
    ),
    "no end, and a length": fitted(UNCOUNTED["x"], steps_per_epoch=3),
    "no end, evaluated": read(UNCOUNTED["x"], steps=3),
    "weights of some classes": fitted(class_weight={1: 5.0}),
    "weights of numbers": fitted(y=Y[:, None] + np.float32(0.2), class_weight={1: 5.0}, settings=BY_ROUNDED),
    "weights of batches": fitted(parts_of, class_weight={1.0: 5.0}),
    "weights of one batch": one_batch_of_classes,
    "no epoch": fitted(parts_of, epochs=0),
}

CASES = [(name, which) for name in OF_BOTH for which in KERASES] + [(name, "3") for name in OF_3]
IN_SHORT = [
    *[(name, "2") for name in ("hooks", "hooks, stopped in an epoch", "compile of the model", "a rest, evaluated")],
    *[(name, "3") for name in ("hooks, some steps of a validation", "compile of the model, eager", "no end")],
    *[(name, "3") for name in ("num_batches and another length", "order of results", "weights of batches", "no epoch")],
]


def assert_equal(found, expected):
    """Numbers to 1e-6, all else exactly, in the same order."""
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), (found, expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, np.ndarray | float):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore")  # Keras and a Program say what ends early
@pytest.mark.parametrize(("name", "which"), cases(CASES, *IN_SHORT))
def test_all_that_is_shown_is_that_of_keras(name, which):
    """N38: calls of hooks of data and of callbacks in one order, histories, results, predictions, weights."""
    run = {**OF_BOTH, **OF_3}[name]
    expected, found = (run(KERASES[which], owner) for owner in (lambda model: model, Program))
    assert_equal(found, expected)


TWO_REPLICAS = RuntimeConfig(distribution_strategy="mirrored", num_gpus=0, num_logical_cpus=2)


def test_no_batch_is_read_before_its_hooks():
    """N38: also where batches are read ahead, for replicas and for XLA; the numbers are those of one device."""
    expected = None
    for sections, settings in (({}, {}), ({"runtime": TWO_REPLICAS}, {}), ({}, {"jit_compile": True})):
        program = lightly(Program(lambda: light(keras3), **sections), keras3, **settings)
        history = program.fit(parts_of(keras3, []), epochs=4, shuffle=False, verbose=0).history
        expected = expected or history
        for metric, values in expected.items():
            assert history[metric] == pytest.approx(values, rel=1e-5), metric


def test_training_that_goes_on_calls_the_hooks_of_before(tmp_path):
    """N38, N1: so that the rest of an epoch has the same batches."""
    found = {}
    for name, steps in (("whole", [None]), ("parts", [5, None])):
        for step in steps:
            calls, trainer = [], TrainerConfig(checkpoint_interval=2)
            program = compiled(keras3, lambda model: Program(model, str(tmp_path / name), trainer=trainer))  # noqa: B023
            failing = keras3.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs, at=step, program=program: (
                    1 / 0 if int(program.optimizer.iterations.numpy()) == at else None
                )
            )
            with pytest.raises(ZeroDivisionError) if step else contextlib.nullcontext():
                program.fit(parts_of(keras3, calls), epochs=3, verbose=0, callbacks=[failing])
        found[name] = program.model.get_weights(), calls
    for one, other in zip(found["whole"][0], found["parts"][0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found["parts"][1] == found["whole"][1]


def test_data_without_a_known_length_is_refused():
    """N38: where its end is needed; data that has no batch is named."""
    program, calls = compiled(keras3, Program), []
    with pytest.raises(ArgumentError, match=r"^the data has no end; give steps_per_epoch, the number of batches of an"):
        program.fit(UNCOUNTED["x"](keras3, calls), verbose=0)
    for method in (program.evaluate, program.predict):
        with pytest.raises(ArgumentError, match=r"^the data has no end; give steps, the number of batches$"):
            method(UNCOUNTED["x"](keras3, calls), verbose=0)
    with pytest.raises(ArgumentError, match=r"^the validation data has no end; give validation_steps"):
        program.fit(X, Y, validation_data=UNCOUNTED["x"](keras3, calls), verbose=0)
    with pytest.raises(DataError, match=r"^Parts has no batch: its num_batches is 0$"):
        program.fit(counted(keras3, calls, count=0), verbose=0)
    with pytest.raises(NotImplementedError, match="num_batches"):
        program.fit(without_length(), verbose=0)


def without_length():
    parts = parts_of(keras3, [])
    del type(parts).__len__
    return parts
