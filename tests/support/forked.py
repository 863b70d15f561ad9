"""Commands in processes of their own that start in milliseconds: forked from one that has imported TensorFlow.

The server imports TensorFlow but never starts its runtime, because a process that has started it cannot be forked.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

from tests import ROOT
from tests.support.chaos import disk

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preload"])

TIMEOUT_SECONDS = 240


@dataclasses.dataclass(frozen=True)
class Completed:
    """How a command ended."""

    code: int
    out: str
    err: str


def start_server():
    """Starts the fork server of this process, if none runs, with the library of `disk.c`, which its forks may need."""
    # The server imports from its folder: elsewhere it would find the `tests` that another package has installed.
    with disk.preloaded(), contextlib.chdir(ROOT):
        forkserver.ensure_running()


class Child:
    """A process that calls `target` in `cwd`, with its output in files of `folder`; `first` is called before.

    It ends with this process, unless it `starts_processes` with `multiprocessing`, which then is not allowed.
    """

    def __init__(self, target, *, cwd, folder, env=None, first=None, starts_processes=False):
        self._out, self._err = Path(folder) / "out.txt", Path(folder) / "err.txt"
        arguments = (target, str(cwd), str(self._out), str(self._err), dict(env or {}), first)
        start_server()
        self.process = _context.Process(target=_main, args=arguments, daemon=not starts_processes)
        self.process.start()

    @property
    def out(self):
        return self._out.read_text() if self._out.exists() else ""

    @property
    def err(self):
        return self._err.read_text() if self._err.exists() else ""

    def wait(self):
        self.process.join(TIMEOUT_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running after {TIMEOUT_SECONDS} s:\n{self.out}\n{self.err}")
        return Completed(self.process.exitcode, self.out, self.err)


class Command(Child):
    """`official-trainer ARGV…` in a child process."""

    def __init__(self, argv, **options):
        super().__init__(functools.partial(_run, list(argv)), **options)


def run_command(argv, *, cwd, folder):
    """Runs a command to its end."""
    return Command(argv, cwd=cwd, folder=folder).wait()


def _run(argv):
    from official_trainer import cli

    return cli.main(argv)


def _main(target, cwd, out, err, env, first):
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a sweep of the test before may have started the fork server
    os.environ.pop("LD_PRELOAD", None)  # which is for this process, not for those that it starts
    os.environ.update(env)
    for stream, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    if first is not None:
        first()
    code = target() or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def train_digits(model_dir, folder):
    """Trains `digits_mlp` for a few steps."""
    words = ["--experiment=digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", "trainer.export.at_end=false"]
    return run_command(["train", f"--model_dir={model_dir}", *words], cwd=ROOT, folder=folder)


def trained_digits(folder):
    """Trains `digits_mlp` in a folder; returns its run directory."""
    assert train_digits(folder / "run", folder).code == 0
    return folder / "run"
