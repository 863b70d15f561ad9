"""Trials that train side by side: each has devices of its own, and its end is not that of another one."""

import functools
import json
import os

from tests.support import runs
from tests.support.forked import Child, Command
from tests.support.gpus import nvidia_smi
from tests.support.sweeps.processes import Driver, command, script
from tests.support.workspace import copy_workspace

SCRIPT = """
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from official_trainer import Program, sweep
from official_trainer.lazy import keras

NAMES = "CUDA_VISIBLE_DEVICES", "OFFICIAL_TRAINER_GPUS"


def seen(number):
    path = Path(f"seen-{number}")
    return path.read_text().splitlines() if path.exists() else []


def until(condition):
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def train(trial):
    with open(f"seen-{trial.number}", "a") as file:
        variables = [os.environ.get(name, "") for name in NAMES]
        print(os.getpid(), *sorted(os.sched_getaffinity(0)), *variables, sep=";", file=file)
    if trial.number < 2:
        until(lambda: seen(1 - trial.number))  # both run at the same time
    if trial.number == 0 and len(seen(0)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if trial.number == 1:
        until(lambda: len(seen(0)) == 2)  # this one goes on
    keras.utils.set_random_seed(0)
    x = np.linspace(-1, 1, 32, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    program = Program(model, model_dir=trial.model_dir)
    program.compile(keras.optimizers.SGD(trial.values["rate"]), "mse")
    program.fit(x, 3 * x, epochs=1, validation_data=(x, 3 * x), verbose=0)


if __name__ == "__main__":
    space, objective = {"rate": "log(1e-3, 1e-1)"}, {"metric": "loss", "direction": "min"}
    sweep(train, space, model_dir="out", trials=4, parallel=int(sys.argv[1]), objective=objective)
"""


def seen(folder, number):
    """Returns (pid, cores, variables) of each process of a trial."""
    rows = [line.split(";") for line in (folder / f"seen-{number}").read_text().splitlines()]
    return [(row[0], set(row[1:-2]), row[-2:]) for row in rows]


def test_trials_side_by_side_have_devices_of_their_own_and_die_alone(tmp_path):
    """N21: cores, GPUs, processes; SIGKILL of one does not touch the other, and it continues on what it had."""
    cores = {str(number) for number in os.sched_getaffinity(0)}
    (tmp_path / "tune.py").write_text(SCRIPT)
    path = f"{nvidia_smi(tmp_path, 4)['PATH']}:{os.environ['PATH']}"
    environ = {"PATH": path, "CUDA_VISIBLE_DEVICES": "0,1,3", "OFFICIAL_TRAINER_GPUS": ""}
    done = Driver(script("tune.py", "2"), tmp_path, env=environ).wait()
    assert done.code == 0, done.out + done.err
    each = f"each with {max(1, len(cores) // 2)} of {len(cores)} cores and 1 of 3 GPUs"
    assert f"2 trials at a time, {each}" in done.out, done.out
    assert "trial 0 was killed by SIGKILL (out of memory?); it continues in 1 s" in done.out
    assert "trial 1 was killed" not in done.out and "trial 1 continues" not in done.out
    (killed, again), (other,) = seen(tmp_path, 0), seen(tmp_path, 1)
    assert killed[0] != again[0] and killed[1:] == again[1:]
    assert [killed[2], other[2]] == [["0", ""], ["1", ""]]
    assert len(killed[1]) == len(other[1]) == max(1, len(cores) // 2)
    assert len(cores) == 1 or not killed[1] & other[1]
    for number in (2, 3):
        assert [found[1:] for found in seen(tmp_path, number)] in ([killed[1:]], [other[1:]])
    described = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert described["devices"] == {"cores": len(killed[1]), "gpus": 1}


def test_a_sweep_that_continues_with_another_parallel_has_the_same_bits(tmp_path):
    """N21: of convolutions too: a trial keeps the number of cores; its values train it again on as many, to the bit."""
    copy_workspace(tmp_path)
    rate = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
    (tmp_path / "space.yaml").write_text(f"space:\n  {rate}: log(1e-4, 1e-1)\nsampler: RandomSampler\n")
    words = ("digits_cnn", "--config_file=configs/smoke/digits_cnn.yaml", "trainer.export.at_end=false")
    swept = ("sweep", *words, "--space=space.yaml", "--model_dir=out")
    for parallel, trials in ((2, 1), (1, 2)):
        run = command(*swept, f"--parallel={parallel}", f"--trials={trials}")
        done = Driver(run, tmp_path, f"{parallel} at a time").wait()
        assert done.code == 0, done.out + done.err
    cores = sorted(os.sched_getaffinity(0))
    mine = set(cores[: max(1, len(cores) // 2)])
    done = Command(["sweep", "best", "out", "--trial=1", "--write=best.yaml"], cwd=tmp_path, folder=tmp_path).wait()
    assert done.code == 0 and f"# on {len(mine)} core" in done.out, done.out + done.err
    again = ["train", *words, "--config_file=best.yaml", "--model_dir=again"]
    first = functools.partial(os.sched_setaffinity, 0, mine)
    done = Child(command(*again), cwd=tmp_path, folder=tmp_path, first=first).wait()
    assert done.code == 0, done.out + done.err
    assert runs.differences(str(tmp_path / "again"), str(tmp_path / "out" / "trials" / "1" / "run")) == []
