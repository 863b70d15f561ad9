"""Programs of Keras 3: all combinations of `compile` and `fit` beside Keras 3's own."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import pytest

from official_trainer.config import TrainerConfig
from official_trainer.lazy import tf
from official_trainer.program import Program
from tests.support.fits3 import (
    COMBINATIONS,
    IN_SHORT,
    Diary,
    X,
    Y,
    build,
    compare,
    light,
    lightly,
    of,
    with_own_results,
)


@pytest.mark.parametrize("name", [name for name in COMBINATIONS if name not in IN_SHORT])
def test_what_comes_of_arguments_is_what_keras_3_makes_of_them(name, tmp_path):
    """N38: history, calls of callbacks, weights, evaluation, predictions, and what callbacks write."""
    compare(name, tmp_path)


def no_penalty():
    return of(lambda: keras.layers.Dense(8, "tanh"))()


def test_several_replicas_are_told_of_as_one():
    """N38, K2: as of one device in Keras 3, with a validation, and a last batch that they cannot share equally."""
    # Without collectives: those of two strategies over the same devices would confuse each other.
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    given = {"x": X, "y": Y, "epochs": 2, "batch_size": 7, "validation_split": 0.2, "shuffle": False, "verbose": 0}
    expected = lightly(no_penalty()).fit(**given).history
    with strategy.scope():
        program = lightly(Program(no_penalty()))
    found = program.fit(**given).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


class Doubled(Program):
    """Overrides what steps compute."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": keras.ops.max(y_pred)}


def test_steps_call_what_a_subclass_overrides():
    """N38, K2: as they call what a model overrides."""
    found = [
        lightly(owner(make())).fit(X, Y, shuffle=False, verbose=0).history
        for owner, make in ((Doubled, build), (lambda model: model, with_own_results))
    ]
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        assert found[1][name] == pytest.approx(values, rel=1e-6), name


def test_what_was_compiled_can_be_compiled_again():
    """N38"""
    program, other = lightly(Program(build())), Program(build())
    other.compile_from_config(program.get_compile_config())
    histories = [each.fit(X, Y, shuffle=False, verbose=0).history for each in (program, other)]
    assert histories[0] == histories[1]


def test_callbacks_write_what_they_write_in_keras_3(tmp_path):
    """N38, K5: TensorBoard's values, of each batch and of epochs."""
    found = []
    for name, owner in (("theirs", lambda model: model), ("ours", Program)):
        board = keras.callbacks.TensorBoard(str(tmp_path / name), update_freq=2, histogram_freq=1)
        program = lightly(owner(build()))
        program.fit(X, Y, batch_size=10, epochs=2, validation_split=0.2, shuffle=False, verbose=0, callbacks=[board])
        found.append(written(tmp_path / name))
    assert found[0].keys() == found[1].keys()
    assert {"epoch_loss", "batch_loss", "evaluation_accuracy_vs_iterations"} <= {tag for _, tag in found[0]}
    for tag, values in found[0].items():
        assert found[1][tag] == pytest.approx(values, rel=1e-6), tag


def written(folder):
    """Returns the scalars of event files: (step, value) by the file's folder and the tag."""
    found = {}
    for path in sorted(folder.rglob("*.tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars" or not value.tag.startswith("batch"):
                    number = tf.make_ndarray(value.tensor)
                    if number.ndim == 0 and number.dtype == "float32":
                        found.setdefault((path.parent.name, value.tag), []).extend([event.step, float(number)])
    return found


def test_training_goes_on_from_a_backup(tmp_path):
    """N38, K5: after an error in an epoch, in the epochs in which Keras 3 goes on."""
    found = []
    for name, owner in (("theirs", lambda model: model), ("ours", Program)):
        for fails in (True, False):
            diary = Diary(batches=False)
            backup = keras.callbacks.BackupAndRestore(str(tmp_path / name))
            failing = keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs, on=fails: 1 / (epoch - 2 if on else 1)
            )
            program = lightly(owner(light()), optimizer="adam")
            given = {"epochs": 4, "shuffle": False, "verbose": 0, "callbacks": [backup, failing, diary]}
            if fails:
                with pytest.raises(ZeroDivisionError):
                    program.fit(X, Y, **given)
            else:
                program.fit(X, Y, **given)
                found.append(diary.calls)
    assert found[0] == found[1]
    assert found[0][1][:2] == ("on_epoch_begin", 3), "it began anew"


def test_the_best_checkpoint_is_chosen_by_a_metric_of_compile(tmp_path):
    """N38, K7: under its name in Keras 3's logs, whose direction its class declares; with micro-batches."""
    model = build()
    trainer = TrainerConfig(best_checkpoint_eval_metric="accuracy", gradient_accumulation_steps=2)
    program = lightly(Program(keras.Model(model.inputs, model.outputs), str(tmp_path / "run"), trainer=trainer))
    program.fit(X[:48], Y[:48], batch_size=8, epochs=2, validation_data=(X, Y), verbose=0)
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
