"""Each trial has a process of its own, which begins where that of `train` begins, whatever ran before it.

The experiment's data depend on what its module holds, and on how often it was asked: `workspace/experiments/points.py`.
"""

import contextlib
import json
import shutil

import pytest

from official_trainer.processes.children import Process, Processes, Starter, preloaded
from official_trainer.processes.job import Member
from official_trainer.processes.output import Lines
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import Restarts
from tests import ROOT
from tests.support import runs
from tests.support.forked import run_command
from tests.support.sweeps import campaign
from tests.support.sweeps.campaign import Struck, Study, TrialChanges
from tests.support.sweeps.processes import Driver, command

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

UNREAD = "--space=runtime.stall_floor_seconds=float(5000, 6000)"  # by nothing that computes
WORDS = ("sweep", "points", UNREAD, f"--model_dir={campaign.OUT}", "--trials=3")


def run_of(folder, number):
    return str(folder / campaign.OUT / "trials" / str(number) / "run")


def check_equal(folder, count=3):
    """All trials ended as `alone` did, bit by bit."""
    for number in range(count):
        assert runs.differences(run_of(folder, number), str(folder / "alone")) == [], number
    records = [folder / campaign.OUT / "trials" / str(number) / "trial.json" for number in range(count)]
    found = [json.loads(path.read_text()) for path in records]
    assert len({json.dumps([each["state"], each["value"], each["reports"]]) for each in found}) == 1, found
    assert len({json.dumps(each["values"]) for each in found}) == count


@pytest.mark.parametrize("words", [(), ("--parallel=2",), ("--join",)], ids=["one", "parallel", "join"])
def test_trials_of_a_space_that_nothing_reads_are_equal_to_one_alone(words, tmp_path):
    """N21: what a trial, or the check before it, has drawn from the generators of a module changes no other one."""
    shutil.copytree(campaign.WORKSPACE, tmp_path, dirs_exist_ok=True)
    done = Driver(command(*WORDS, *words), tmp_path).wait()
    assert done.code == 0 and "trying one step and one evaluation" in done.out, done.out + done.err
    done = run_command(["train", "points", "--model_dir=alone"], cwd=tmp_path, folder=tmp_path)
    assert done.code == 0, done.out + done.err
    check_equal(tmp_path)


def test_a_trial_that_is_killed_and_continued_draws_the_same(tmp_path):
    """N21: each at another place: before the first checkpoint, between two, and after the last step."""
    sweep = Struck(Study("unread", WORDS, 3), tmp_path / "struck")
    sweep.strike(TrialChanges(((0, 30), (1, 100), (2, 170))))
    assert sum(sweep.counts.values()) == 3, sweep.counts
    done = run_command(["train", "points", "--model_dir=alone"], cwd=sweep.folder, folder=sweep.folder)
    assert done.code == 0, done.out + done.err
    check_equal(sweep.folder)


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_the_process_that_forks_trials_never_starts_the_runtime(keras, monkeypatch):
    """N26: what it forks finds a TensorFlow that has executed nothing; the same look after an operation finds more."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))  # earlier tests of this process may have entered another workspace
    with contextlib.ExitStack() as held:
        signals, starter = held.enter_context(Signals()), held.enter_context(Starter(preload=(keras, *preloaded())))
        processes = held.enter_context(Processes(starter, signals))
        member = Member(role="chief", index=0, argv=("tests.support.launch.runtime_started",), environ={})
        process = Process(member, Lines(lambda lines: None, None), Restarts())
        processes.start(process)
        while (found := processes.wait(None)) is None or found[1] is None:
            pass
        assert (found[1], list(process.lines.last)) == (0, ["before: False", "after: True"])
