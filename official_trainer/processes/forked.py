"""A process of this machine that is forked from one with TensorFlow imported, by Python's own fork server.

Owns: what the fork server imports; a command's process, with its environment and output, and how it has ended.
Does not own: what the process runs (`commands.py`), when it is started and stopped (`sweeps/driver.py`).

The fork server imports modules, TensorFlow among them, and never starts TensorFlow's runtime: a process with a running
runtime cannot be forked. It knows nothing of the user's code. Each process has a session of its own, so Ctrl-C in a
terminal reaches the driver alone. A process ends with the driver that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import connection, resource_tracker

from official_trainer.errors import ExitCode, UserError
from official_trainer.processes import commands

CONTEXT = multiprocessing.get_context("forkserver")
_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOST = 255
"""What multiprocessing calls the exit code of a process whose fork server was killed."""


def wait(processes: Iterable[ForkedProcess], *descriptors: int, seconds: float | None = None) -> None:
    """Waits until a process has ended or a descriptor can be read, for so long at most."""
    connection.wait([*(process.sentinel for process in processes), *descriptors], seconds)


class ForkServerError(UserError, RuntimeError):
    """The process that forks others was killed, or cannot start."""

    exit_code = ExitCode.RETRY


def preload(modules: Sequence[str]) -> None:
    """Has the fork server import modules when it starts, with the first process."""
    CONTEXT.set_forkserver_preload(list(modules))


class ForkedProcess:
    """A running command.

    Attributes:
      pid: its process id, which is also that of its process group.
      sentinel: is ready to be read once it has ended; see `wait`.
    """

    def __init__(self, argv: Sequence[str], *, environ: Mapping[str, str], output: str) -> None:
        """Starts a command.

        Args:
          argv: a module and its arguments, as after `python -m`.
          environ: its whole environment.
          output: the file to which both of its streams are appended.

        Raises:
          ForkServerError: it cannot be forked.
        """
        self._process = CONTEXT.Process(target=_run, args=(list(argv), dict(environ), output))
        # Slurm, for example, signals all processes of a job. The fork server inherits the mask and is not ended, else
        # the exit codes of the processes that save would be lost. Starting multiprocessing's tracker changes the mask,
        # so that comes before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self._process.start()
        except (EOFError, ConnectionError) as error:
            what = "the process that forks others has ended; its error is above, or it was killed"
            raise ForkServerError(f"{what}; start again") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
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

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kills it, and all that it has started."""
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _run(argv: list[str], environ: dict[str, str], output: str) -> None:
    """Called in the forked process."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        commands.run(argv, environ)
    except BaseException:
        commands.end_children(0.0)  # so that the last line is that of the error
        raise
    commands.end_children()


def _end_with_parent() -> None:
    """Waits until the process that asked for this one has ended, and kills this one with all that it has started."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.killpg(os.getpid(), signal.SIGKILL)
