"""Drivers of sweeps in processes that start in milliseconds, and are killed: while they wait, or at any time.

A driver is forked from a process that has imported TensorFlow, and its trials from the driver, where a user's are
forked from Python's fork server. Everything else is as it is for a user.
"""

import contextlib
import functools
import mmap
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import optuna
import psutil

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.sweeps import distributions, results, space
from tests import ROOT
from tests.support import runs
from tests.support.forked import Child, run_command
from tests.support.processes.from_here import fork_processes
from tests.support.processes.jobs import ENDED

WORKSPACE = ROOT / "tests" / "support" / "sweeps" / "workspace"
OUT = "out"
"""The directory of the sweep, in its folder."""

_LONGEST_SECONDS = 240


class Driver(Child):
    """A process that works on the sweep in a folder.

    Args:
      folder: where; its output goes to a folder in it that is called `name`.
      words: of its command.
      name: of the driver.
    """

    def __init__(self, folder, words, name="driver"):
        output = Path(folder) / name
        output.mkdir(exist_ok=True)
        mark = output / "idle"
        mark.write_bytes(b"\0")
        with mark.open("r+b") as file:
            self._idle = mmap.mmap(file.fileno(), 1)
        first = functools.partial(_prepare, str(mark))
        target = functools.partial(run_verb, list(words))
        super().__init__(target, cwd=folder, folder=output, first=first, starts_processes=True)

    def kill(self):
        """Kills it wherever it is; returns whether it still ran."""
        return self._send(signal.SIGKILL)

    def kill_idle(self):
        """Kills it while it waits for its trials, and so does nothing to the study; returns whether it still ran."""
        while self.process.is_alive():
            if self._send(signal.SIGSTOP) and self._is_stopped() and self._idle[0]:
                return self.kill()
            self._send(signal.SIGCONT)
            time.sleep(random.random() / 100)
        return False

    def kill_trial(self):
        """Kills the process of a trial; returns whether there was one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for trial in psutil.Process(self.process.pid).children()[-1:]:
                trial.kill()
                return True
        return False

    def _send(self, number):
        """Sends a signal; returns whether the process still ran."""
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.process.pid).send_signal(number)
            return True
        return False

    def _is_stopped(self):
        """Waits until the process, which was told so, has stopped; returns False if it has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            while (status := psutil.Process(self.process.pid).status()) not in (psutil.STATUS_STOPPED, *ENDED):
                time.sleep(0.001)
            return status == psutil.STATUS_STOPPED
        return False


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

    def until(self, condition):
        """Waits for something; returns whether it came."""
        end = time.monotonic() + _LONGEST_SECONDS
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)
        return time.monotonic() < end

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
        assert self.until(lambda: not left_in(self.folder)), left_in(self.folder)


def left_in(folder):
    """Returns the process ids of all processes that work in a folder."""
    running = [process for process in psutil.process_iter(["cwd", "status"]) if process.info["status"] not in ENDED]
    return [process.pid for process in running if process.info["cwd"] == str(folder)]


def run_verb(words):
    from official_trainer import cli

    return cli.main(words)


def _prepare(mark):
    """Called in the process of a driver: has trials forked, and marks when it waits for them."""
    from official_trainer.processes import forked

    fork_processes()
    with open(mark, "r+b") as file:
        idle = mmap.mmap(file.fileno(), 1)
    wait = forked.wait

    def marked(*arguments, **options):
        idle[0] = 1
        try:
            wait(*arguments, **options)
        finally:
            idle[0] = 0

    forked.wait = marked
    sys.stdin.close()
