"""Jobs of scripted processes, started by a launcher in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests import ROOT
from tests.support.waiting import until

TIMEOUT_SECONDS = 120
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
"""The states of a process that has ended, and for which its parent has not waited."""


class Launched:
    """A launcher with its processes; `out` and `err` once it has ended."""

    def __init__(self, folder, counts, sources, *, grace_seconds=60, log_dir=None, **options):
        self.folder = Path(folder)
        options = {"preload": ["json"], "peers_seconds": 60, "first_seconds": 0, **options}
        wanted = {"counts": counts, "sources": sources, "grace_seconds": grace_seconds, "log_dir": log_dir}
        command = [
            sys.executable,
            "-m",
            "tests.support.processes.launcher",
            str(folder),
            json.dumps({**wanted, "options": options}),
        ]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def wait(self):
        """Returns the exit code; nothing that was started may be left."""
        try:
            self.out, self.err = self.process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"still running:\n{self.process.communicate()}") from None
        assert not [pid for pid in self.pids() if is_alive(pid)], self.out
        return self.process.returncode

    def pids(self):
        return [int(path.read_text()) for path in self.folder.glob("pid of *") if "." not in path.name]

    def until(self, *marks):
        """Waits until processes have left these marks."""

        def are_there():
            are_left = all((self.folder / mark).exists() for mark in marks)
            assert are_left or self.process.poll() is None, self.process.communicate()
            return are_left

        until(are_there)

    def fork_server(self):
        """Returns the pid of the process that forked the others."""
        return psutil.Process(int((self.folder / "pid of worker 0").read_text())).ppid()


def is_alive(pid):
    """Whether a process runs; one that has ended, and for which its parent has not waited, does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in ENDED
    return False
