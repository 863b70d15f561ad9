"""SIGTERM in every phase of a run, twice, while a save is being written, and the time limit (N5)."""

import json
import os
import pathlib
import re
import shutil
import signal
import time

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.cases import cases, full
from tests.support.forked import Command
from tests.support.runs import differences
from tests.support.waiting import until

WORKSPACE = ROOT / "tests" / "support" / "chaos" / "workspace"

# Where a run is held for a while, its exit code, and the steps of which one is the last that is saved then.
PHASES = {
    "import": (-signal.SIGTERM, (None,)),
    "build": (-signal.SIGTERM, (None,)),
    "restore": (-signal.SIGTERM, (None,)),
    "trace": (143, (1,)),
    "input": (143, range(26, 31)),
    "evaluate": (143, (30,)),
    "step": (143, range(26, 61)),
    "evaluate_input": (143, (30, 60)),
    "export": (0, (60,)),
}


class HeldRun:
    """`train held`, held in a phase."""

    def __init__(self, folder, phase=None, *words, **env):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.model_dir, self.held = str(self.folder / "run"), self.folder / "held"
        self.held.unlink(missing_ok=True)
        argv = ["train", "--experiment=held", f"--model_dir={self.model_dir}", *words]
        env = {"HELD": str(self.held), **env, **({"HOLD": phase} if phase else {})}
        self.command = Command(argv, cwd=WORKSPACE, folder=self.folder, env=env)

    def wait_until_held(self):
        until(lambda: self.held.exists() or not self.command.process.is_alive())
        assert self.held.exists(), self.command.wait()
        time.sleep(0.1)  # let it get into the call that holds it

    def send(self, number):
        os.kill(self.command.process.pid, number)

    def status(self):
        return json.loads(pathlib.Path(self.model_dir, "status.json").read_text())

    def error(self):
        """Returns the error on record, which both files have."""
        error = json.loads(pathlib.Path(self.model_dir, "run.json").read_text())["error"]
        assert self.status()["error"] == error
        return error


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    run = HeldRun(tmp_path_factory.mktemp("unbroken") / "whole")
    done = run.command.wait()
    assert done.code == 0, done
    return run.model_dir


@pytest.mark.parametrize("phases", [" ".join(PHASES), *map(full, PHASES)])
def test_sigterm_in_any_phase_and_the_same_command_continues(phases, unbroken, tmp_path):
    """N5, N6: before the first window the signal ends the process; then it saves; in the end all is as unbroken."""
    for phase in phases.split():
        code, steps = PHASES[phase]
        run = HeldRun(tmp_path / "run", phase, HOLD_SECONDS="1")
        run.wait_until_held()
        run.send(signal.SIGTERM)
        done = run.command.wait()
        assert done.code == code, (phase, done)
        saved = max(committed_steps(run.model_dir), default=None)
        assert saved in steps, phase
        if code == 143:
            assert f"stopped: SIGTERM at step {saved}, which is saved; the same command continues" in done.err
        if code >= 0:
            assert (run.status()["exit_code"], run.error()) == (code, None)
    assert HeldRun(tmp_path / "run").command.wait().code == 0
    assert differences(run.model_dir, unbroken) == []


@pytest.mark.parametrize("phase", ["step", *map(full, ("input", "evaluate_input"))])
def test_a_process_that_hangs_is_given_up_after_the_grace_period(phase, tmp_path):
    """N5, N6: the process ends with 75, and says what is lost; what was saved is there, and where it hung."""
    run = HeldRun(tmp_path / "run", phase, "--set=runtime.stop_grace_seconds=1", HOLD_HARD="1")
    run.wait_until_held()
    run.send(signal.SIGTERM)
    done = run.command.wait()
    assert done.code == 75
    saved = 30 if phase == "evaluate_input" else 20
    assert committed_steps(run.model_dir)[-1] == saved
    assert "stopped: SIGTERM, and runtime.stop_grace_seconds=1 later the run had not ended; the last" in done.err
    assert f"ckpt-{saved}; the same command continues" in done.err
    assert "in hold\n" in pathlib.Path(run.model_dir, "stop.txt").read_text()
    assert run.status()["exit_code"] == 75
    assert run.error().startswith("SIGTERM, and the process hung after step ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_the_process_at_once(number, code, tmp_path):
    """N5: though a step is computing that never ends."""
    run = HeldRun(tmp_path / "run", "step", HOLD_HARD="1")
    run.wait_until_held()
    run.send(number)
    time.sleep(0.7)
    run.send(number)
    assert run.command.wait().code == code


def test_sigterm_while_a_checkpoint_is_written_waits_for_it(unbroken, tmp_path):
    """N5, N3: training is ahead of the save; both steps are there afterwards."""
    run = HeldRun(tmp_path / "run", "save", HOLD_SECONDS="1")
    run.wait_until_held()
    run.send(signal.SIGTERM)
    assert run.command.wait().code == 143
    assert committed_steps(run.model_dir)[0] == 20
    assert HeldRun(tmp_path / "run").command.wait().code == 0
    assert differences(run.model_dir, unbroken) == []


def test_predictions_are_ended_by_the_signal_and_continued(unbroken, tmp_path):
    """N18, N5: shards that are whole stay; the same command writes the others."""
    shutil.copytree(unbroken, tmp_path / "run" / "run")
    words = ("--mode=predict", "--shard_size=8")
    run = HeldRun(tmp_path / "run", "evaluate_input", *words, HOLD_SKIP="3")
    run.wait_until_held()
    run.send(signal.SIGTERM)
    assert run.command.wait().code == -signal.SIGTERM
    done = HeldRun(tmp_path / "run", None, *words).command.wait()
    assert (done.code, " predictions of ckpt-60, 8 files in all: " in done.err) == (0, True), done.err


def test_a_run_directory_has_one_writer(unbroken, tmp_path):
    """N11, N6: a second process is told who is there, and touches nothing; a dead one's place is free."""
    first = HeldRun(tmp_path / "run", "input", "--set=trainer.async_checkpoint=false")
    first.wait_until_held()
    before = {path: path.stat().st_mtime_ns for path in pathlib.Path(first.model_dir).rglob("ckpt-*")}
    folder = tmp_path / "second"
    folder.mkdir()
    argv = ["train", "--experiment=held", f"--model_dir={first.model_dir}"]
    refused = Command(argv, cwd=WORKSPACE, folder=folder).wait()
    assert refused.code == 75
    assert f"--model_dir={first.model_dir} is in use by pid {first.command.process.pid} on " in refused.err
    assert "command: official-trainer train --experiment=held" in refused.err
    assert {path: path.stat().st_mtime_ns for path in pathlib.Path(first.model_dir).rglob("ckpt-*")} == before
    assert first.status()["exit_code"] is None
    first.send(signal.SIGKILL)
    first.command.wait()
    assert Command(argv, cwd=WORKSPACE, folder=folder).wait().code == 0
    assert differences(first.model_dir, unbroken) == []


STALLS = {
    "input": "while waiting for the next batch at step 2",
    "step": "while computing training steps at step 2",
    "evaluate_input": "while evaluating at step 30",
    "save": "while saving a checkpoint at step 4",
}
_TAKES_LONG = dict.fromkeys(("input", "evaluate_input"), pytest.mark.full)


@pytest.mark.parametrize("phase", [pytest.param(phase, marks=_TAKES_LONG.get(phase, ())) for phase in STALLS])
def test_a_stall_ends_the_process_with_the_stacks_of_all_threads(phase, unbroken, tmp_path):
    """N12, N6: exit code 5, on record; the same command continues from the last checkpoint."""
    limits = ("--set=runtime.stall_floor_seconds=2", "--set=runtime.stall_startup_seconds=30")
    run = HeldRun(tmp_path / "run", phase, *limits, HOLD_HARD="1")
    done = run.command.wait()
    assert done.code == 5, done
    assert STALLS[phase] in done.err
    report = pathlib.Path(run.model_dir, "stall-1.txt").read_text()
    assert "in hold\n" in report.replace('"', "")
    assert "MainThread" in report
    assert run.status()["exit_code"] == 5
    assert run.error().startswith("no progress for ") and STALLS[phase] in run.error()
    assert HeldRun(tmp_path / "run").command.wait().code == 0
    assert differences(run.model_dir, unbroken) == []


def test_the_first_time_of_everything_has_its_own_limit(tmp_path):
    """N12: a build that hangs is a stall too, but later."""
    run = HeldRun(
        tmp_path / "run", "build", "--set=runtime.stall_startup_seconds=3", "--set=runtime.stall_floor_seconds=1"
    )
    done = run.command.wait()
    assert done.code == 5
    assert "while building the run" in done.err
    assert "raise runtime.stall_startup_seconds" in done.err


def files_of(model_dir):
    return {path.name: path.read_bytes() for path in pathlib.Path(model_dir).glob("*") if path.is_file()}


@pytest.mark.parametrize("phase", cases(["evaluate_input", "evaluate"], "evaluate"))
def test_an_evaluator_that_hangs_is_ended_and_the_next_one_goes_on(phase, unbroken, tmp_path):
    """N12, N14: in its data or in a step: exit code 5, the stacks, and the lock and the lease hold up nobody."""
    model_dir = shutil.copytree(unbroken, tmp_path / "run" / "run")
    before = files_of(model_dir)
    words = ("--mode=continuous_eval", "--set=trainer.continuous_eval_timeout=0")
    limit = "--set=runtime.stall_floor_seconds=2"
    done = HeldRun(tmp_path / "run", phase, *words, limit, HOLD_HARD="1", HOLD_SKIP="10").command.wait()
    assert done.code == 5, done
    assert "while evaluating at step 40" in done.err  # eight batches each; the first one takes what it takes
    report = (model_dir / "stall-1.txt").read_text()
    assert "in hold\n" in report and "MainThread" in report
    assert (model_dir / "continuous_eval" / "lease.json").exists()  # it runs out by itself
    done = HeldRun(tmp_path / "run", None, *words).command.wait()
    assert done.code == 0, done
    rows = read_rows(str(model_dir / "continuous_eval" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [20, 40, 60]
    after = files_of(model_dir)
    assert {name: after[name] for name in before} == before  # the trainer's own records


@pytest.mark.full
def test_mode_eval_is_watched_too(unbroken, tmp_path):
    """N12: and leaves nothing but the report; all of it is done for the first time, so the other limit holds."""
    model_dir = shutil.copytree(unbroken, tmp_path / "run" / "run")
    before = files_of(model_dir)
    limits = ("--set=runtime.stall_floor_seconds=2", "--set=runtime.stall_startup_seconds=10")
    done = HeldRun(tmp_path / "run", "evaluate_input", "--mode=eval", *limits, HOLD_HARD="1").command.wait()
    assert done.code == 5, done
    assert "while evaluating at step 60" in done.err
    after = files_of(model_dir)
    assert after.keys() - before.keys() == {"stall-1.txt"}
    assert {name: after[name] for name in before} == before


@pytest.mark.full
def test_the_time_limit_is_a_stop_like_any_other(unbroken, tmp_path):
    """N5: saved, with exit code 143."""
    run = HeldRun(tmp_path / "run", "input", "--set=runtime.max_wall_seconds=20", HOLD_SECONDS="22")
    done = run.command.wait()
    assert done.code == 143
    assert re.search(r"runtime.max_wall_seconds=20 is over at step \d+, which is saved", done.err)
    assert HeldRun(tmp_path / "run").command.wait().code == 0
    assert differences(run.model_dir, unbroken) == []
