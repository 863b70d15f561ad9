"""`official_trainer.sweep` as its user calls it: from a script that has used TensorFlow, killed on the way.

The script is forked from a process that has imported TensorFlow. What starts the trials of a function is a new Python.
"""

import functools
import json

from official_trainer.sweeps.from_python import Sweep
from tests.support.docs.children import run_program
from tests.support.forked import Child, run_command
from tests.support.sweeps.processes import Driver, script
from tests.support.workspace import copy_workspace

SCRIPT = '''
import os
import signal
import sys
import numpy as np
import tensorflow as tf
from official_trainer import Program, sweep
from official_trainer.lazy import keras

class Kills(keras.callbacks.Callback):
    """In the sweep `killed`, kills trial 0 in its third epoch, and in that of trial 2 the sweep; each once."""

    def __init__(self, trial):
        super().__init__()
        self._trial = trial

    def on_epoch_begin(self, epoch, logs=None):
        victims = {0: os.getpid(), 2: int(os.environ["SWEEP_PID"])}
        mark = f"{self._trial.model_dir}.killed"
        if "killed/" in mark and epoch == 2 and self._trial.number in victims and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(victims[self._trial.number], signal.SIGKILL)
            signal.pause()


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
    program.fit(x, y, epochs=6, validation_split=0.25, verbose=0, callbacks=[Kills(trial)])

if __name__ == "__main__":
    os.environ["SWEEP_PID"] = str(os.getpid())
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
'''

LEAVING = """
import os
import signal
import threading
from official_trainer import sweep
from tune import train as trains

def train(trial):
    threading.Thread(target=signal.pause, name=f"thread of {trial.number}").start()
    trains(trial)

if __name__ == "__main__":
    os.environ["SWEEP_PID"] = "0"
    space = {"units": "list(1, 1, int(4, 8))", "rate": "log(1e-3, 1e-1)"}
    objective = {"metric": "accuracy", "direction": "max"}
    print([each.state for each in sweep(train, space, model_dir="out", trials=2, objective=objective).trials])
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


def run(folder, name, script="tune.py"):
    program = functools.partial(run_program, script, [name], is_module=False)
    return Child(program, cwd=folder, folder=folder).wait()


def records(directory):
    return {path.parent.name: path.read_text() for path in sorted(directory.glob("trials/*/trial.json"))}


def test_a_function_is_swept_and_what_is_killed_continues(tmp_path):
    """N21: SIGKILL of a trial and of the script; the records end as those of an unbroken sweep, bit by bit."""
    (tmp_path / "tune.py").write_text(SCRIPT)
    done = run(tmp_path, "unbroken")
    assert done.code == 0, done.out + done.err
    assert "trial 0 starts: units=[" in done.out and "best " in done.out
    found = Sweep(str(tmp_path / "unbroken"))
    assert [each.number for each in found.trials] == [0, 1, 2] and found.best.state == "complete"
    assert len(found.trials[2].reports) > 2  # so it gets as far as its kill
    assert run(tmp_path, "killed").code == -9
    done = run(tmp_path, "killed")
    assert done.code == 0 and "trial 2 continues" in done.out, done.out + done.err
    assert [path.name for path in sorted(tmp_path.glob("killed/trials/*/run.killed"))] == ["run.killed"] * 2
    assert records(tmp_path / "killed") == records(tmp_path / "unbroken")


def test_a_thread_that_a_trial_leaves_does_not_hold_up_the_sweep(tmp_path):
    """N21: its process ends soon after it, and the log of the trial names the thread."""
    (tmp_path / "tune.py").write_text(SCRIPT)
    (tmp_path / "leaving.py").write_text(LEAVING)
    done = run(tmp_path, "out", "leaving.py")
    assert done.code == 0 and done.out.endswith("['complete', 'complete']\n"), done.out + done.err
    for number in range(2):
        last = (tmp_path / "out" / "trials" / str(number) / "output.log").read_text().splitlines()[-1]
        what = f"warning: the thread 'thread of {number}' still ran 10 s after the end, and was ended too"
        assert last.startswith(what), last


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
