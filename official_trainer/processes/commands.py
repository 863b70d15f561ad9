"""The command of a forked process.

Owns: running a module as `python -m` would, ending processes for which Python's exit would wait for ever.
Does not own: forking (`starter.py`, `forked.py`).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import active_children

from official_trainer.shown import first_few

_PR_SET_PDEATHSIG = 1
_CHILD_SECONDS = 3.0  # for one that was told to end


def run(argv: Sequence[str], environ: dict[str, str]) -> None:
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


def draw_anew() -> None:
    """Seeds NumPy's global generator as at its import: else all forked processes would draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


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
