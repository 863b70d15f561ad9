"""A process of this machine that is forked from one with TensorFlow imported, by Python's own fork server.

Owns: what the fork server imports; a process that runs a module as `python -m` would, with its environment and output;
how it ends, and that all it has started ends with it.
Does not own: when it is started and stopped (`attempt.py`, `sweeps/driver.py`).

The fork server imports modules (`training_imports.py`), TensorFlow among them, and never starts TensorFlow's runtime: a
process with a running runtime cannot be forked. It knows nothing of the user's code. Each process has a session of its
own, so Ctrl-C in a terminal reaches the launcher alone. A process ends with the one that asked for it, however that
ends: a thread of it waits for that, and kills all that the process has started too.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import connection, resource_tracker

from official_trainer import lazy
from official_trainer.errors import ExitCode, UserError

CONTEXT = multiprocessing.get_context("forkserver")
_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOST = 255
"""What multiprocessing calls the exit code of a process whose fork server was killed."""
_SERVER_ENDS_SECONDS = 1.0
_READ_BYTES = 1 << 16


def wait(processes: Iterable[ForkedProcess], *descriptors: int, seconds: float | None = None) -> None:
    """Waits until a process has ended or a descriptor can be read, for so long at most."""
    connection.wait([*(process.sentinel for process in processes), *descriptors], seconds)


class ForkServerError(UserError, RuntimeError):
    """The process that forks others was killed, or cannot start."""

    exit_code = ExitCode.RETRY


def preload(*modules: str) -> None:
    """Has the fork server import modules when it starts, with the first process.

    Args:
      modules: their names; without any, what training needs, with the Keras of the experiment that this process has
        read.
    """
    kerases = [name for name, version in (("keras", 3), ("tf_keras", 2)) if lazy.uses_keras(version)]
    lazy.select()  # what TensorFlow reads from the environment, of which the fork server gets a copy
    CONTEXT.set_forkserver_preload(list(modules) or [*kerases, "official_trainer.processes.training_imports"])


class ForkedProcess:
    """A running command.

    Attributes:
      pid: its process id, which is also that of its process group.
      sentinel: is ready to be read once it has ended; see `wait`.
      output: from which both of its streams are read; None if they are in a file, and at their end.
    """

    _has_server = False  # whether this process has forked one before

    def __init__(self, argv: Sequence[str], *, environ: Mapping[str, str], output: str = "") -> None:
        """Starts a command.

        Args:
          argv: a module and its arguments, as after `python -m`.
          environ: its whole environment.
          output: the file to which both of its streams are appended; empty for a pipe.

        Raises:
          ForkServerError: it cannot be forked.
        """
        self.output: connection.Connection | None = None
        if output:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            written = connection.Connection(file, readable=False)
        else:
            self.output, written = CONTEXT.Pipe(duplex=False)
            os.set_blocking(self.output.fileno(), False)
        self._process = CONTEXT.Process(target=_run, args=(list(argv), dict(environ), written))
        # Slurm, for example, signals all processes of a job. The fork server inherits the mask and is not ended, else
        # the exit codes of the processes that save would be lost. Starting multiprocessing's tracker changes the mask,
        # so that comes before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            try:
                self._process.start()
            except (EOFError, ConnectionError):
                if not ForkedProcess._has_server:
                    raise
                time.sleep(_SERVER_ENDS_SECONDS)  # it was killed, and has not ended yet
                self._process.start()
            ForkedProcess._has_server = True
        except (EOFError, ConnectionError) as error:
            what = "the process that forks others has ended; its error is above, or it was killed"
            raise ForkServerError(f"{what}; start again") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            written.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.sentinel: int = self._process.sentinel

    def exit_code(self) -> int | None:
        """Returns its exit code, negative for the signal that killed it; None while it runs.

        Once it has ended, all that it has started is killed.
        """
        code = self._process.exitcode
        if code is None:
            return None
        self._kill_group()
        return -signal.SIGKILL if code == _LOST else code

    def read(self) -> bytes:
        """Returns output that has come, without waiting; empty if there is none."""
        if self.output is None:
            return b""
        try:
            data = os.read(self.output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.close()
        return data

    def close(self) -> None:
        """Reads no more output."""
        if self.output is not None:
            self.output.close()
            self.output = None

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kills it, and all that it has started."""
        self._kill_group()
        self._process.kill()  # also before it has a group of its own

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _run(argv: list[str], environ: dict[str, str], output: connection.Connection) -> None:
    """Called in the forked process: runs a module as `python -m` would."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    multiprocessing.set_start_method(None, force=True)  # else that of this process would be the default of the user's
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(output.fileno(), descriptor)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    output.close()
    os.environ.clear()
    os.environ.update(environ)
    if "numpy.random" in sys.modules:  # else all forked processes would draw the same numbers
        sys.modules["numpy.random"].seed()
    module, *arguments = argv
    sys.argv[:] = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # as at Python's own exit: a save in the background is finished


def _end_with_parent() -> None:
    """Waits until the process that asked for this one has ended, and kills this one with all that it has started."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.killpg(os.getpid(), signal.SIGKILL)
