"""Being asked to stop: SIGTERM, SIGINT and the time limit, noticed in every phase of a run.

Owns: the signal handlers while a run lasts, what a second signal does, and the end of the grace period.
Does not own: saving (`loop.py`), ending a TensorFlow call early (`interruption.py`).

Python runs a signal's handler in the main thread, between two of its own instructions, so not while TensorFlow
computes. The operating system's part of the handler writes to a pipe at once, and a thread of ours reads that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from official_trainer.errors import ExitCode, UserError

POLL_SECONDS = 0.1
"""How often, once the run is asked to stop, what might be cut short is looked at again."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PreemptedError(UserError, RuntimeError):
    """The run was asked to stop and has saved its state; the same command continues it."""

    exit_code = ExitCode.PREEMPTED


class TornStepError(RuntimeError):
    """A step was cancelled after it had begun to change variables, whose values are worth nothing now."""


class UnsavedStopError(UserError, RuntimeError):
    """The run was asked to stop and could not save its last steps; the same command continues from before them."""

    exit_code = ExitCode.RETRY


class StopRequest:
    """Set by the first SIGTERM or SIGINT inside its `with` block, or when the time is up.

    A second signal ends the process at once. So does, with exit code 75, the end of the grace period: something hangs
    that cannot be ended, and whoever asked would soon kill the process anyway.

    Attributes:
      reason: what asked, `SIGTERM` for example; None while nobody did.
      on_overdue: called in another thread when the grace period is over; says in words what was not saved, and gives
        the exit code. It may take a few seconds.
    """

    def __init__(
        self,
        *,
        grace_seconds: float = 25.0,
        max_wall_seconds: float | None = None,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """Takes the limits.

        Args:
          grace_seconds: from a signal to the end of the process, whatever it does.
          max_wall_seconds: after this long, the run is asked to stop; None for no limit.
          leave: ends the process.
        """
        self.reason: str | None = None
        self.on_overdue: Callable[[], tuple[str, int]] = lambda: ("", ExitCode.RETRY)
        self._grace_seconds = grace_seconds
        self._max_wall_seconds = max_wall_seconds
        self._leave = leave
        self._previous: dict[signal.Signals, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._watcher: threading.Thread | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._interruptible = 0

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python allows handlers nowhere else
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        if self._max_wall_seconds is not None:
            self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle)
            signal.setitimer(signal.ITIMER_REAL, self._max_wall_seconds)
        self._watcher = threading.Thread(target=self._watch, args=(self._pipe[0],), name="stop-watcher", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is None:
            return
        if signal.SIGALRM in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()
        signal.set_wakeup_fd(-1)
        (reading, writing), self._pipe = self._pipe, None
        os.close(writing)  # ends the watcher
        assert self._watcher is not None
        self._watcher.join()
        os.close(reading)

    def check(self) -> None:
        """Raises `PreemptedError` if the run was asked to stop."""
        if self.reason is not None:
            raise PreemptedError(self.reason)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raises `PreemptedError` anywhere inside the block as soon as Python gets to it.

        Only for what may be left anywhere: what has nothing to save yet, and calls that TensorFlow does whole or not at
        all.
        """
        self.check()
        self._interruptible += 1
        try:
            yield
        finally:
            self._interruptible -= 1

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Calls back in another thread, again and again, from when the run is asked to stop to the end of the block."""
        self._callbacks.append(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, at the first and every further signal."""
        is_first = self.reason is None
        self._ask(number)
        if self._interruptible and is_first:
            self.check()

    def _ask(self, number: int) -> None:
        if self.reason is None:
            is_time = number == signal.SIGALRM
            limit = f"runtime.max_wall_seconds={self._max_wall_seconds:g} is over" if is_time else ""
            self.reason = limit or signal.Signals(number).name

    def _watch(self, pipe: int) -> None:
        """Reads which signals came, in a thread of its own, until the pipe is closed."""
        deadline: float | None = None
        signals_seen = 0
        while True:
            ready, _, _ = select.select([pipe], [], [], None if deadline is None else POLL_SECONDS)
            numbers = os.read(pipe, 64) if ready else b""
            if ready and not numbers:
                return
            for number in numbers:
                if number not in self._previous:
                    continue
                self._ask(number)
                deadline = deadline or time.monotonic() + self._grace_seconds
                signals_seen += number != signal.SIGALRM
                if signals_seen > 1:
                    self._leave(128 + number)
            if deadline is not None:
                for callback in list(self._callbacks):
                    callback()
                if time.monotonic() > deadline:
                    self._give_up()

    def _give_up(self) -> None:
        outcome: list[tuple[str, int]] = []
        asking = threading.Thread(target=lambda: outcome.append(self.on_overdue()), daemon=True)
        asking.start()
        asking.join(_LAST_WORDS_SECONDS)  # the file system may be what hangs
        what, code = outcome[0] if outcome else ("", ExitCode.RETRY)
        limit = f"runtime.stop_grace_seconds={self._grace_seconds:g}"
        print(f"stopped: {self.reason}, and {limit} later the run had not ended; {what}", file=sys.stderr, flush=True)
        self._leave(int(code))


_LAST_WORDS_SECONDS = 3.0
