"""Stalls: the message, the stacks of all threads, and how a stall ends the process: with exit code 5.

Owns: the report of a stall, on stderr and in `model_dir/stall-<n>.txt`, and an end that nothing can block.
Does not own: when there is a stall (`watchdog.py`), or the record of a run (`tracking/record.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.threads import WorkerThread

FLOOR_FIELD = "runtime.stall_floor_seconds"
STARTUP_FIELD = "runtime.stall_startup_seconds"
PATIENCE_FIELD = "runtime.collective_timeout_seconds"
"""The config fields that raise the limits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stall:
    """A gap that was too long. `str()` of it is the message: what that usually means, and what to do.

    Attributes:
      activity: the phase of the run: `build`, `train`, `save` and the like; or instead of `train`, if known, `input`
        (waiting for a batch) or `window` (computing).
      waited_seconds: how long there has been no progress, without the time for which the process itself was paused.
      limit_seconds: what would have been healthy.
      longest_gap_seconds: longest gap seen before; None if there was none, so that the startup limit was in force.
      step: last step known.
      others: other processes of the run that are late, in their own words, or do not answer.
      is_patience_over: whether other processes were waited for as long as they may be.
    """

    activity: str
    waited_seconds: float
    limit_seconds: float
    longest_gap_seconds: float | None
    step: int | None
    others: tuple[str, ...] = ()
    is_patience_over: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the process: one that only waited for others is not the one that hangs."""
        waits = self.activity == PEERS or self.is_patience_over or (self.activity in UNCERTAIN and self.others)
        return ExitCode.RETRY if waits else ExitCode.STALLED

    @property
    def doing(self) -> str:
        """What made no progress: `waiting for the next batch at step 7`."""
        doing = _MEANINGS.get(self.activity, (f"in phase {self.activity}", ""))[0]
        return doing if self.step is None else f"{doing} at step {self.step}"

    def __str__(self) -> str:
        meaning = _MEANINGS.get(self.activity, ("", "The stacks show where it waits."))[1]
        if self.others:
            meaning = f"It waited for others of the run: {'; '.join(self.others)}."
        if self.is_patience_over:
            field, reason = PATIENCE_FIELD, "after which the others have not done their part of a step"
        elif self.longest_gap_seconds is None:
            field, reason = STARTUP_FIELD, "as for everything that is done for the first time"
        else:
            field = FLOOR_FIELD
            reason = f"and the longest gap before was {_seconds(self.longest_gap_seconds)}"
        return (
            f"no progress for {_seconds(self.waited_seconds)} while {self.doing}; the limit is "
            f"{_seconds(self.limit_seconds)}, {reason}.\n{meaning}\nIf it was only slow, raise {field}; otherwise mend "
            "it, and the same command continues from the last checkpoint."
        )


PEERS = "peers"
"""The activity of a process that waits for others to do the same as it does."""

SHARED = ("window", "train")
"""Activities of training in which a process may wait for others or hang itself; which one is unknown."""

UNCERTAIN = (*SHARED, "evaluate", PEERS)
"""Activities in which a process may be late because others are."""

_STORAGE = "does not answer, or is very slow: look at the disk, the mount or the object store, and the network to it."
_DEVICE = "a device or a collective operation hangs: look at the devices, their driver, and the run's other processes"
_MEANINGS = {
    "start": ("starting", "An import, a device or a file system does not answer; the stacks show which."),
    "build": (
        "building the run",
        "A device, a file system or a source of data does not answer; the stacks show which.",
    ),
    "restore": ("restoring a checkpoint", f"Usually the storage of the checkpoints {_STORAGE}"),
    "follow": ("looking for a checkpoint", f"Usually the storage of model_dir {_STORAGE}"),
    "input": (
        "waiting for the next batch",
        "Usually the input pipeline itself waits for data: look at its files, at the network, at the dispatcher and "
        "the data workers if it has a tf.data service, and below at the stacks of threads in generators and Python "
        "functions of tf.data.",
    ),
    "window": ("computing training steps", f"Usually {_DEVICE}."),
    PEERS: ("waiting for the run's other processes", "One of them does something that takes long, or hangs."),
    "train": ("training", f"Either the input pipeline waits for data (its files, the network), or {_DEVICE}."),
    "evaluate": ("evaluating", f"Either the validation data does not come (its files, the network), or {_DEVICE}."),
    "save": ("saving a checkpoint", f"Usually the storage of model_dir {_STORAGE}"),
    "export": ("exporting", f"Usually the storage of model_dir {_STORAGE}"),
}


def dump_and_exit(
    stall: Stall, model_dir: str, record: Callable[[Stall], object], *, timeout_seconds: float = 5.0
) -> NoReturn:
    """Ends the process with the stall's exit code; before that, writes what hangs to stderr and to `stall-<n>.txt`.

    The process ends at once, because a thread that is stuck cannot be unwound: nothing is saved or closed.

    Args:
      stall: what to report.
      model_dir: local path or URL of the run, or of the folder that this process has in it.
      record: puts the stall on record, such as in `status.json`.
      timeout_seconds: longest wait for all of this. Any of it may hang as well, for the same reason as the run.
    """
    try:
        report = f"error: {stall}\n\n{stacks()}"
        jobs: list[Callable[[], object]] = [
            functools.partial(_write_stderr, f"\n{report}"),
            functools.partial(_write_report, model_dir, report),
            sys.stdout.flush,
            functools.partial(record, stall),
        ]
        deadline = time.monotonic() + timeout_seconds
        for call in [WorkerThread("stall-report").submit(functools.partial(_attempt, job)) for job in jobs]:
            call.wait(deadline - time.monotonic())
    finally:
        os._exit(int(stall.exit_code))


def stacks() -> str:
    """Returns the Python stacks of all threads of this process, the main thread's first, innermost call last.

    Like `faulthandler`, it reads no source files; unlike `faulthandler`, it does not write while it holds Python's
    global lock, so a disk or a pipe that hangs cannot keep the process from ending.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, names.get(item[0], "")))
    parts = [f"Stacks of process {os.getpid()} on {socket.gethostname()}, innermost call last:"]
    for ident, frame in frames:
        calls = [
            f'  File "{each.f_code.co_filename}", line {line}, in {each.f_code.co_qualname}'
            for each, line in traceback.walk_stack(frame)
        ]
        parts.append("\n".join([f"Thread {ident} ({names.get(ident, 'not started by Python')})", *reversed(calls)]))
    return "\n\n".join(parts) + "\n"


def _attempt(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception as error:
        _write_stderr(f"warning: while the stall was reported: {type(error).__name__}: {error}\n")


def _write_stderr(text: str) -> None:
    # Not sys.stderr: the stuck thread may hold its lock.
    with open(2, "wb", closefd=False) as stream:
        stream.write(text.encode("utf-8", "replace"))


def _write_report(model_dir: str, text: str) -> None:
    paths = (files.join(model_dir, f"stall-{number}.txt") for number in itertools.count(1))
    path = next(path for path in paths if not files.exists(path))
    files.write_text_atomically(path, text, durable=False)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
