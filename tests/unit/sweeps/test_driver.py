"""The driver of a sweep, by what it records of trials whose processes are stand-ins."""

import contextlib
import json
from pathlib import Path

import pytest

from official_trainer import config
from official_trainer.distributed.devices import Devices
from official_trainer.lock import DirectoryLock
from official_trainer.runs import recorded
from official_trainer.sweeps import driver
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.course import Course
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.settings import Objective, SweepConfig
from official_trainer.sweeps.slots import Share, Slots
from official_trainer.sweeps.space import read_free
from official_trainer.sweeps.study import Study

SPACE = {"rate": "log(1e-3, 1)"}
OBJECTIVE = Objective("loss", "min", "best")
SETTINGS = {
    "space": SPACE,
    "sampler": "RandomSampler",
    "pruner": "MedianPruner",
    "pruner_options": {"n_startup_trials": 1},
    "trials": 2,
}
GOOD, BAD, LATE = ((2, 0.5), (4, 0.4)), ((2, 9.0),), ((4, 8.0), (6, 0.01))


class StandIns:
    """In place of the processes of trials: trial 0 is good; trial 1 is bad, and the best after it was stopped."""

    def __init__(self, code):
        self.running, self.started, self.stopped = {}, [], []
        self._code, self._ends = code, []

    def start(self, process):
        number = process.member.index
        self.running[number] = process
        self.started.append(process.member.argv[0])
        if self.started[-1] == "check":
            self._ends.append((process, 0))
            return
        _evaluate(process, GOOD if number == 0 else BAD)
        self._ends += [None, (process, 0)] if number == 0 else [None]

    def wait(self, seconds):
        assert self._ends, "the driver waits for what does not come"
        found = self._ends.pop(0)
        if found is not None:
            del self.running[found[0].member.index]
        return found

    def terminate(self, process):
        self.stopped.append(process.member.index)
        _evaluate(process, LATE)
        self._ends.append((process, self._code))


def _evaluate(process, results):
    run = Path(process.member.argv[0])
    run.mkdir(parents=True, exist_ok=True)
    with open(run / "metrics.jsonl", "a") as file:
        for step, loss in results:
            file.write(json.dumps({"step": step, "split": "validation", "time": 1.0, "loss": loss}) + "\n")


def run(directory, processes, monkeypatch, check=()):
    monkeypatch.setattr(driver, "Starter", lambda **options: contextlib.nullcontext())
    monkeypatch.setattr(driver, "Processes", lambda starter, signals: contextlib.nullcontext(processes))
    resolved = config.resolve(SweepConfig(), params_overrides=[config.flow(SETTINGS)])
    study = Study(read_free(SPACE, lambda keys: None), resolved, OBJECTIVE)
    plan = driver.Plan(
        directory=directory,
        config=resolved.config,
        study=study,
        objective=OBJECTIVE,
        identity={},
        command=lambda model_dir, values: [model_dir],
        check=lambda values: check,
        refusal=lambda values: None,
        course=Course(study),
        grace_seconds=1.0,
    )
    there = Devices(cores=(0,), gpus=())
    slots = Slots(there, Share.of(there, 1), 1, {})
    return driver.Driver(plan, Observer(), slots, trials.read_all(directory)).run()


@pytest.mark.parametrize("code", [0, 1, 2, 4, 75, 143, -9])
def test_the_record_of_a_pruned_trial_stays_as_it_is(code, tmp_path, monkeypatch):
    """N21: whatever its process does after that, and however it ends; the same command has nothing left to do."""
    processes = StandIns(code)
    (tmp_path / "trials" / "1" / "run").mkdir(parents=True, exist_ok=True)
    (tmp_path / "trials" / "1" / "run" / "run.json").write_text('{"run_id": "x", "status": "preempted"}')
    found = run(str(tmp_path), processes, monkeypatch)
    assert processes.stopped == [1] and not processes.running
    assert (found[0].state, found[0].value, found[0].step) == ("complete", 0.4, 4)
    pruned = found[1]
    assert (pruned.state, pruned.reason, pruned.step) == ("pruned", "by MedianPruner", 2)
    assert pruned.reports == BAD and pruned.value is None
    assert trials.read(str(tmp_path), 1) == pruned
    assert recorded.read(str(tmp_path / "trials" / "1" / "run"), now_seconds=0.0).status == "pruned"
    before = (tmp_path / "trials" / "1" / "trial.json").read_bytes()
    assert run(str(tmp_path), StandIns(code), monkeypatch) == found
    assert (tmp_path / "trials" / "1" / "trial.json").read_bytes() == before


def test_one_of_several_drivers_tries_the_first_trial(tmp_path, monkeypatch):
    """N21: before it is recorded; the others wait for that."""
    place, processes = tmp_path / "trials" / "0", StandIns(0)
    place.mkdir(parents=True)
    with DirectoryLock(place), pytest.raises(AssertionError, match="waits for what does not come"):
        run(str(tmp_path), processes, monkeypatch, ["check"])
    assert processes.started == []
    run(str(tmp_path), processes, monkeypatch, ["check"])
    assert processes.started == ["check", *(f"{tmp_path}/trials/{number}/run" for number in (0, 1))]
