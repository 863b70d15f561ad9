"""A process of a run hangs though it lives and listens: every process ends, says why, and the exit codes are right."""

import json
import shutil
import signal
import tempfile
import time

import pytest

from tests import ROOT
from tests.support.distributed.clusters import LocalCluster

EXPERIMENT = ROOT / "tests" / "support" / "chaos" / "workspace" / "experiments" / "held.py"
LIMITS = ("runtime.stall_floor_seconds=8", "runtime.stall_startup_seconds=60", "runtime.collective_timeout_seconds=10")


def be_impatient():
    """Has the watchdog take twice the longest gap for a stall, and not ten times: to trace a step takes seconds."""
    from official_trainer.runs.health import watchdog

    watchdog.FACTOR = 2


class Run:
    """Two workers on `held`, of which one is held in a phase."""

    def __init__(self, folder, phase, *, held, sets=LIMITS, hard=""):
        self.model_dir, self.mark = folder / "run", folder / "held"
        (folder / "experiments").mkdir()
        shutil.copy(EXPERIMENT, folder / "experiments")
        words = [f"--set={word}" for word in ("runtime.distribution_strategy=multi_worker_mirrored", *sets)]
        self.cluster = LocalCluster(
            {"worker": 2},
            argv=["train", "--experiment=held", f"--model_dir={self.model_dir}", *words],
            cwd=folder,
            folder=tempfile.mkdtemp(prefix="output-", dir=folder),
            first=be_impatient,
        )
        self._env = {"HOLD": phase, "HELD": str(self.mark), "HOLD_SECONDS": "10000", "HOLD_HARD": hard}
        self._held = held

    def __enter__(self):
        for index in (0, 1):
            self.cluster.start("worker", index, env=self._env if index == self._held else None)
        self.cluster.wait_for(self.mark.exists)
        return self

    def __exit__(self, *error):
        self.cluster.__exit__(*error)

    def codes(self):
        return [self.cluster.wait("worker", index) for index in (0, 1)]

    def wait_until_all_wait(self):
        """Waits until no process writes its status: with the data that is prefetched, later than one is held."""
        folders = [self.model_dir, self.model_dir / "workers" / "worker-1"]

        def is_still():
            return time.time() - max((folder / "status.json").stat().st_mtime for folder in folders) > 8

        self.cluster.wait_for(is_still)

    def report(self, index):
        """Returns the only report of a process."""
        folder = self.model_dir if index == 0 else self.model_dir / "workers" / "worker-1"
        (path,) = folder.glob("stall-*.txt")
        return path.read_text()

    def recorded(self, index):
        folder = self.model_dir if index == 0 else self.model_dir / "workers" / "worker-1"
        status = json.loads((folder / "status.json").read_text())
        return status["exit_code"], status["error"]


@pytest.mark.full
@pytest.mark.parametrize("held", [0, 1])
def test_who_hangs_says_5_and_who_waited_for_it_says_75(tmp_path, held):
    """N12, T16: an input pipeline hangs for ever: both end by themselves, and the reason is with the one that hangs."""
    with Run(tmp_path, "input", held=held) as run:
        codes, said = run.codes(), run.cluster.outputs()
        other = 1 - held
        assert (codes[held], codes[other]) == (5, 75), said
        assert "while waiting for the next batch at step " in run.report(held), said
        assert "in hold\n" in run.report(held), said
        assert run.recorded(held)[0] == 5 and run.recorded(other)[0] == 75, said


@pytest.mark.full
def test_who_waits_for_others_does_so_for_its_own_time(tmp_path):
    """N12, T16: a step that others compute too has `collective_timeout_seconds`, and its end is no stall."""
    limits = ("runtime.stall_floor_seconds=100", "runtime.collective_timeout_seconds=5")
    with Run(tmp_path, "input", held=1, sets=limits) as run:
        assert run.cluster.wait("worker", 0) == 75, run.cluster.outputs()
        assert "raise runtime.collective_timeout_seconds" in run.report(0)
        assert "in run_steps\n" in run.report(0)
        code, error = run.recorded(0)
        assert code == 75 and error.startswith("no progress for ")


@pytest.mark.full
def test_a_chief_that_hangs_in_a_save_is_the_only_one_that_complains(tmp_path):
    """N12, T16: the others have nothing to do meanwhile, and only lose it."""
    limits = (*LIMITS, "runtime.stall_startup_seconds=8")
    with Run(tmp_path, "save", held=0, sets=limits) as run:
        codes, said = run.codes(), run.cluster.outputs()
        assert codes == [5, 75], said
        assert "in hold\n" in run.report(0), said
        assert not list((run.model_dir / "workers").rglob("stall-*")), said
        assert "error: lost worker 0 (127.0.0.1:" in run.cluster.err("worker", 1), said
        assert "Stacks" not in run.cluster.err("worker", 1), said


@pytest.mark.full
def test_sigterm_ends_all_in_the_grace_period_though_one_hangs(tmp_path):
    """N5, T16: the steps since the last checkpoint are lost, so it is 75 and no 143, whoever hangs."""
    sets = ("runtime.stop_grace_seconds=2", "runtime.collective_timeout_seconds=60")
    with Run(tmp_path, "input", held=1, sets=sets) as run:
        run.wait_until_all_wait()
        for index in (0, 1):
            run.cluster.signal("worker", index, signal.SIGTERM)
        codes, said = run.codes(), run.cluster.outputs()
        assert codes == [75, 75], said
        assert "stop_grace_seconds=2 later the run had not ended" in run.cluster.err("worker", 1), said
        assert "the last good checkpoint is the chief's" in run.cluster.err("worker", 1), said
        assert "SIGTERM in the middle of what all processes do" in run.recorded(1)[1]
