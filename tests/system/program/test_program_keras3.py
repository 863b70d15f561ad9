"""Programs of Keras 3 beside tf_keras: exact restarts, weights both ways; a mixture of Kerases is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras as keras3
import numpy as np
import pytest

from official_trainer.config import TrainerConfig
from official_trainer.lazy import keras as keras2
from official_trainer.lazy import tf
from official_trainer.program import Program, ProgramCheckpoint, load_program
from official_trainer.program.data import ArgumentError
from tests.support.fits import KERASES, X, Y
from tests.support.programs import deep, dense, light, lightly, of
from tests.support.tracking.readers import tensorboard


def trained(model_dir=None, *, epochs=3, callbacks=()):
    program = lightly(Program(deep(keras3), model_dir), keras3, optimizer="adam")
    history = program.fit(X, Y, epochs=epochs, batch_size=8, validation_split=0.2, verbose=0, callbacks=list(callbacks))
    return program, history


MIXED = {
    "optimizer": lambda k: k.optimizers.Adam(),
    "loss": lambda k: k.losses.MeanSquaredError(),
    "metrics": lambda k: ["mae", k.metrics.MeanSquaredError()],
}


@pytest.mark.parametrize("argument", [*MIXED, "callbacks"])
def test_what_is_of_both_kerases_is_refused(argument):
    """N38: the error names both, and where to take them from."""
    for which, other in (("2", keras3), ("3", keras2)):
        k = KERASES[which]
        program, name = Program(light(k)), {"2": "Keras 2, that is tf_keras", "3": "Keras 3"}
        fix = "import keras" if which == "3" else "from official_trainer.lazy import keras"
        said = rf"^{argument}: \w+ is of {name[{'2': '3', '3': '2'}[which]]}, and the model \w+ of {name[which]}: take "
        with pytest.raises(ArgumentError, match=rf"{said}both from `{fix}`$"):
            if argument == "callbacks":
                lightly(program, k).fit(X, Y, callbacks=[other.callbacks.EarlyStopping()], verbose=0)
            else:
                lightly(program, k, **{argument: MIXED[argument](other)})


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    """N38, K5, K6: weights, optimizer, history, and rows of `metrics.jsonl` with the names of Keras 3's logs.

    An early stop comes at the epoch of a run that was never stopped, with `min_delta`, too.
    """

    def run(name, epochs):
        stopping = keras3.callbacks.EarlyStopping("accuracy", mode="min", min_delta=0.001, patience=4)
        program, history = trained(str(tmp_path / name), epochs=epochs, callbacks=[stopping])
        return program, (history.history, history.epoch, stopping.stopped_epoch, stopping.wait, stopping.best)

    whole, told = run("whole", 8)
    run("parts", 2)
    parts, told_parts = run("parts", 8)
    assert told_parts == told
    assert told[2] > 2, "it did not stop, or before a restart"
    for ours, theirs in zip(parts.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(parts.optimizer.variables, whole.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    rows = [json.loads(row) for row in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert {"accuracy", "loss"} <= {name for row in rows for name in row}


def test_weights_go_both_ways(tmp_path):
    """N38: get, set, `.weights.h5`, `.keras`; in Keras 3 itself, too."""
    program, _ = trained()
    expected = program.predict(X[:4], verbose=0)
    of_file, whole = str(tmp_path / "model.weights.h5"), str(tmp_path / "model.keras")
    program.save_weights(of_file)
    program.save(whole)
    other = lightly(Program(deep(keras3)), keras3)
    other.model.set_weights([0 * each for each in other.model.get_weights()])
    other.load_weights(of_file)
    again = load_program(whole)
    for found in (other, keras3.models.load_model(whole), again):
        np.testing.assert_array_equal(found.predict(X[:4], verbose=0), expected)
    for each in (program, again):  # the optimizer's state is in the file
        each.fit(X, Y, shuffle=False, verbose=0)
    np.testing.assert_array_equal(again.predict(X, verbose=0), program.predict(X, verbose=0))


def test_a_checkpoint_of_a_program_is_read_again(tmp_path):
    """N38, C5: training continues with the optimizer's state."""
    template = str(tmp_path / "{epoch}-{val_accuracy:.2f}")
    saving = ProgramCheckpoint(template, monitor="val_accuracy", max_to_keep=9)
    program, _ = trained(epochs=2, callbacks=[saving])
    assert len(saving.kept) == 2
    other = lightly(Program(deep(keras3)), keras3, optimizer="adam")
    other.load(template)
    for each in (program, other):
        each.fit(X, Y, shuffle=False, verbose=0)
    for ours, theirs in zip(other.model.get_weights(), program.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_layer_that_is_not_registered_is_named_without_the_config_of_the_model(tmp_path):
    """N38: which Keras 3 prints twice."""

    class Doubling(keras3.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    Program(keras3.Sequential([keras3.Input([2]), Doubling()])).save(tmp_path / "program.keras")
    with pytest.raises(ArgumentError) as caught:
        load_program(tmp_path / "program.keras")
    said = str(caught.value)
    assert "cannot be read: Could not locate class 'Doubling'. " in said
    assert "config" not in said.replace("from_config", "")


def test_callbacks_write_what_they_write_in_keras_3(tmp_path):
    """N38, K5: TensorBoard's values, of each batch and of epochs."""
    found = []
    for name, owner in (("theirs", lambda model: model), ("ours", Program)):
        board = keras3.callbacks.TensorBoard(str(tmp_path / name), update_freq=2, histogram_freq=1)
        program = lightly(owner(of(dense)(keras3)), keras3)
        program.fit(X, Y, batch_size=10, epochs=2, validation_split=0.2, shuffle=False, verbose=0, callbacks=[board])
        points = tensorboard(tmp_path / name)
        found.append({(tag, step): value for tag, step, value in points if value is not None})
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    tags = {tag.rpartition("/")[2] for tag, _ in found[0]}
    assert {"epoch_loss", "batch_loss", "evaluation_accuracy_vs_iterations"} <= tags


def test_the_best_checkpoint_is_chosen_by_a_metric_of_compile(tmp_path):
    """N38, C1: under its name in Keras 3's logs, whose direction its class declares; with micro-batches."""
    model = deep(keras3)
    trainer = TrainerConfig(best_checkpoint_eval_metric="accuracy", gradient_accumulation_steps=2)
    program = Program(keras3.Model(model.inputs, model.outputs), str(tmp_path / "run"), trainer=trainer)
    lightly(program, keras3).fit(X[:48], Y[:48], batch_size=8, epochs=2, validation_data=(X, Y), verbose=0)
    assert len(list((tmp_path / "run" / "best").glob("ckpt-*.index"))) == 1
    export = next((tmp_path / "run" / "export").glob("*/saved_model.pb")).parent
    served = tf.saved_model.load(str(export)).signatures["serving_default"]
    (outputs,) = served(tf.constant(X[:4])).values()
    assert outputs.numpy() == pytest.approx(program.predict(X[:4], verbose=0), rel=1e-5)


ALONE = """
import sys, keras, numpy as np
from official_trainer.program import Program
x, y = np.ones([8, 4], "float32"), np.ones([8, 2], "float32")
program = Program(keras.Sequential([keras.Input([4]), keras.layers.Dense(2)]), sys.argv[1])
program.compile("adam", "mse", metrics=["mae"])
program.fit(x, y, validation_data=(x, y), verbose=0)
program.evaluate(x, y, verbose=0), program.predict(x, verbose=0), program.train_on_batch(x, y)
print([name for name in ("tf_keras", "official") if name in sys.modules])
"""


def test_a_program_of_keras_3_imports_no_other_keras(tmp_path):
    """N38: nor Model Garden."""
    words = [sys.executable, "-c", ALONE, str(tmp_path / "run")]
    chosen = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")  # by the process of this test
    environ = {name: value for name, value in os.environ.items() if name not in chosen}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.splitlines()[-1] == "[]"
