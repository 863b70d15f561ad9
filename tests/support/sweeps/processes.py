"""A driver of a sweep in a process that starts in milliseconds, its starter and its trials with it, struck on request.

The driver is forked from a process that has imported TensorFlow, and its starter from the driver, where a user's is a
new Python. Everything else is as it is for a user.
"""

import contextlib
import functools
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from official_trainer import files
from official_trainer.errors import UserError
from tests.support.chaos import disk
from tests.support.forked import Child

GONE_SECONDS = 60


class Driver(Child):
    """A process that works on a sweep.

    Args:
      target: what it does.
      folder: where; its output goes to a folder in it that is called `name`.
      first: called before everything else.
      trials: (trial, change) → fault; see `disk.arm`. The trial's first process fails at that change of its run.
      env: more of the environment.
    """

    def __init__(self, target, folder, name="driver", first=None, trials=(), env=None):
        output = Path(folder) / name
        output.mkdir(exist_ok=True)
        first = functools.partial(_prepare, first, tuple(trials), str(output))
        super().__init__(target, cwd=folder, folder=output, first=first, env=env)

    @property
    def starter(self):
        """The process id of its starter; None if it has none."""
        return next(iter(children_of(self.process.pid)), None)

    @property
    def trials(self):
        """The process ids of its trials, and of what tries the first one."""
        return children_of(self.starter) if self.starter else []


def command(*words):
    """Returns what a driver does: a command."""
    return functools.partial(_command, words)


def script(name, *words):
    """Returns what a driver does: a program of Python."""
    return functools.partial(_script, name, words)


def children_of(pid):
    """Returns the process ids of the children of a process."""
    return [number for number, parent in _parents() if parent == pid]


def left_in(folder):
    """Returns the process ids of all processes that work in a folder."""
    folder, found = str(folder), []
    for number, _ in _parents():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{number}/cwd") == folder:
                found.append(number)
    return found


def wait_until_gone(folder):
    """Waits until no process works in a folder any more; fails if one stays."""
    end = time.monotonic() + GONE_SECONDS
    while found := left_in(folder):
        if time.monotonic() > end:
            commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found]
            raise AssertionError(f"still there after {GONE_SECONDS} s: {found} {commands}")
        time.sleep(0.05)


def _parents():
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                status = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if status[0] != "Z":
                    yield int(name), int(status[1])


def _command(words):
    from official_trainer import cli

    return cli.main(list(words))


def _script(name, words):
    sys.argv[:] = [name, *words]
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        return end.code
    except (UserError, OSError) as error:
        known = files.as_storage_error(error) if isinstance(error, OSError) else error
        if known is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        return int(known.exit_code)


def _prepare(first, trials, folder):
    """Called in the process of a driver."""
    from official_trainer.processes import children, commands

    children.subprocess = _Subprocess
    commands.run = functools.partial(_run_one, commands.run, trials, folder)
    if first is not None:
        first()


class _ForkedStarter:
    """What `subprocess.Popen` returns for a starter."""

    def __init__(self, command, *, pass_fds, stdin, start_new_session):
        self._code = None
        self.pid = os.fork()
        if not self.pid:
            _become_starter(command, pass_fds)

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                break
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("starter", timeout)
            time.sleep(0.01)
        return self._code

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class _Subprocess:
    """In place of the module."""

    DEVNULL, TimeoutExpired, Popen = subprocess.DEVNULL, subprocess.TimeoutExpired, _ForkedStarter


def _become_starter(command, kept):
    code = 1
    try:
        os.setsid()
        disk.arm("/nowhere")
        (control,) = kept
        os.closerange(3, control)
        os.closerange(control + 1, 4096)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.argv[:] = ["-c", *command[3:]]
        exec(command[2], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_one(run, trials, folder, argv, environ):
    """Runs a command, which is struck if it is the first one of a trial that is to be struck."""
    disk.arm("/nowhere")
    for number, change, fault in trials:
        place = next((word for word in argv if f"trials/{number}/run" in word), None)
        if place is None:
            continue
        with contextlib.suppress(FileExistsError):
            log = f"{folder}/trial-{number}"
            os.close(os.open(log, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            directory = os.path.realpath(place.rpartition("=")[2])
            disk.arm(directory, change, fault, lasts=fault > 0, log=log)
    run(argv, environ)
