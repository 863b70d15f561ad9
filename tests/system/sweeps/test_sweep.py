"""Sweeps as their user runs them: whole processes, from the first command to the table."""

import json
import os
import runpy
import subprocess
import sys

import pytest

from official_trainer.sweeps import results
from official_trainer.sweeps.settings import SweepError
from tests import ROOT
from tests.support import runs
from tests.support.forked import Command, run_command
from tests.support.processes.from_here import fork_processes
from tests.support.sweeps.drivers import OUT, Sweep
from tests.support.waiting import until

RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"
SPACE = f"""
space:
  task.model.type: choice(deep, flat)
  task.model.deep.dropout: float(0, 0.4)
  {RATE}: log(1e-4, 1)
sampler: {{type: TPESampler, n_startup_trials: 3}}
pruner: {{type: MedianPruner, n_startup_trials: 1}}
trials: 4
seed: 3
"""
UNREAD = "space: {runtime.stall_floor_seconds: 'float(5000, 6000)'}\ntrials: 2\n"
BUG = "    def build_losses(self"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep that ran to its end with Python's fork server, as a user's does, and what it printed."""
    sweep = Sweep(tmp_path_factory.mktemp("sweep") / "one", SPACE)
    words = ["sweep", "points", "--space=space.yaml", f"--model_dir={OUT}"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    argv = [sys.executable, "-m", "official_trainer", *words]
    done = subprocess.run(argv, cwd=sweep.folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return sweep, done.stdout


def command(sweep, *words, text=None):
    """Returns how a command of a sweep ends, with trials that start in milliseconds."""
    if text is not None:
        (sweep.folder / "space.yaml").write_text(text)
    folder = sweep.folder / f"output-{len(list(sweep.folder.iterdir()))}"
    folder.mkdir()
    argv = ["sweep", *words]
    return Command(argv, cwd=sweep.folder, folder=folder, first=fork_processes, starts_processes=True).wait()


WORDS = ("points", "--space=space.yaml", f"--model_dir={OUT}")


def test_a_sweep_prints_its_trials_and_their_table(finished):
    """N21: each is drawn, trained and told to Optuna; its run is like any other; `show` prints the table again."""
    sweep, out = finished
    found = results.summary(str(sweep.directory))
    assert sum(found["counts"].values()) == 4 and found["counts"].keys() <= {"complete", "pruned"}
    for trial in found["trials"]:
        is_deep = trial["params"]["task.model.type"] == "deep"
        assert is_deep == ("task.model.deep.dropout" in trial["params"])
        assert f"trial {trial['number']} starts: model=" in out
        record = json.loads((sweep.run(trial["number"]) / "run.json").read_text())
        early = {"complete": None, "pruned": "pruned by its sweep"}[trial["state"]]
        assert (record["status"], record["stopped_early"]) == ("done", early)
    table = command(sweep, "show", OUT)
    assert table.code == 0 and out.endswith(table.out) and table.out.count(" best ") == 1
    assert not (sweep.directory / "check").exists() and not (sweep.directory / "check.log").exists()


def test_its_study_is_optunas(finished):
    """N21: opened by Optuna alone, with values, evaluations and states; so by optuna-dashboard."""
    sweep, _ = finished
    study, found = sweep.study(), results.summary(str(sweep.directory))
    assert study.metric_names == ["validation_loss"] and study.best_trial.number == found["best"]
    frame = study.trials_dataframe()
    assert len(frame) == 4 and f"params_{RATE}" in frame
    for trial in study.trials:
        rows = [row for row in runs.rows(str(sweep.run(trial.number))) if row["split"] == "validation"]
        values = {row["step"]: row["validation_loss"] for row in rows}
        assert trial.intermediate_values.items() <= values.items() and trial.intermediate_values


def test_the_same_command_has_nothing_left_and_another_sweep_is_refused(finished):
    """N21: like the changed config of a run; the number of trials may change."""
    sweep, _ = finished
    for words, message in (
        ((f"--space={RATE}=log(1e-3, 1)",), f"holds a sweep with another description: space.{RATE} was "),
        (("trainer.train_steps=8",), "holds a sweep with another config: trainer.train_steps was 6, is 8"),
    ):
        done = command(sweep, *WORDS, *words)
        assert done.code == 2 and message in done.err, done.err
    done = command(sweep, *WORDS)
    assert done.code == 0 and "starts" not in done.out, done.out + done.err
    done = command(sweep, *WORDS, "--trials=5")
    assert done.code == 0 and "trial 4 starts" in done.out, done.out + done.err
    done = command(sweep, "points", "--space=space.yaml", "--model_dir=experiments")
    assert done.code == 2 and "--model_dir=experiments holds " in done.err, done.err
    done = command(sweep, "points", "--space=space.yaml", "--model_dir=gs://bucket/x")
    assert done.code == 2 and "--model_dir=gs://bucket/x is a URL" in done.err, done.err


def test_trials_of_a_space_that_nothing_reads_are_equal_to_a_run_alone(tmp_path):
    """N21: what a trial, or the check before it, has drawn from the generators of a module changes no other one."""
    sweep = Sweep(tmp_path / "unread", UNREAD)
    sweep.finish()
    done = run_command(["train", "points", "--model_dir=alone"], cwd=sweep.folder, folder=tmp_path)
    assert done.code == 0, done.out + done.err
    for number in range(2):
        assert runs.differences(str(sweep.run(number)), str(sweep.folder / "alone")) == [], number
    assert len({trial.value for trial in sweep.study().trials}) == 1


def test_what_no_trial_can_do_is_found_before_the_first(tmp_path):
    """N21: a metric that no evaluation produces, an unknown field; then the same directory takes the mended file."""
    sweep = Sweep(tmp_path / "metric", SPACE)
    wrong = SPACE + "objective: {metric: validation_los, direction: min}\n"
    done = command(sweep, *WORDS, text=wrong)
    assert done.code == 2 and "starts" not in done.out, done.out + done.err
    assert "objective: evaluation does not produce 'validation_los'" in done.err
    assert "did you mean 'validation_loss'?" in done.err and "found before the first trial" in done.err
    done = command(sweep, *WORDS, text=SPACE.replace("deep.dropout", "deep.droput"))
    assert done.code == 2 and "space.yaml:4: task.model.deep.droput: " in done.err, done.err
    done = command(sweep, *WORDS, "--trials=1", text=SPACE)
    assert done.code == 0 and "trial 0 complete: validation_loss " in done.out, done.out + done.err


def test_trials_that_all_fail_end_the_sweep(tmp_path):
    """N21: after five, with the cause; the same command goes on with other trials."""
    sweep = Sweep(tmp_path / "bug", SPACE)
    module = sweep.folder / "experiments" / "points.py"
    source = module.read_text()
    raised = (
        f'{BUG}, *arguments):\n        if "check" not in self.logging_dir:\n            raise ValueError("a bug")\n'
    )
    broken = f"{raised}        return self.losses(*arguments)\n\n    def losses(self"
    module.write_text(source.replace(BUG, broken))
    done = command(sweep, *WORDS, "--parallel=2")
    assert done.code == 1 and "error: the last 5 trials failed; the last one: " in done.err, done.err
    assert "ValueError: a bug" in done.err
    module.write_text(source)
    done = command(sweep, *WORDS, "--trials=1")
    counts = results.summary(str(sweep.directory))["counts"]
    assert done.code == 0 and counts["complete"] >= 1 and counts["failed"] >= 5, done.out + done.err


def test_ctrl_c_has_the_trials_save(tmp_path):
    """N21: exit code 143, and the next command continues from there."""
    words = [f"trainer.{name}=100000" for name in ("train_steps", "checkpoint_interval", "validation_interval")]
    sweep = Sweep(tmp_path / "long", SPACE, *words)
    driver = sweep.start()
    until(lambda: sweep.has_trained(0, rows=3))
    os.kill(driver.process.pid, 15)
    done = driver.wait()
    assert done.code == 143 and "0 of 4 trials are done, the others have saved" in done.err, done.out + done.err
    sweep.wait_until_gone()
    assert json.loads((sweep.run(0) / "run.json").read_text())["status"] == "stopped"
    driver = sweep.start()
    until(lambda: "trial 0 continues: " in driver.out)
    os.kill(driver.process.pid, 15)
    driver.wait()


SCRIPT = f"""
from official_trainer import sweep

sweep("points", {{"{RATE}": "log(1e-3, 1)"}}, model_dir="out", trials=2)
"""


def test_a_script_that_is_imported_begins_no_sweep(tmp_path):
    """N21: as multiprocessing imports it in a trial."""
    (tmp_path / "tune.py").write_text(SCRIPT)
    with pytest.raises(SweepError, match="a trial imports this script: write `if __name__"):
        runpy.run_path(str(tmp_path / "tune.py"), run_name="__mp_main__")


@pytest.mark.full
def test_a_script_that_trials_import_has_to_say_so(tmp_path):
    """N21: without `if __name__`, each trial would begin the sweep again; the guide has a script that is right."""
    sweep = Sweep(tmp_path / "python", SPACE)
    (sweep.folder / "tune.py").write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "tune.py"], cwd=sweep.folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode and "a trial imports this script: write `if __name__" in done.stderr, done.stderr
