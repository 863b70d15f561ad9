"""`launch local` for real processes, all forked from one that has imported TensorFlow; any of them can be killed."""

import contextlib
import os
import re
import signal
from pathlib import Path

import psutil

from tests.support.forked import Command
from tests.support.processes.from_here import fork_processes
from tests.support.processes.jobs import is_alive
from tests.support.waiting import until

LAUNCHER = "launcher"


class LocalJob:
    """A job on this machine; use it in a `with` block, after which nothing of it runs.

    A process is named as the launcher names it: `worker 0`; so is the `launcher`.
    """

    def __init__(self, argv, *, cwd, folder, env=None):
        Path(folder).mkdir(parents=True)
        argv = ["launch", "local", *argv]
        self._child = Command(argv, cwd=cwd, folder=folder, env=env, first=_prepare, starts_processes=True)
        self._seen = {self._child.process.pid}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._note()
        self._child.process.kill()
        for pid in self._seen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.process.join()

    @property
    def out(self):
        """What was printed to the standard output so far."""
        return self._child.out

    @property
    def output(self):
        return f"{self._child.out}\n{self._child.err}"

    def kill(self, name):
        """Kills a process with SIGKILL; returns whether it ran."""
        self._note()
        pid = self._pid(name)
        is_there = pid is not None and is_alive(pid)
        if is_there:
            os.kill(pid, signal.SIGKILL)
        return is_there

    def tell(self, number=signal.SIGTERM):
        """Sends a signal to the launcher."""
        os.kill(self._child.process.pid, number)

    def until(self, is_so):
        """Returns when `is_so()` holds, or the job has ended."""
        until(lambda: is_so() or not self.runs())

    def runs(self):
        return self._child.process.exitcode is None

    def wait(self):
        """Returns the launcher's exit code, when it and all processes that were seen have ended."""
        code = self._child.wait().code
        until(lambda: not self.left())
        return code

    def left(self):
        """Returns the processes of the job that still run."""
        return [pid for pid in self._seen if is_alive(pid)]

    def _pid(self, name):
        if name == LAUNCHER:
            return self._child.process.pid
        found = re.findall(rf"\b{re.escape(name)} \(pid (\d+)\)", self._child.out)
        return int(found[-1]) if found else None

    def _note(self):
        """Remembers the processes that run now, so that their end can be seen when their parents are gone."""
        for pid in [*self._seen]:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._seen |= {child.pid for child in psutil.Process(pid).children(recursive=True)}


def _prepare():
    fork_processes()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # ignored if pytest runs in the background
