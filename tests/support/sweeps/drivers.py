"""Drivers of sweeps in processes that start in milliseconds, and are killed: while they wait, or at any time.

A driver is forked from a process that has imported TensorFlow, and its trials from the driver, where a user's are
forked from Python's fork server. Everything else is as it is for a user.
"""

import contextlib
import functools
import os
import shutil
import signal
import sys
from pathlib import Path

import optuna
import psutil

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.sweeps import distributions, results, space
from tests import ROOT
from tests.support import runs
from tests.support.forked import Command, run_command
from tests.support.processes.from_here import fork_processes
from tests.support.processes.jobs import ENDED
from tests.support.waiting import until

WORKSPACE = ROOT / "tests" / "support" / "sweeps" / "workspace"
OUT = "out"
"""The directory of the sweep, in its folder."""


class Driver(Command):
    """A process that works on the sweep in a folder.

    Args:
      folder: where; its output goes to a folder in it that is called `name`.
      words: of its command.
      name: of the driver.
    """

    def __init__(self, folder, words, name="driver"):
        output = Path(folder) / name
        output.mkdir(exist_ok=True)
        self._mark = output / "dies"
        first = functools.partial(_prepare, str(self._mark))
        super().__init__(words, cwd=folder, folder=output, first=first, starts_processes=True)

    def kill(self):
        """Kills it wherever it is; returns whether it still ran."""
        self.process.kill()
        return self._was_killed()

    def kill_idle(self):
        """Kills it as it waits for its trials, and so does nothing to the study; returns whether it still ran."""
        self._mark.touch()
        return self._was_killed()

    def kill_trial(self):
        """Kills the process of a trial; returns whether there was one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for trial in psutil.Process(self.process.pid).children()[-1:]:
                trial.kill()
                return True
        return False

    def _was_killed(self):
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


class Sweep:
    """A sweep in a folder, which is started, struck and started again.

    Attributes:
      directory: of the sweep.
    """

    def __init__(self, folder, text, *words):
        self.folder = Path(folder)
        shutil.copytree(WORKSPACE, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.folder = self.folder.resolve()
        (self.folder / "space.yaml").write_text(text)
        self._sets = words
        self._words = ("sweep", "points", "--space=space.yaml", f"--model_dir={OUT}", *words)
        self._count = 0
        self.directory = self.folder / OUT

    def start(self):
        """Returns a driver."""
        self._count += 1
        return Driver(self.folder, self._words, f"driver-{self._count}")

    def finish(self):
        """Runs it to its end; returns what it printed."""
        done = self.start().wait()
        assert done.code == 0, done.out + done.err
        return done.out

    def study(self):
        """Returns its study, opened by Optuna alone."""
        backend = optuna.storages.journal.JournalFileBackend(str(self.directory / "study.log"))
        return optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))

    def table(self):
        """Returns what does not depend on time."""
        return [
            (trial.number, trial.params, trial.state.name, trial.values, trial.intermediate_values)
            for trial in self.study().get_trials()
        ]

    def has_trained(self, number, rows=1):
        """Whether a trial has written so many rows."""
        path = self.run(number) / "metrics.jsonl"
        return path.exists() and path.read_text().count("\n") >= rows

    def run(self, number):
        """Returns the run directory of a trial."""
        return self.directory / "trials" / str(number) / "run"

    def check_trials(self, total, unbroken=None):
        """So many trials are done, none is left or there twice, and each has the bits of a run alone, or unbroken."""
        summary = results.summary(str(self.directory))
        assert sum(summary["counts"].get(state, 0) for state in ("complete", "pruned")) == total, summary["counts"]
        assert summary["counts"].keys() <= {"complete", "pruned"}, summary["counts"]
        drawn = [str(sorted(trial["params"].items())) for trial in summary["trials"]]
        assert len(set(drawn)) == len(drawn) == total
        for trial in summary["trials"]:
            run, number = self.run(trial["number"]), trial["number"]
            alone = self._train_alone(trial) if unbroken is None else unbroken.run(number)
            if trial["state"] == "complete":
                assert runs.differences(str(run), str(alone)) == [], number
                continue
            step = max(committed_steps(str(run)), default=None)  # one that is pruned may have ended before its first
            if step in committed_steps(str(alone)):
                assert runs.bits(f"{run}/ckpt-{step}") == runs.bits(f"{alone}/ckpt-{step}")

    def _train_alone(self, trial):
        """Trains with the values of a trial; returns the run directory."""
        number = trial["number"]
        described = results.identity(str(self.directory))["sweep"]["space"]
        fields = [distributions.read(path, written) for path, written in described.items()]
        lines = [f"{path}: {text}" for path, text in space.texts(fields, trial["params"])]
        (self.folder / f"best-{number}.yaml").write_text("\n".join(lines))
        sets = [word for word in self._sets if not word.startswith("--")]
        words = ["train", "points", f"--config_file=best-{number}.yaml", f"--model_dir=alone/{number}", *sets]
        output = self.folder / f"output-{number}"
        output.mkdir(exist_ok=True)
        done = run_command(words, cwd=self.folder, folder=output)
        assert done.code == 0 or trial["state"] != "complete", done.err
        return self.folder / "alone" / str(number)

    def wait_until_gone(self):
        """Waits until no process works in the folder any more; fails if one stays."""
        until(lambda: not left_in(self.folder), lambda: left_in(self.folder))


def left_in(folder):
    """Returns the process ids of all processes that work in a folder."""
    running = [process for process in psutil.process_iter(["cwd", "status"]) if process.info["status"] not in ENDED]
    return [process.pid for process in running if process.info["cwd"] == str(folder)]


def _prepare(mark):
    """Called in the process of a driver: has trials forked, and dies as it begins to wait once the mark is there."""
    from official_trainer.processes import forked

    fork_processes()
    wait = forked.wait

    def wait_or_die(*arguments, **options):
        if os.path.exists(mark):
            os.kill(os.getpid(), signal.SIGKILL)
        wait(*arguments, **options)

    forked.wait = wait_or_die
    sys.stdin.close()
