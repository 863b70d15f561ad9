"""A population as its user trains it: whole processes, killed at any time; each child is its parent, resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.support.chaos.compare import differences
from tests.support.runs import rows
from tests.support.sweeps.campaign import WORKSPACE
from tests.support.workspace import copy_workspace
from tests.system.sweeps.test_sweep import (
    command,
    done,
    kill,
    records,
    run_pid,
    start,
    start_verb,
    until,
)

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SIZE, GENERATIONS = 2, 3
SPACE = f"""
space:
  {RATE}: log(1e-4, 1e-1)
  task.train_data.global_batch_size: int(32, 128, 32)
  task.model.mlp.dropout: float(0, 0.5)
population: {{size: {SIZE}, replaced: 0.5}}
seed: 1
"""
FLAGS = (
    "--config_file=configs/smoke/digits_mlp.yaml",
    f"trainer.train_steps={10 * GENERATIONS}",
    "trainer.export.at_end=false",
)
WORDS = ("digits_mlp", *FLAGS, "--space=space.yaml")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    copy_workspace(folder)
    (folder / "space.yaml").write_text(SPACE)
    script = folder / "bin" / "official-trainer"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m official_trainer "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def unbroken(workspace):
    """The directory of a population that was trained to its end, and what was printed."""
    code, out, err = command(workspace, *WORDS, "--model_dir=unbroken")
    assert code == 0, out + err
    return workspace / "unbroken", out


def found(directory):
    return {int(name): json.loads(text) for name, text in records(directory).items()}


def run_of(directory, number):
    return directory / "trials" / str(number) / "run"


def test_each_child_is_its_parent_resumed_by_hand(unbroken, workspace):
    """N35: a copy of the parent's directory, continued with the values of the child: equal in every bit."""
    directory, out = unbroken
    trials = found(directory)
    assert len(trials) == SIZE * GENERATIONS
    child = next(each for each in trials.values() if each["number"] >= 4 and each["parent"] != each["number"] - SIZE)
    parent = run_of(directory, child["parent"])
    assert trials[child["parent"]]["values"] != child["values"]
    shutil.copytree(
        parent.parent, workspace / "hand"
    )  # with its record: runs that are no trials have an own row in HParams
    sets = [f"{path}={value}" for path, value in child["values"].items()]
    words = ["train", "digits_mlp", *FLAGS, *sets, "--model_dir=hand/run", "--until_step=30", "--allow_config_change"]
    code, out_by_hand, err = done(start_verb(workspace, *words))
    assert code == 0, out_by_hand + err
    assert differences(workspace / "hand" / "run", run_of(directory, child["number"])) == {}
    for each in trials.values():
        begins = "starts" if each["parent"] is None else f"starts from trial {each['parent']}"
        assert f"trial {each['number']} {begins}: " in out
        assert [step for step, _ in each["reports"]] == [each["number"] // SIZE * 10 + 10]
    assert [f"generation {number} of 3" in out for number in (1, 2, 3)] == [True] * 3


def test_the_best_is_trained_again_by_its_script(unbroken, workspace):
    """N35: one run, whose values change at the steps of the schedule, ends with the bits of the best trial."""
    directory, _ = unbroken
    code, out, err = command(workspace, "best", "unbroken", "--write=best.sh")
    assert code == 0, err
    best = int(out.split()[2])
    environ = {**os.environ, "PATH": f"{workspace}/bin:{os.environ['PATH']}"}
    argv = ["sh", "best.sh", *FLAGS, "--model_dir=again/run"]
    ran = subprocess.run(argv, cwd=workspace, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    left = differences(workspace / "again" / "run", run_of(directory, best))
    assert not left.keys() & {"variables", "rows", "best"}, left


def test_killed_anywhere_it_ends_with_the_same_records_and_weights(unbroken, workspace):
    """N35: SIGKILL of the driver and of a trial, then two drivers with two trials each at the same time."""
    directory = workspace / "killed"
    words = (*WORDS, "--model_dir=killed")
    driver = start(workspace, *words)
    until(lambda: run_pid(directory, 1), driver)
    os.kill(run_pid(directory, 1), signal.SIGKILL)
    until(lambda: run_of(directory, 2).exists(), driver)  # it is being copied
    kill(driver)
    drivers = [start(workspace, *words, "--join", "--parallel=2") for _ in range(2)]
    for code, out, err in map(done, drivers):
        assert code == 0, out + err
    assert records(directory) == records(unbroken[0])
    for number in found(directory):
        left = differences(run_of(directory, number), run_of(unbroken[0], number))
        assert left == {} or (set(left) == {"variables"} and number < SIZE), (number, left)


def test_members_whose_loss_is_not_finite_are_replaced_by_copies_of_others(tmp_path):
    """N35: two of three diverge in the first generation; both go on from the third one, and no trial from them."""
    shutil.copytree(WORKSPACE, tmp_path, dirs_exist_ok=True)
    rate = "trainer.optimizer_config.learning_rate.constant.learning_rate"
    text = f"space: {{{rate}: 'choice(0.01, 0.03, 1e38)'}}\nseed: 9\n"
    members = "population: {size: 3, interval: 2, replaced: 0.34, factors: [0.8], redrawn: 0}\n"
    (tmp_path / "space.yaml").write_text(text + members)
    words = ("points", "--space=space.yaml", "trainer.train_steps=4")  # two generations
    code, out, err = command(tmp_path, *words, "--model_dir=out")
    assert code == 0, out + err
    trials = found(tmp_path / "out")
    assert [trials[number]["state"] for number in range(6)] == ["pruned", "complete", "pruned", *["complete"] * 3]
    assert [trials[number]["values"][rate] for number in range(3)] == ["1e38", "0.03", "1e38"]
    assert "trial 0 pruned: the loss is not finite" in out and "trial 3 starts from trial 1: " in out
    assert [trials[number]["parent"] for number in (3, 4, 5)] == [1, 1, 1]
    for number in (3, 4, 5):
        before, after = rows(run_of(tmp_path / "out", 1)), rows(run_of(tmp_path / "out", number))
        assert before and after[: len(before)] == before


def test_what_cannot_be_trained_so_is_found_before_the_first_trial(workspace):
    """N35: by trying to build it; the other cases are in the unit tests of `sweeps/continuable`."""
    layers = "--space=task.model.mlp.hidden=choice([64], [16])"
    code, _, err = command(workspace, *WORDS, layers, "--model_dir=new")
    assert code == 2 and "a run cannot continue with task.model.mlp.hidden=[16], because its variables are" in err, err
    assert "This was found before the first trial" in err and not found(workspace / "new")
