"""The commands of one forked process: one, or several that follow each other.

Owns: running a module as `python -m` would, taking the next command over a pipe, ending processes for which Python's
exit would wait for ever.
Does not own: which process gets a command (`starter.py`), what is put back between two (`kept.py`).

A command that does not end with exit code 0 ends the process, as it would alone, and so does the last one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import active_children, reduction
from multiprocessing.connection import Connection

from official_trainer.distributed.began import BEGAN
from official_trainer.errors import first_few
from official_trainer.warm.kept import KeptProcess

_PR_SET_PDEATHSIG = 1
_CHILD_SECONDS = 3.0  # for one that was told to end


def run_one(argv: Sequence[str], environ: dict[str, str]) -> None:
    """Runs a module as `python -m` would, in a forked process; returns if its exit code is 0.

    Args:
      argv: a module and its arguments.
      environ: the whole environment.
    """
    os.environ.clear()
    os.environ.update(environ)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    draw_anew()
    module, *arguments = argv
    sys.argv[:] = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    _flush()


def draw_anew() -> None:
    """Seeds NumPy's global generator as at its import: else all forked processes would draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def run_several(argv: Sequence[str], environ: dict[str, str], control: Connection, most: int) -> None:
    """Runs a command, and those that come after it; returns after the last one.

    Args:
      argv: of the first command.
      environ: of all of them.
      control: is told of the end of each but the last one, and sends the next one and the descriptor of its output.
      most: the number of commands after which the process ends.
    """
    process = KeptProcess()
    for number in range(1, most + 1):
        run_one(argv, environ)
        if number == most:
            return
        if why := process.why_not_again():
            print(f"the next command gets a new process: {why}", file=sys.stderr, flush=True)
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        _write_to(nowhere)
        control.send(None)
        process.clear()
        try:
            argv, output = control.recv(), reduction.recv_handle(control)
        except (EOFError, OSError):  # the starter is gone, or does not need this process any more
            os._exit(0)
        _write_to(output)
        environ = environ | {BEGAN: f"{os.getpid()} {time.monotonic()}"}


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, which it may have done already; on Linux.

    A process that others are forked from does not ask for this: it has to outlive the launcher until it has killed
    whole groups.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def end_children(seconds: float = _CHILD_SECONDS) -> None:
    """Ends processes that multiprocessing would wait for at this process's exit, and says so.

    Args:
      seconds: how long they may take to end by themselves; 0 kills them at once, without a word.
    """
    end = time.monotonic() + seconds
    left = [child for child in active_children() if not child.daemon]
    for child in left:
        child.join(max(0.0, end - time.monotonic()))
    left = [child for child in left if child.is_alive()]
    for child in left:
        child.kill()
        child.join()
    if left and seconds:
        names = first_few([child.name for child in left])
        print(f"what it has started still ran {seconds:g} s after its end, and was killed: {names}", file=sys.stderr)


def _write_to(descriptor: int) -> None:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what native code has printed
