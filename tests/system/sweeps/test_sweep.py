"""Sweeps as their user runs them: whole processes, killed at any time, with the table of an unbroken one.

The unbroken sweep is a new Python for the command and for its starter; the others are forked, which takes seconds less.
"""

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import time

import pytest
from tensorboard.plugins.hparams import api_pb2

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.docs.children import run_command
from tests.support.forked import Child
from tests.support.tracking.hparams import hparams_tab
from tests.support.workspace import copy_workspace

SPACE = """
space:
  task.model.type: choice(mlp, cnn)
  trainer.optimizer_config.learning_rate.cosine.initial_learning_rate: log(1e-4, 1e-1)
  task.model.mlp.dropout: float(0, 0.5)
  task.train_data.global_batch_size: int(32, 64, 16)
sampler_options: {n_startup_trials: 3}
pruner: MedianPruner
pruner_options: {n_startup_trials: 2}
trials: 5
seed: 1
"""
TIMEOUT_SECONDS = 280
_numbers = itertools.count()
WORDS = (
    "digits_mlp",
    "--config_file=configs/smoke/digits_mlp.yaml",
    "--space=space.yaml",
    "trainer.export.at_end=false",
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    copy_workspace(folder)
    (folder / "space.yaml").write_text(SPACE)
    return folder


BUG = """\
        if "/.check-" not in self.logging_dir:  # which the check before the first trial does not meet
            raise ValueError("a bug of mine")
        section = self.task_config.model
"""


def start_verb(workspace, *words):
    folder = workspace.parent / f"{workspace.name}-output" / str(next(_numbers))
    folder.mkdir(parents=True)
    return Child(functools.partial(run_command, "official-trainer", list(words)), cwd=workspace, folder=folder)


def start(workspace, *words):
    return start_verb(workspace, "sweep", *words)


def done(child):
    ended = child.wait()
    return ended.code, ended.out, ended.err


def command(workspace, *words):
    return done(start(workspace, *words))


def command_alone(workspace, *words):
    """Returns what a sweep prints in a new Python, as a user gives it."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    argv = [sys.executable, "-m", "official_trainer", "sweep", *words]
    ran = subprocess.run(
        argv, cwd=workspace, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def kill(child):
    child.process.kill()
    child.wait()


@pytest.fixture(scope="module")
def unbroken(workspace):
    """The directory of a sweep that ran to its end, and what it printed."""
    return workspace / "unbroken", command_alone(workspace, *WORDS, "--model_dir=unbroken")


def records(directory):
    return {path.parent.name: path.read_bytes() for path in sorted(directory.glob("trials/*/trial.json"), key=str)}


def until(condition, child):
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert child.process.exitcode is None, child.out + child.err
        assert time.monotonic() < end
        time.sleep(0.05)


def run_pid(directory, number):
    path = directory / "trials" / str(number) / "run" / ".lock.json"
    try:
        return json.loads(path.read_text())["pid"]
    except (OSError, ValueError, KeyError):
        return None


def has_row(directory, number):
    path = directory / "trials" / str(number) / "run" / "metrics.jsonl"
    return path.exists() and bool(path.read_text())


PRUNED = """
space: {task.model.mlp.dropout: "float(0, 0.1)"}
pruner: ThresholdPruner
pruner_options: {lower: 2, n_warmup_steps: 100}
trials: 1
"""


def test_a_trial_that_is_pruned_keeps_one_best_checkpoint(workspace):
    """C6, N21: it never goes back to where an earlier one was the best."""
    (workspace / "pruned.yaml").write_text(PRUNED)
    keeps = ["trainer.train_steps=100000", "trainer.max_to_keep=1000", WORDS[-1]]
    words = [*WORDS[:2], "--space=pruned.yaml", "--model_dir=pruned", *keeps]
    code, out, err = command(workspace, *words)
    assert code == 0 and " by ThresholdPruner" in out, out + err
    run = workspace / "pruned" / "trials" / "0" / "run"
    rows = [row for row in read_rows(str(run / "metrics.jsonl")) if row["split"] == "validation"]
    best = max(rows, key=lambda row: (row["accuracy"], -row["step"]))
    assert committed_steps(str(run / "best")) == (best["step"],)


def test_a_sweep_prints_its_trials_and_their_table(unbroken, workspace):
    """N21: `show` prints the same table later; the run of each trial can be read like any other."""
    directory, out = unbroken
    found = [json.loads(text) for text in records(directory).values()]
    assert [each["number"] for each in found] == list(range(5))
    assert {each["state"] for each in found} <= {"complete", "pruned"}
    assert any(each["state"] == "complete" for each in found)
    assert any("task.model.mlp.dropout" in each["values"] for each in found)
    assert all(
        ("task.model.mlp.dropout" in each["values"]) == (each["values"]["task.model.type"] == "mlp") for each in found
    )
    for each in found:
        assert f"trial {each['number']} starts: " in out
        assert (directory / "trials" / str(each["number"]) / "run" / "run.json").exists()
    rows = {name: (status, drawn, results) for name, _, status, drawn, results in hparams_tab(directory)}
    assert list(rows) == [f"trials/{each['number']}/result" for each in found]  # in TensorBoard too
    for each, (status, drawn, results) in zip(found, rows.values(), strict=True):
        assert (status == api_pb2.STATUS_SUCCESS) == (each["state"] == "complete")
        assert len(drawn) == len(each["values"]) and list(results) == [":accuracy"]
    code, table, _ = command(workspace, "show", "unbroken")
    assert code == 0 and out.endswith(table) and table.count("  best  ") == 1
    assert json.loads((directory / "results.json").read_text())["steps"]["spent"] > 0


def test_another_sweep_in_its_directory_is_refused(unbroken, workspace):
    """N21: like the changed config of a run; the number of trials may change."""
    for word, message in (
        (
            "--space=task.train_data.global_batch_size=int(32, 96, 16)",
            "holds a sweep with another description: space was",
        ),
        ("trainer.train_steps=30", "holds a sweep with another config: trainer.train_steps was 20, is 30"),
    ):
        code, _, err = command(workspace, *WORDS, word, "--model_dir=unbroken")
        assert code == 2 and message in err, err
    code, out, err = command(workspace, *WORDS, "--trials=5", "--model_dir=unbroken")
    assert code == 0 and "starts" not in out, out + err
    described = unbroken[0] / "sweep.json"
    whole = described.read_text()
    for devices, message in (({"cores": "all", "gpus": 0}, "cores is 'all', which is no number"), (3, "a mapping")):
        described.write_text(json.dumps({**json.loads(whole), "devices": devices}))
        code, _, err = command(workspace, *WORDS, "--model_dir=unbroken")
        assert code == 2 and "sweep.json cannot be read (devices: " in err and message in err, err
    described.write_text(whole)


def test_a_bug_ends_the_sweep_after_the_first_two_trials(workspace):
    """N21: with its place, its report once, and what to do; the same command does not try for ever."""
    (workspace / "experiments" / "broken.py").write_text(
        (ROOT / "experiments" / "digits.py")
        .read_text()
        .replace('"digits_', '"broken_')
        .replace("DigitsConfig", "BrokenConfig")
        .replace("        section = self.task_config.model\n", BUG)
    )
    space = "--space=task.model.mlp.dropout=float(0, 0.5)"
    words = ("broken_mlp", WORDS[1], space, "--model_dir=broken", "--parallel=2")
    code, out, err = command(workspace, *words)
    assert code == 1, out + err
    place = "experiments/broken.py:88 in build_model"
    said = f"failed by the same error, which others would have too: {place}: ValueError: a bug"
    assert re.search(r"trials \d and \d " + re.escape(said), err), err  # of two side by side either may be last
    assert "`official-trainer sweep retry broken`" in err, err
    assert out.count(f" failed: {place}: ValueError: a bug of mine\n") == 2, out
    assert out.count("  broken/trials/0/run/traceback.txt\n") == 1 and out.count("  traceback: ") == 1, out
    found = records(workspace / "broken")
    assert len(found) <= 3  # the third one began when the first had ended
    code, out, err = command(workspace, *words)
    assert code == 1 and "starts" not in out and records(workspace / "broken") == found, out + err
    script = workspace / "experiments" / "broken.py"
    script.write_text(script.read_text().replace(BUG, BUG[BUG.index("        section") :]))
    code, out, err = command(workspace, "retry", "broken")
    assert code == 0 and "runs again: 0, " in out, out + err
    code, out, err = command(workspace, *words, "--trials=2")
    found = [json.loads(text) for text in records(workspace / "broken").values()]
    assert code == 0 and [each["state"] for each in found[:2]] == ["complete"] * 2, out + err


def test_stop_ends_all_drivers_of_a_sweep_from_another_terminal(workspace):
    """N21: their trials save, and the next command continues them."""
    words = (*WORDS, "--model_dir=long", "--join", "trainer.train_steps=1000000", "trainer.checkpoint_interval=100000")
    drivers = [start(workspace, *words) for _ in range(2)]
    for number, driver in enumerate(drivers):
        until(lambda: has_row(workspace / "long", number), driver)  # noqa: B023 - called in this iteration
    code, out, err = command(workspace, "retry", "long", "0")
    assert code == 2 and "trial 0 is not done: the command of the sweep continues it" in err, out + err
    code, out, err = command(workspace, "stop", "long")
    assert code == 0 and all(f"pid {driver.process.pid} on " in out for driver in drivers), out + err
    assert "the sweep is stopped, its trials have saved; the command that began it continues it" in out
    for driver in drivers:
        code, out, err = done(driver)
        assert code == 0 and "0 of 5 trials are done, the others have saved; the same command continues" in out, err
    for number in range(2):
        status = json.loads((workspace / "long" / "trials" / str(number) / "run" / "run.json").read_text())["status"]
        assert status == "preempted"
    code, out, _ = command(workspace, "stop", "long")
    assert code == 0 and out == "no process runs the sweep in long; the command that began it continues it\n"


def test_what_no_trial_can_do_is_found_before_the_first(workspace):
    """N21: a metric that no evaluation produces, and a bug; then the same directory takes the mended one."""
    words = (*WORDS, "--trials=1", "--model_dir=metric")
    for objective in ("{metric: acuracy, direction: max}", "{others: {acuracy: max}}"):
        (workspace / "metric.yaml").write_text(f"objective: {objective}\npruner: null\npruner_options: {{}}\n")
        code, out, err = command(workspace, *words, "--space=metric.yaml")
        assert code == 2 and "starts" not in out, out + err
        assert "objective: evaluation does not produce 'acuracy'; it produces accuracy, " in err
        assert "did you mean 'accuracy'?" in err and "found before the first trial" in err
        assert not records(workspace / "metric")
    source = (ROOT / "experiments" / "digits.py").read_text().replace('"digits_', '"early_')
    broken = source.replace("DigitsConfig", "EarlyConfig").replace("        section = self.task_config.model\n", "")
    (workspace / "experiments" / "early.py").write_text(broken)
    code, out, err = command(workspace, "early_mlp", *WORDS[1:], "--model_dir=early")
    assert code == 1 and "starts" not in out, out + err
    assert "experiments/early.py:87 in build_model" in err and "NameError: name 'section'" in err, err
    code, out, err = command(workspace, *words, "--quiet")
    assert code == 0 and "  best  " in out, out + err


def test_several_metrics_are_compared_at_a_step(workspace):
    """N21: the values of a trial are those of one evaluation; the best trials are the Pareto front."""
    file = workspace / "several.yaml"
    base = SPACE.replace("pruner: MedianPruner\npruner_options: {n_startup_trials: 2}\ntrials: 5", "trials: 3")
    file.write_text(f"{base}objective: {{evaluation: 15, others: {{validation_loss: min}}}}\n")
    words = (*WORDS[:2], WORDS[3], "--space=several.yaml", "--model_dir=several", "--quiet")
    code, _, err = command(workspace, *words)
    what = "several.yaml:10: objective.evaluation: there is no evaluation at step 15: trainer.validation_interval is 10"
    assert code == 2 and f"{what} and trainer.train_steps 20; write 10 or 20" in err, err
    file.write_text(file.read_text().replace("15", "10"))
    code, table, err = command(workspace, *words)
    assert code == 0, err
    found = [json.loads(text) for text in records(workspace / "several").values()]
    for each in found:
        rows = (workspace / "several" / "trials" / str(each["number"]) / "run" / "metrics.jsonl").read_text()
        evaluated = [row for row in map(json.loads, rows.splitlines()) if row["split"] == "validation"]
        (row,) = (row for row in evaluated if row["step"] == 10)
        assert len(evaluated) == 2 and each["step"] == 10
        assert (each["value"], each["others"]) == (row["accuracy"], {"validation_loss": row["validation_loss"]})
    assert " front " in table and " valida…_loss " in table, table


def test_the_directory_may_be_a_url(workspace, tmp_path):
    """N21: the check before the first trial keeps its output on this machine; its error is shown as elsewhere."""
    for metric, code in (("acuracy", 2), ("accuracy", 0)):
        (workspace / "url.yaml").write_text(f"objective: {{metric: {metric}, direction: max}}\n")
        words = (*WORDS, "--trials=1", f"--model_dir=file://{tmp_path}/sweep", "--space=url.yaml")
        found, out, err = command(workspace, *words)
        assert found == code and (code or "complete: accuracy" in out), out + err
        assert not code or "evaluation does not produce 'acuracy'" in err, err
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["results.json", "sweep.json", "trials"]
