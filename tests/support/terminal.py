"""Terminals: a stream that says it is one, and a real one for a process of its own."""

import contextlib
import io
import os
import pty
import subprocess

from tests import ROOT


class Terminal(io.StringIO):
    """Keeps what is written to it."""

    def isatty(self):
        return True


@contextlib.contextmanager
def on_a_terminal(command, cwd, **environ):
    """Runs a command as the leader of a session on a terminal of its own; yields the process and the terminal's end."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environ}

    def take():
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that is opened becomes that of the session

    process = subprocess.Popen(
        command, cwd=cwd, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
