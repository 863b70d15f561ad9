"""`official_trainer.sweep` as its user calls it: from a script that has used TensorFlow; kills are in `test_kills.py`.

The script is forked from a process that has imported TensorFlow. What starts the trials of a function is a new Python.
"""

import functools
import json

from official_trainer.sweeps.from_python import Sweep
from tests.support.docs.children import run_program
from tests.support.forked import Child, run_command
from tests.support.sweeps.processes import Driver, script
from tests.support.workspace import copy_workspace

SCRIPT = """
import os
import sys
import numpy as np
import tensorflow as tf
from official_trainer import Program, sweep
from official_trainer.lazy import keras

def train(trial):
    os.chdir("/")  # the directory of the trial stays where it is
    x = np.random.RandomState(0).randn(400, 4).astype("float32")
    y = x.argmax(axis=1)
    keras.utils.set_random_seed(trial.number)  # from which the initial weights follow
    layers = [keras.layers.Dense(units, "relu") for units in trial.values["units"]]
    model = keras.Sequential([keras.Input([4]), *layers, keras.layers.Dense(4)])
    program = Program(model, model_dir=trial.model_dir, seed=trial.number)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program.compile(keras.optimizers.Adam(trial.values["rate"]), loss, metrics=["accuracy"])
    program.fit(x, y, epochs=6, validation_split=0.25, verbose=0)

if __name__ == "__main__":
    tf.reduce_sum(tf.ones([3]))  # the runtime has started: nothing could be forked from here
    found = sweep(
        train,
        {"units": "list(1, 2, int(4, 16))", "rate": "log(1e-3, 1e-1)"},
        model_dir=sys.argv[1],
        trials=3,
        objective={"metric": "accuracy", "direction": "max"},
        pruner="MedianPruner",
        pruner_options={"n_startup_trials": 1},
    )
    print("best", found.best.number, [each.state for each in found.trials])
"""

SPACE = {
    "task.model": {"choice": {"small": {"type": "mlp", "mlp": {"hidden": [8]}}, "other": {"mlp": {"hidden": [16]}}}},
    "task.model.mlp.dropout": "float(0, 0.5, 0.1)",
}
EXPERIMENT = f"""
from official_trainer import sweep

found = sweep(
    "digits_mlp",
    {SPACE},
    model_dir="out",
    config_file="configs/smoke/digits_mlp.yaml",
    params_override="trainer.export.at_end=false",
    trials=1,
)
print(found.best.values["task.model"], found.best.state, "accuracy")
"""


def test_a_function_is_swept(tmp_path):
    """N21: in processes of its own, though the script has used TensorFlow; given again, nothing is left to do."""
    (tmp_path / "tune.py").write_text(SCRIPT)
    program = functools.partial(run_program, "tune.py", ["out"], is_module=False)
    done = Child(program, cwd=tmp_path, folder=tmp_path).wait()
    assert done.code == 0, done.out + done.err
    assert "trial 0 starts: units=[" in done.out and "best " in done.out
    found = Sweep(str(tmp_path / "out"))
    assert [each.number for each in found.trials] == [0, 1, 2] and found.best.state == "complete"
    done = Child(program, cwd=tmp_path, folder=tmp_path).wait()
    assert done.code == 0 and "starts" not in done.out, done.out + done.err


def test_an_experiment_is_swept_from_python_as_by_the_command(tmp_path):
    """N21: the directory of one is continued by the other."""
    copy_workspace(tmp_path)
    (tmp_path / "tune.py").write_text(EXPERIMENT)
    done = Driver(script("tune.py"), tmp_path).wait()
    assert done.code == 0 and "trying one step and one evaluation" in done.out, done.out + done.err
    assert "trial 0 starts: model=small, " in done.out and done.out.endswith("small complete accuracy\n")
    words = "digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", "trainer.export.at_end=false"
    (tmp_path / "space.yaml").write_text(f"space: {json.dumps(SPACE)}\ntrials: 1\n")
    words = ["sweep", *words, "--space=space.yaml", "--model_dir=out"]
    again = run_command(words, cwd=tmp_path, folder=tmp_path)
    assert again.code == 0 and "starts" not in again.out, again.out + again.err
    assert "small  " in again.out
