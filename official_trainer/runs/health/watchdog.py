"""The watchdog: ends a process that makes no progress, and says what it was doing, with the stacks of its threads.

Owns: what counts as progress, how long a time without it is healthy, the message and the report of a stall, and an end
that nothing can block. Does not own: when phases begin (`engine/loop.py`), the record of a run (`tracking/record.py`).

A thread looks once a second. Where native code keeps Python's lock, no thread can look: then `faulthandler` writes the
stacks to stderr by itself, and the process goes on, because from inside a pause looks the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import logging
import math
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from official_trainer import files
from official_trainer.distributed.cluster import PS, Cluster
from official_trainer.errors import ExitCode
from official_trainer.runs.recorded import duration_text
from official_trainer.threads import RepeatingThread, WorkerThread, has_ended

_logger = logging.getLogger(__name__)

FACTOR = 10
"""A time without progress is no stall unless it is this many times as long as the longest one of its phase before."""

WAITING = "wait"
"""The phase of a process that waits for the next call of the chief, which may take any time."""

_DAY_SECONDS, _SLOW_SECONDS = 86400.0, 60.0
_STDERR = 2  # not sys.stderr: the thread that hangs may hold its lock

_STORAGE = (
    "Usually the storage of model_dir does not answer, or is very slow: look at the disk, the mount or the object "
    "store, and the network to it."
)
_INPUT = (
    "Usually the input pipeline itself waits for data: look at its files, at the network, at the dispatcher and the "
    "data workers if it has a tf.data service, and below at the stacks of generators and Python functions of tf.data."
)
_DEVICE = (
    "a device or a collective operation hangs: look at the devices, their driver, and the run's other processes, of "
    "which the one that hangs ends with 5."
)
_BUILD = "An import, a device, a file system or a source of data does not answer; the stacks show which."
_MEANINGS = {
    "start": ("starting", _BUILD),
    "build": ("building the run", _BUILD),
    "restore": ("restoring a checkpoint", _STORAGE),
    "follow": ("looking for a checkpoint", _STORAGE),
    "input": ("waiting for the next batch", _INPUT),
    "train": ("computing training steps", f"Usually {_DEVICE}"),
    "peers": ("waiting for the run's other processes", "One of them does something that takes long, or hangs."),
    "evaluate": ("evaluating", f"Either the validation data does not come (its files, the network), or {_DEVICE}"),
    "save": ("saving a checkpoint", _STORAGE),
    "export": ("exporting", _STORAGE),
}
"""What a process does in a phase, while it waits for a batch (`input`) or for other processes (`peers`), and what it
usually means that it does not end."""


_NO_BATCH = (
    "no batch has come for %s. A shuffle may still fill its buffer, or a disk or a network be slow; but data that "
    "repeats, and of which a filter leaves nothing, never has a batch. After %s the process ends (runtime.%s)"
)

Told = Callable[[str, ExitCode], object]
"""Is told of a stall: what the process did, what that usually means and what to do; and the exit code of the process,
which is another one if it only waits for others."""


class Watchdog:
    """Watches a run from a thread of its own inside its `with` block. All calls may come from any thread.

    There are two limits. Until a phase has moved, it is `stall_startup_seconds`: tracing, compiling and the filling of
    buffers take long the first time. From then on it is `stall_floor_seconds`, or `FACTOR` times the longest time
    without progress in that phase. A step that others compute too has `collective_timeout_seconds` at most.

    Time is counted in polls, so that a process which is paused has none.

    Size: what is seen of a run stands beside the limits for it.
    """

    def __init__(
        self,
        runtime: Any,
        folder: str,
        *,
        cluster: Cluster | None = None,
        end: Told | None = None,
    ) -> None:
        """Prepares; the `with` block starts.

        Args:
          runtime: the config's section; without `stall_floor_seconds` nothing is ever a stall.
          folder: for the reports of this process: the run directory, or its folder there.
          cluster: the processes that train together; None if this one does not train with others.
          end: called in the watching thread; None ends the process.
        """
        is_alone = cluster is None or PS in cluster.addresses or len(cluster.training) == 1
        self._peers_seconds = math.inf if is_alone else runtime.collective_timeout_seconds
        self._floor_seconds = runtime.stall_floor_seconds or math.inf
        self._startup_seconds = max(self._floor_seconds, runtime.stall_startup_seconds)
        self.poll_seconds = min(1.0, self._floor_seconds / 20)
        self._told: list[Told] = []
        self._end = end or functools.partial(dump_and_exit, folder=folder, told=self._told)
        self._trainer: Any = None
        self._mark = 0.0
        self._phase = "start"
        self._step: int | None = None
        self._polls = self._polls_before = 0  # so far, and at the last progress
        self._longest_seconds: dict[str, float] = {}  # without progress, by phase
        self._has_warned = False
        self._thread = RepeatingThread("stall-watchdog", self.poll, self.poll_seconds)

    def __enter__(self) -> Watchdog:
        if self._floor_seconds < math.inf:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()
        faulthandler.cancel_dump_traceback_later()

    def observe(self, trainer: Any) -> None:
        """Takes the trainer, once it is built: batches that steps get and parts of evaluations are progress."""
        self._trainer = trainer
        trainer.process_group.after_parts(self.beat)

    def tell(self, function: Told) -> None:
        """Takes a function that is told of a stall, in a thread of its own, before the process ends."""
        self._told.append(function)

    def enter(self, phase: str, step: int | None = None) -> None:
        """The run begins `phase`; that is progress."""
        self.beat(step)
        self._phase = phase

    def beat(self, step: int | None = None) -> None:
        """A piece of work is done: a window, a batch of an evaluation. Call it after the work, not before."""
        self._move(self._phase)
        self._step = self._step if step is None else step

    def _move(self, phase: str) -> None:
        self._longest_seconds[phase] = max(self._longest_seconds.get(phase, 0.0), self._waited_seconds)
        self._polls_before = self._polls

    def poll(self) -> None:
        """Looks at the run once, as the thread does every `poll_seconds`."""
        self._polls += 1
        activity = self._activity()
        field, limit_seconds = self._limit(activity)
        faulthandler.dump_traceback_later(min(limit_seconds, _DAY_SECONDS), exit=False, file=_STDERR)
        if self._thread.is_stopped:  # meanwhile
            faulthandler.cancel_dump_traceback_later()
            return
        if (waited_seconds := self._waited_seconds) > _SLOW_SECONDS and activity == "input" and not self._has_warned:
            self._has_warned = True
            _logger.warning(_NO_BATCH, duration_text(waited_seconds), duration_text(limit_seconds), field)
        if waited_seconds <= limit_seconds:
            return
        doing, meaning = _MEANINGS.get(activity, (f"in phase {activity}", "The stacks show where it waits."))
        at = "" if self._step is None else f" at step {self._step}"
        limit = f"{duration_text(limit_seconds)} (runtime.{field}"
        limit += f", or {FACTOR} times the longest time before)" if field == "stall_floor_seconds" else ")"
        message = (
            f"no progress for {duration_text(waited_seconds)} while {doing}{at}; the limit is {limit}.\n{meaning}\n"
            f"If it was only slow, raise runtime.{field}; otherwise mend it, and the same command continues from the "
            "last checkpoint."
        )
        waits = activity == "peers" or (activity == "train" and self._peers_seconds < math.inf)
        self._end(message, ExitCode.RETRY if waits else ExitCode.STALLED)

    @property
    def _waited_seconds(self) -> float:
        return (self._polls - self._polls_before) * self.poll_seconds

    def _activity(self) -> str:
        """Returns what the process does: its phase, `input` or `peers`; takes note of batches that steps got."""
        phase = self._phase
        if self._trainer is None:
            return phase
        clock, before = self._trainer.context.clock, self._mark
        with contextlib.suppress(Exception):  # a device that has failed may not answer
            self._mark = clock.mark
        if self._mark != before and phase in self._longest_seconds:  # the first batch comes before compiling
            self._move(phase)
        if self._trainer.process_group.is_waiting:
            return "peers"
        return "input" if phase == "train" and clock.means_waiting(self._mark) else phase

    def _limit(self, activity: str) -> tuple[str, float]:
        """Returns the field of `runtime` to raise, and the seconds without progress that are healthy."""
        if self._phase == WAITING:
            return "", math.inf
        if (longest_seconds := self._longest_seconds.get(self._phase)) is None:
            return "stall_startup_seconds", self._startup_seconds
        limit_seconds = max(self._floor_seconds, FACTOR * longest_seconds)
        if activity == "train" and self._peers_seconds < limit_seconds:
            return "collective_timeout_seconds", self._peers_seconds
        return "stall_floor_seconds", limit_seconds


def dump_and_exit(
    message: str, exit_code: ExitCode, *, folder: str, told: Sequence[Told] = (), timeout_seconds: float = 5.0
) -> NoReturn:
    """Ends the process; before that, writes what hangs to stderr and to `stall-<n>.txt`.

    The process ends at once, because a thread that is stuck cannot be unwound: nothing is saved or closed.

    Args:
      message: of the report.
      exit_code: of the process.
      folder: local path or URL.
      told: called with both, each in a thread of its own: puts it on record, for example.
      timeout_seconds: longest wait for all of this. Any of it may hang as well, for the same reason as the run.
    """

    def attempt(job: Callable[[], object]) -> None:
        try:
            job()
        except Exception as error:
            _write_stderr(f"warning: while the stall was reported: {type(error).__name__}: {error}\n")

    def write_report() -> None:
        paths = (files.join(folder, f"stall-{number}.txt") for number in itertools.count(1))
        files.write_text_atomically(next(path for path in paths if not files.exists(path)), report, durable=False)

    try:
        report = f"error: {message}\n\n{stacks()}"
        jobs: list[Callable[[], object]] = [functools.partial(_write_stderr, f"\n{report}"), write_report]
        jobs += [sys.stdout.flush, *(functools.partial(listener, message, exit_code) for listener in told)]
        deadline = time.monotonic() + timeout_seconds
        for call in [WorkerThread("stall-report").submit(functools.partial(attempt, job)) for job in jobs]:
            has_ended(call, deadline - time.monotonic())
    finally:
        os._exit(int(exit_code))


def stacks() -> str:
    """Returns the Python stacks of all threads of this process, as `faulthandler` writes them, with their names.

    They go through a temporary file: a disk or a pipe that hangs must not do so while `faulthandler` keeps Python's
    lock, or the process would never end.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read().decode(errors="replace")
    for thread in threading.enumerate():
        text = text.replace(f"hread 0x{thread.ident:016x}", f"hread {thread.name}")
    return f"Stacks of process {os.getpid()} on {socket.gethostname()}:\n\n{text}"


def _write_stderr(text: str) -> None:
    with open(_STDERR, "wb", closefd=False) as stream:
        stream.write(text.encode("utf-8", "replace"))
