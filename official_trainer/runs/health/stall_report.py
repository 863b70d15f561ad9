"""What a process reports when it is late, to the run's other processes, and when it hangs: then it ends, with code 5.

Owns: the report of a stall, on stderr and in `model_dir/stall-<n>.txt`, and an end that nothing can block; the late
reports, and what an error about another process takes from them.
Does not own: when a process is late or hangs (`watchdog.py`), or the record of a run (`tracking/record.py`).

TensorFlow only reports that a collective operation was not done in time. Only the process that hangs can see where.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from official_trainer import files
from official_trainer.distributed.cluster import PS, Cluster, process_name
from official_trainer.distributed.peers import PeerLostError, answers
from official_trainer.errors import ExitCode
from official_trainer.threads import WorkerThread, has_ended, run_bounded

_LATE_FILE = "late.json"
_READ_SECONDS = 5.0  # the storage may be what hangs


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
            field, reason = "collective_timeout_seconds", "after which the others have not done their part of a step"
        elif self.longest_gap_seconds is None:
            field, reason = "stall_startup_seconds", "as for everything that is done for the first time"
        else:
            field = "stall_floor_seconds"
            reason = f"and the longest gap before was {_seconds(self.longest_gap_seconds)}"
        return (
            f"no progress for {_seconds(self.waited_seconds)} while {self.doing}; the limit is "
            f"{_seconds(self.limit_seconds)}, {reason}.\n{meaning}\nIf it was only slow, raise runtime.{field}; "
            "otherwise mend it, and the same command continues from the last checkpoint."
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


class LateReports:
    """The reports of a run's processes.

    Attributes:
      folder: for the files of this process: the run directory is the chief's.
      patience_seconds: how long processes wait for each other within a step; at half of it, or of what is a stall, one
        is late.
    """

    def __init__(self, model_dir: str, cluster: Cluster | None = None, patience_seconds: float = math.inf) -> None:
        """Takes the run directory, and who takes part; if no other process trains, nothing is ever reported."""
        self.patience_seconds = math.inf
        self.folder = self._own = model_dir
        self._others: dict[str, tuple[str, str]] = {}
        self._writer = WorkerThread("late-report")
        if cluster is None or PS in cluster.addresses:
            return

        def folder_of(name: str) -> str:
            return files.join(model_dir, "workers", name.replace(" ", "-"))

        for role, index in cluster.training:
            if (role, index) != (cluster.role, cluster.index):
                name = process_name(role, index)
                self._others[name] = cluster.addresses[role][index], folder_of(name)
                self.patience_seconds = patience_seconds
        self._own = folder_of(cluster.name)
        self.folder = model_dir if cluster.is_chief else self._own

    def report(self, gap: Stall | None) -> None:
        """Reports what this process is late with, or with None that it is no longer late; does not wait for the write.

        A process that may only be waiting for the others reports nothing.
        """
        if self._others:
            doing = gap.doing if gap is not None and gap.activity not in UNCERTAIN else None
            self._writer.submit(functools.partial(self._write, doing))

    def clear(self) -> None:
        """Removes the report of an earlier process with this name."""
        if self._others:
            self._write(None)

    def of_others(self) -> list[str]:
        """Returns which are late: `worker 1 is waiting for the next batch at step 7`, `worker 2 (…) does not answer`.

        That is what is known after a few seconds; the storage may be what hangs.
        """
        reports: list[str] = []

        def read() -> None:
            for name, (address, folder) in self._others.items():
                if not answers(address):
                    reports.append(f"{name} ({address}) does not answer")
                    continue
                with contextlib.suppress(Exception):
                    reports.append(f"{name} is {json.loads(files.read_bytes(files.join(folder, _LATE_FILE)))['doing']}")

        if self._others:
            run_bounded(read, _READ_SECONDS, "late-reports")
        return list(reports)

    def explain(self, error: BaseException) -> PeerLostError | None:
        """Returns an error about other processes with their reports added; None for other errors, or without any."""
        if not isinstance(error, PeerLostError):
            return None
        reports = self.of_others()
        return type(error)(f"{str(error).rstrip('.')}. Late: {'; '.join(reports)}.") if reports else None

    def _write(self, doing: str | None) -> None:
        path = files.join(self._own, _LATE_FILE)
        with contextlib.suppress(Exception):  # of any storage; a report is not worth an error
            if doing is None:
                files.remove(path)
            else:
                files.make_dirs(self._own)
                files.write_text_atomically(path, json.dumps({"doing": doing}), durable=False)


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

    def attempt(job: Callable[[], object]) -> None:
        try:
            job()
        except Exception as error:
            _write_stderr(f"warning: while the stall was reported: {type(error).__name__}: {error}\n")

    def write_report() -> None:
        paths = (files.join(model_dir, f"stall-{number}.txt") for number in itertools.count(1))
        path = next(path for path in paths if not files.exists(path))
        files.write_text_atomically(path, report, durable=False)

    try:
        report = f"error: {stall}\n\n{stacks()}"
        jobs: list[Callable[[], object]] = [
            functools.partial(_write_stderr, f"\n{report}"),
            write_report,
            sys.stdout.flush,
            functools.partial(record, stall),
        ]
        deadline = time.monotonic() + timeout_seconds
        for call in [WorkerThread("stall-report").submit(functools.partial(attempt, job)) for job in jobs]:
            has_ended(call, deadline - time.monotonic())
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
    texts = [f"Stacks of process {os.getpid()} on {socket.gethostname()}, innermost call last:"]
    for ident, frame in frames:
        calls = [
            f'  File "{stack_frame.f_code.co_filename}", line {line}, in {stack_frame.f_code.co_qualname}'
            for stack_frame, line in traceback.walk_stack(frame)
        ]
        texts.append("\n".join([f"Thread {ident} ({names.get(ident, 'not started by Python')})", *reversed(calls)]))
    return "\n\n".join(texts) + "\n"


def _write_stderr(text: str) -> None:
    # Not sys.stderr: the stuck thread may hold its lock.
    with open(2, "wb", closefd=False) as stream:
        stream.write(text.encode("utf-8", "replace"))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
