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
from tests.support.programs import EXAMPLES, examples, light, lightly


@pytest.fixture(scope="module")
def data():
    return examples()


def test_weights_of_classes_and_of_examples_multiply(data):
    """K4: what Keras documents; its own fit fails on both together."""
    x, y = data
    of_class, of_example = {0: 1.0, 1: 0.5, 2: 3.0}, np.linspace(0.1, 2, EXAMPLES).astype(np.float32)
    product = of_example * np.array([of_class[label] for label in np.ravel(y)], np.float32)
    program = lightly(Program(light()))
    start, losses = program.get_weights(), []
    for weights in ((of_example, of_class), (product, None), (of_example, None)):
        program.set_weights(start)
        losses.append(program.train_on_batch(x, y, *weights, return_dict=True)["loss"])
    both, one, alone = losses
    assert both == pytest.approx(one, rel=1e-6)
    assert both != pytest.approx(alone, rel=1e-3)


def test_what_is_computed_is_kerass(data):
    theirs, ours = lightly(light()), lightly(Program(light()))
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


def test_a_shuffled_epoch_has_each_example_once():
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
    program.fit(x, x * 0, batch_size=4, epochs=3, shuffle="batch", verbose=0)
    epochs = np.reshape(seen, [3, 10])
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


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


def dataset():
    return tf.data.Dataset.from_tensor_slices(examples()).batch(8)


REFUSED = [
    ({"epochs": -1}, "epochs=-1; allowed: whole numbers from 0 on"),
    ({"batch_size": 0}, "batch_size=0; allowed: whole numbers from 1 on"),
    ({"batch_size": 2.5}, "batch_size=2.5; allowed: whole numbers from 1 on"),
    ({"steps_per_epoch": -1}, "steps_per_epoch=-1; allowed: whole numbers from 1 on"),
    (
        lambda: {"validation_data": dataset(), "validation_steps": True},
        "validation_steps=True; allowed: whole numbers from 1 on",
    ),
    (
        {"validation_batch_size": -1},
        "validation_batch_size=-1; allowed: whole numbers from 1 on",
    ),
    ({"validation_freq": 0}, "validation_freq=0; allowed: a number of epochs from 1 on, or a list"),
    ({"validation_freq": "all"}, "validation_freq='all'; allowed: a number of epochs from 1 on, or a list of"),
    ({"validation_split": 0.99}, "of 50 examples, training would get 0 and validation 50; each needs at leas"),
    ({"class_weight": [1.0, 2.0]}, r"class_weight=\[1.0, 2.0\]; allowed: a dict of weights"),
    ({"class_weight": {"a": 2.0}}, r"class_weight=\{'a': 2.0\}; allowed: a dict of weights"),
    ({"class_weight": {1: 2.0}, "y": None}, "^class_weight needs a model with one output"),
    ({"y": None}, r"^y is missing: the data has no targets .*; give y, or data with batches \("),
    (
        lambda: {"x": dataset().map(lambda x, y: (x, y, y, y)), "y": None, "class_weight": {1: 2.0}},
        "^a batch has 4 parts; allowed: ",
    ),
    (lambda: {"y": examples()[1][:3]}, r"same number of rows, at least one; .*shapes: \(50, 6\), \(3,\)"),
    (lambda: {"x": dataset()}, r"y: the batches of a .*Dataset already contain it; leave out y"),
    (lambda: {"x": dataset().repeat(), "y": None}, "the data has no end; give steps_per_epoch, the number"),
]


def test_what_trains_nothing_is_refused(data, tmp_path):
    """K2: as in Keras; 0 was taken for the default, or trained nothing without a word."""
    program, given = lightly(Program(light())), {"x": data[0], "y": data[1], "verbose": 0}
    for arguments, message in REFUSED:
        with pytest.raises((ArgumentError, DataError), match=message):
            program.fit(**given | (arguments() if callable(arguments) else arguments))
    for arguments, message in (({"batch_size": 0}, "batch_size=0; allowed"), ({"y": None}, "^y is missing")):
        with pytest.raises(ArgumentError, match=message):
            program.evaluate(**given | arguments)
    said = "initial_epoch=1: training continues at the checkpoint in .*; leave it out"
    with pytest.raises(ArgumentError, match=said):
        lightly(Program(light(), str(tmp_path / "run"))).fit(**given, initial_epoch=1)


def test_what_is_not_compiled_is_refused(data):
    with pytest.raises(NotCompiledError, match=r"fit\(\) needs an optimizer and a loss; call compile\(\) first"):
        Program(light()).fit(*data)


def test_progress_is_shown_as_asked(data, capsys):
    """K7: `auto` is a line for each epoch where nobody looks at a terminal."""
    program = lightly(Program(light()))
    for verbose, expected in ((0, None), (1, "7/7 [="), (2, "7/7 - "), ("auto", "7/7 - ")):
        program.fit(*data, batch_size=8, verbose=verbose)
        shown = capsys.readouterr().out
        assert (expected in shown) if expected else not shown, verbose
