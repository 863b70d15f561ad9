"""compile, fit, evaluate, predict: Keras's numbers and order of calls, on the engine's loop."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from official_trainer.inputs import DataError
from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, NotCompiledError, Program
from tests.support.cases import cases
from tests.support.programs import CLASSES, EXAMPLES, Diary, Halves, build, compiled, examples, light, lightly


@pytest.fixture(scope="module")
def data():
    return examples()


COMBINATIONS = {
    "plain": {},
    "epochs": {"epochs": 3},
    "batch size": {"batch_size": 7, "epochs": 2},
    "split": {"validation_split": 0.3, "epochs": 2},
    "freq": {"validation_split": 0.3, "epochs": 5, "validation_freq": 2},
    "freq list": {"validation_split": 0.3, "epochs": 5, "validation_freq": [1, 4]},
    "initial": {"initial_epoch": 2, "epochs": 4, "validation_split": 0.2},
    "steps": {"steps_per_epoch": 1, "epochs": 2, "batch_size": 10},
    "weights": {"sample_weight": np.linspace(0.1, 2, EXAMPLES).astype(np.float32), "epochs": 2},
    "classes": {"class_weight": {0: 1.0, 1: 0.5, 2: 3.0}, "epochs": 2},
    "validation steps": {"validation_split": 0.5, "validation_steps": 2, "validation_batch_size": 4},
}


OF_A_WHOLE_MODEL = ("plain", "split", "freq")
"""Those with batch statistics, a regularizer and an optimizer with slots."""


@pytest.mark.parametrize("name", cases(list(COMBINATIONS), "freq", "weights"))
def test_history_and_calls_are_those_of_keras(data, name):
    """K2, K5: the same numbers, bit for bit, and the same calls in the same order."""
    arguments = {"verbose": 0, "shuffle": False, **COMBINATIONS[name]}
    make, compiling = (build, compiled) if name in OF_A_WHOLE_MODEL else (light, lightly)
    theirs, ours = compiling(make()), compiling(Program(make()))
    diaries = Diary(), Diary()
    expected = theirs.fit(*data, callbacks=[diaries[0]], **arguments)
    history = ours.fit(*data, callbacks=[diaries[1]], **arguments)
    assert history.history == expected.history
    assert history.epoch == expected.epoch
    assert diaries[1].calls == diaries[0].calls
    for value, their_value in zip(ours.model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(value, their_value, rtol=1e-6)  # the graphs around the steps differ
    assert ours.evaluate(*data, verbose=0) == theirs.evaluate(*data, verbose=0)


def test_weights_of_classes_and_of_examples_multiply(data):
    """K4: what Keras documents; its own fit fails on both together."""
    x, y = data
    of_class, of_example = {0: 1.0, 1: 0.5, 2: 3.0}, np.linspace(0.1, 2, EXAMPLES).astype(np.float32)
    product = of_example * np.array([of_class[label] for label in np.ravel(y)], np.float32)
    arguments = {"verbose": 0, "shuffle": False}
    both = lightly(Program(light())).fit(x, y, sample_weight=of_example, class_weight=of_class, **arguments)
    one = lightly(Program(light())).fit(x, y, sample_weight=product, **arguments)
    assert both.history["loss"] == pytest.approx(one.history["loss"], rel=1e-6)
    alone = lightly(Program(light())).fit(x, y, sample_weight=of_example, **arguments)
    assert both.history["loss"] != pytest.approx(alone.history["loss"], rel=1e-3)


@pytest.mark.parametrize("steps_per_execution", cases([3, 100], 3))
def test_executions_of_several_steps_use_every_batch(data, steps_per_execution):
    """K2: the last execution of an epoch is shorter."""
    settings = {"steps_per_execution": steps_per_execution}
    theirs, ours = lightly(light(), **settings), lightly(Program(light()), **settings)
    diaries = Diary(), Diary()
    arguments = {"verbose": 0, "shuffle": False, "epochs": 2, "batch_size": 7}
    assert ours.fit(*data, callbacks=[diaries[1]], **arguments).history == (
        theirs.fit(*data, callbacks=[diaries[0]], **arguments).history
    )
    assert diaries[1].calls == diaries[0].calls


def test_a_second_call_goes_on(data):
    theirs, ours = lightly(light()), lightly(Program(light()))
    for _ in range(2):
        expected = theirs.fit(*data, shuffle=False, epochs=2, verbose=0).history
        assert ours.fit(*data, shuffle=False, epochs=2, verbose=0).history == expected


def test_a_callback_may_stop_in_the_middle_of_an_epoch(data):
    """K5: `stop_training` is honoured after the batch, and the epoch ends as Keras ends it."""

    class Stopper(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    arguments = {"shuffle": False, "epochs": 3, "verbose": 0, "batch_size": 10, "validation_split": 0.2}
    theirs, ours, diaries = lightly(light()), lightly(Program(light())), (Diary(), Diary())
    expected = theirs.fit(*data, callbacks=[Stopper(), diaries[0]], **arguments)
    assert ours.fit(*data, callbacks=[Stopper(), diaries[1]], **arguments).history == expected.history
    assert diaries[1].calls == diaries[0].calls


@pytest.mark.full
def test_a_dataset_is_taken_as_it_is(data):
    """K4: see also "dataset that ends in an epoch" of `test_program_combinations.py`, which is always tried."""
    theirs, ours = lightly(light()), lightly(Program(light()))
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(8)
    expected = theirs.fit(dataset, epochs=2, validation_data=dataset.take(2), verbose=0).history
    assert ours.fit(dataset, epochs=2, validation_data=dataset.take(2), verbose=0).history == expected


def test_what_is_not_compiled_is_refused(data):
    with pytest.raises(NotCompiledError, match=r"fit\(\) needs an optimizer and a loss; call compile\(\) first"):
        Program(light()).fit(*data)


def test_targets_beside_a_dataset_are_refused(data):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(8)
    with pytest.raises(ArgumentError, match=r"y: the batches of a .*Dataset already contain it; leave out y"):
        lightly(Program(light())).fit(dataset, data[1])


def both(**settings):
    return lightly(light(), **settings), lightly(Program(light()), **settings)


def test_what_is_computed_is_kerass(data):
    theirs, ours = lightly(build()), lightly(Program(build()))
    x, y = data
    theirs.train_on_batch(x, y)
    ours.train_on_batch(x, y)
    outputs, y = theirs(x), tf.constant(y)
    assert float(ours.compute_loss(x, y, outputs)) == pytest.approx(float(theirs.compute_loss(x, y, outputs)))
    found, expected = ours.compute_metrics(x, y, outputs), theirs.compute_metrics(x, y, outputs, None)
    assert {k: float(v) for k, v in found.items()} == pytest.approx({k: float(v) for k, v in expected.items()})
    assert {k: float(v) for k, v in ours.get_metrics_result().items()} == pytest.approx(
        {k: float(v) for k, v in theirs.get_metrics_result().items()}
    )
    assert ours.metrics_names == theirs.metrics_names == [metric.name for metric in ours.metrics]


def test_sequences_are_read_in_epochs(data):
    """K4"""
    theirs, ours = both()
    expected = theirs.fit(Halves(data), epochs=3, shuffle=False, verbose=0)
    assert ours.fit(Halves(data), epochs=3, shuffle=False, verbose=0).history == expected.history


@pytest.mark.full
def test_generators_are_read_once(data):
    """K4: see also "generator that ends" of `test_program_combinations.py`, which is always tried."""
    theirs, ours = both()

    def batches():
        while True:
            yield from zip(np.split(data[0], 5), np.split(data[1], 5), strict=True)

    arguments = {"steps_per_epoch": 3, "epochs": 4, "verbose": 0}
    assert ours.fit(batches(), **arguments).history == theirs.fit(batches(), **arguments).history


@pytest.mark.parametrize("listed", cases([False, True], True))
def test_inputs_by_name(data, listed):
    """K4: dicts and lists of arrays."""

    def two():
        keras.utils.set_random_seed(1)
        a, b = keras.Input([2], name="a"), keras.Input([4], name="b")
        hidden = keras.layers.Concatenate()([a, b])
        outputs = [keras.layers.Dense(CLASSES, name=name)(hidden) for name in ("left", "right")]
        return keras.Model([a, b], outputs)

    x, y = data
    structure = [x[:, :2], x[:, 2:]] if listed else {"a": x[:, :2], "b": x[:, 2:]}
    owners = two(), Program(two())
    for owner in owners:
        lightly(owner, loss_weights=[1.0, 0.3])
    found = [owner.fit(structure, [y, y], shuffle=False, epochs=2, verbose=0).history for owner in owners]
    assert found[0] == found[1]


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_a_shuffled_epoch_has_each_example_once(shuffle):
    """K2: each example in each epoch, in another order."""
    seen = []

    class Watching(keras.Model):
        def call(self, inputs):
            tf.numpy_function(lambda values: seen.extend(values.ravel().tolist()), [inputs], [])
            return inputs * self.add_weight_once()

        def add_weight_once(self):
            if not self.trainable_weights:
                self.scale = self.add_weight("scale", [], initializer="ones")
            return self.scale

    program = Program(Watching())
    program.compile("sgd", "mse")
    x = np.arange(10, dtype=np.float32)[:, None]
    program.fit(x, x * 0, batch_size=4, epochs=3, shuffle=shuffle, verbose=0)
    epochs = np.reshape(seen, [3, 10])
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_what_was_compiled_can_be_compiled_again(data):
    """K1: the same training from what `get_compile_config` says."""
    first = Program(light())
    first.compile(
        keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]
    )
    second = Program(light())
    second.compile_from_config(first.get_compile_config())
    assert second.fit(*data, shuffle=False, verbose=0).history == first.fit(*data, shuffle=False, verbose=0).history


@pytest.fixture
def interrupts():
    """Has Python raise KeyboardInterrupt; a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_without_a_run_directory_signals_are_the_callers(data, interrupts):
    """K6: an interrupt ends `fit` as it ends Keras's, and the process goes on."""

    class Interrupted(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            os.kill(os.getpid(), signal.SIGINT)

    program = lightly(Program(light()))
    with pytest.raises(KeyboardInterrupt):
        program.fit(*data, callbacks=[Interrupted()], epochs=3, verbose=0)
    assert program.fit(*data, verbose=0).epoch == [0]


def test_fit_runs_the_loop_of_experiments(data, tmp_path):
    """K6: there is one loop; with a run directory it leaves what an experiment leaves."""
    program = lightly(Program(light(), str(tmp_path / "run")))
    history = program.fit(*data, epochs=2, batch_size=10, validation_split=0.2, verbose=0)
    assert {path.name for path in Path(tmp_path, "run").glob("*.manifest.json")} == {
        "ckpt-4.manifest.json",
        "ckpt-8.manifest.json",
    }
    rows = [json.loads(line) for line in Path(tmp_path, "run", "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows if row["split"] == "validation"] == history.history["val_loss"]
    assert json.loads(Path(tmp_path, "run", "run.json").read_text())["status"] == "done"


def test_a_first_epoch_beside_a_run_directory_is_refused(data, tmp_path):
    with pytest.raises(
        ArgumentError, match=r"initial_epoch=1: training continues at the checkpoint in .*; leave it out"
    ):
        lightly(Program(light(), str(tmp_path))).fit(*data, initial_epoch=1)


@pytest.mark.parametrize(
    ("verbose", "expected"), cases([(0, ""), (1, "7/7 [="), (2, "7/7 - "), ("auto", "7/7 - ")], (1, "7/7 [="))
)
def test_progress_is_shown_as_asked(data, capsys, verbose, expected):
    """K7: `auto` is a line for each epoch where nobody looks at a terminal."""
    lightly(Program(light())).fit(*data, batch_size=8, verbose=verbose)
    shown = capsys.readouterr().out
    assert (expected in shown) if expected else not shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"validation_split": 0.99}, "of 50 examples, training would get 0 and validation 50; each needs at least one"),
        (
            {"class_weight": {0: 1.0, 2: 1.0}},
            r"class_weight has weights for the classes \[0, 2\]; it must",
        ),
    ],
)
def test_arguments_that_mean_nothing_are_refused(data, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        lightly(Program(light())).fit(*data, **arguments)


def test_data_that_does_not_fit_together_is_refused(data):
    with pytest.raises(DataError, match=r"need the same number of rows, at least one; their shapes: \(50, 6\), \(3,\)"):
        lightly(Program(light())).fit(data[0], data[1][:3])


def test_data_without_an_end_needs_to_be_told_how_long_an_epoch_is(data):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(8).repeat()
    with pytest.raises(ArgumentError, match="the data has no end; give steps_per_epoch, the number of batches"):
        lightly(Program(light())).fit(dataset)
