"""A stop is a flag: SIGTERM, SIGINT, SIGHUP and the time limit set `StopRequest.reason`, and a run looks at it.

Owns: the signals while a run listens to them, what a second one does, and the end of the grace period. Does not own:
when the flag is looked at, and what is saved then.

To change what happens at a signal, open three files:
- this one: from the signal to the flag, and the end of a process that never looks at it;
- `engine/loop.py`: looks after each window, which lasts at most a second or one step, saves, and ends with 143;
- `distributed/collective.py`: looks between the batches of an evaluation, and tells the processes that train together
  of each other's reasons.

Before a run listens there is nothing to save: SIGTERM does what it does without us, and Ctrl-C leaves by `Interrupt`.

Python runs a signal's handler in the main thread, between two of its own instructions, so not while TensorFlow
computes. The operating system's part of the handler writes to a pipe at once, and a thread of ours reads that. So
Python's handlers do nothing, and no code is left in its middle.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.threads import run_bounded

NOTHING_LOST = "nothing is lost, the same command continues"

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRACE_SECONDS = 25.0
_SAME_SIGNAL_SECONDS = 0.5  # `timeout` and some schedulers signal a process and its group, so the first one comes twice
_LAST_WORDS_SECONDS = 3.0


class PreemptedError(UserError, RuntimeError):
    """The run was stopped and has saved its state; the same command continues it."""

    exit_code = ExitCode.PREEMPTED


class Interrupt:
    """The handler of SIGINT before a run listens: leaves what runs by `KeyboardInterrupt`.

    Python drops an error that is raised in a finalizer, so `StopRequest.listen` asks whether it has come.

    Attributes:
      has_come: whether there was a signal.
    """

    def __init__(self) -> None:
        self.has_come = False

    def __call__(self, number: int, frame: Any) -> None:
        self.has_come = True
        raise KeyboardInterrupt


class StopRequest:
    """Whether a run is asked to stop; one that listens is asked by signals and by its time limit.

    A second signal, half a second later or more, ends the process at once with 128 + its number. So does the end of the
    grace period, with 75: something hangs, and the sender of the signal would soon kill the process anyway.

    Attributes:
      reason: what requested the stop, `SIGTERM` for example; None before. Any thread may set it.
    """

    def __init__(
        self,
        *,
        grace_seconds: float = _GRACE_SECONDS,
        max_wall_seconds: float | None = None,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        """Takes the limits of a run.

        Args:
          grace_seconds: from a request to the end of the process, in any state.
          max_wall_seconds: the run is asked to stop when this object is as old; None for no limit.
          exit_process: ends the process at once.
        """
        self.reason: str | None = None
        self._grace_seconds, self._max_wall_seconds = grace_seconds, max_wall_seconds
        self._exit_process = exit_process
        self._began_seconds = time.monotonic()
        self._last_words: Callable[[], str] = lambda: NOTHING_LOST
        self._is_entered = False
        self._pipe: SignalPipe | None = None
        self._reader: threading.Thread | None = None

    @classmethod
    def of(cls, runtime: Any) -> StopRequest:
        """Returns one with the limits of a section `runtime`."""
        return cls(grace_seconds=runtime.stop_grace_seconds, max_wall_seconds=runtime.max_wall_seconds)

    def __enter__(self) -> StopRequest:
        """Allows `listen`; at the end of the block the signals have their former handlers again."""
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_entered = False
        if self._pipe is not None:
            self._pipe.close(self._reader)
            self._pipe = None

    def listen(self, last_words: Callable[[], str]) -> None:
        """Signals and the time limit set `reason` from here on; only in a `with` block, and in the main thread.

        Elsewhere this does nothing: Python allows handlers in the main thread alone, and who did not enter a block
        handles signals in another way.

        Args:
          last_words: called in another thread when the grace period is over: records that the process ends with 75, and
            returns what is saved.

        Raises:
          KeyboardInterrupt: Ctrl-C was pressed before, and its error was dropped.
        """
        self._last_words = last_words
        if not self._is_entered or self._pipe is not None or threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGINT)
        if isinstance(before, Interrupt) and before.has_come:
            raise KeyboardInterrupt
        self._pipe = SignalPipe()
        self._reader = threading.Thread(target=self._watch, args=(self._pipe,), name="stop", daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raises `PreemptedError` if a stop was requested."""
        if self.reason is not None:
            raise PreemptedError(f"{self.reason}; {NOTHING_LOST}")

    def _watch(self, pipe: SignalPipe) -> None:
        """Sets the reason, and ends the process if it has to be; in a thread of its own."""
        limit_seconds, deadline = self._max_wall_seconds, None
        wall_end = None if limit_seconds is None else self._began_seconds + limit_seconds
        while not pipe.is_closed:
            ends = [end for end in (deadline, wall_end) if end is not None]
            numbers = pipe.read(max(0.0, min(ends) - time.monotonic()) if ends else None)
            for number in numbers:
                if pipe.insists(number):
                    self._exit_process(128 + number)
            now = time.monotonic()
            is_over = wall_end is not None and now >= wall_end
            if is_over:
                wall_end = None
            if numbers or is_over:
                limit = f"runtime.max_wall_seconds={limit_seconds:g} is over" if is_over else ""
                self.reason = self.reason or limit or signal.Signals(numbers[0]).name
                deadline = deadline or now + self._grace_seconds
            elif deadline is not None and now >= deadline:
                self._end()
                return

    def _end(self) -> None:
        words: list[str] = []
        # Bounded, because the file system may be what hangs.
        run_bounded(lambda: words.append(self._last_words()), _LAST_WORDS_SECONDS, "last-words")
        late = f"runtime.stop_grace_seconds={self._grace_seconds:g} later the run had not ended"
        with contextlib.suppress(OSError):  # the terminal may be gone
            what = words[0] if words else "what is saved is unknown"
            print(f"stopped: {self.reason}, and {late}; {what}", file=sys.stderr, flush=True)
        self._exit_process(int(ExitCode.RETRY))


class SignalPipe:
    """SIGTERM, SIGINT and SIGHUP as numbers in a pipe; their handlers in Python do nothing. For the main thread.

    Not SIGHUP if it is ignored, which is what `nohup` does.

    Attributes:
      is_closed: whether the signals have their former handlers again.
    """

    def __init__(self) -> None:
        """Takes the signals."""
        self.is_closed = False
        self._first_seconds: float | None = None
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._previous_pipe = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._previous: dict[int, Any] = {}
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, lambda *_: None)
        _open_pipes.add(self)
        _hook_fork()

    def fileno(self) -> int:
        """Returns the descriptor to wait for before `read`."""
        return self._reading

    def read(self, seconds: float | None = 0.0) -> list[int]:
        """Returns the signals that came since the last call; waits for one for at most `seconds`, None for ever."""
        select.select([self._reading], [], [], seconds)
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._reading, 64)
        return [number for number in numbers if number in self._previous]

    def insists(self, number: int) -> bool:
        """Whether a signal comes half a second after the first or later: its sender does not want to wait.

        Not SIGHUP: a terminal that is closed sends one, its shell another, and the run can still save.
        """
        if number == signal.SIGHUP:
            return False
        now = time.monotonic()
        self._first_seconds = self._first_seconds or now
        return now - self._first_seconds > _SAME_SIGNAL_SECONDS

    def restore(self) -> None:
        """Gives the signals back to their former handlers; a forked child does nothing else."""
        if not self.is_closed:
            self.is_closed = True
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._previous_pipe)

    def close(self, reader: threading.Thread | None = None) -> None:
        """Gives the signals back, and waits for a thread that reads them to its end."""
        if self.is_closed:
            return
        self.restore()
        os.close(self._writing)
        if reader is not None:
            reader.join()
        os.close(self._reading)


_open_pipes: weakref.WeakSet[SignalPipe] = weakref.WeakSet()


@functools.cache
def _hook_fork() -> None:
    """Lets forked processes have their own signals: a worker that is ended by SIGTERM must not stop this run."""

    def restore() -> None:
        for pipe in list(_open_pipes):
            pipe.restore()

    os.register_at_fork(after_in_child=restore)


def take_back_handlers() -> None:
    """Has Python handle SIGTERM again after TensorFlow's coordination service took it, so that it ends the process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
