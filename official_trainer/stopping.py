"""Stop requests: SIGTERM, SIGINT, SIGHUP and the time limit, noticed in every phase of a run.

Owns: the signal handlers while a run lasts, what a second signal does, and the end of the grace period.
Does not own: saving (`engine/loop.py`), or when the state can be saved during a step (`engine/windows.py`).

From a signal to a checkpoint:
- `StopRequest._handle` sets `reason`, and raises `Interrupted` in an `interruptible` block, such as a traced window of
  a process that trains alone (`_reading` in `engine/train_steps.py`);
- elsewhere `Loop` calls `check` after the window, which lasts at most a second or one step (`engine/events.py`);
- of several processes, the chief hears the reasons of all at its next collective call (`distributed/collective.py`);
- either way `PreemptedError` → `Loop._ended_in_any_case` → `Loop._save_at_stop` → `CheckpointStore.save`;
- while the main thread hangs: `_watch` → `InputWait.rescuer` (`engine/windows.py`) → `Loop._save_while_hanging`.

Python runs a signal's handler in the main thread, between two of its own instructions, so not while TensorFlow
computes. The operating system's part of the handler writes to a pipe at once, and a thread of ours reads that.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from official_trainer.errors import ExitCode, UserError
from official_trainer.threads import run_bounded

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How often, once a stop is requested, this looks whether the main thread hangs."""

SaveState = Callable[[Callable[[], bool]], bool]
DescribeEnd = Callable[[], tuple[str, int]]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class PreemptedError(UserError, RuntimeError):
    """The run was stopped and has saved its state; the same command continues it."""

    exit_code = ExitCode.PREEMPTED


class Interrupted(BaseException):
    """Raised once, by the signal handler; an `except Exception` of Keras or a user does not catch it.

    It mostly becomes a `PreemptedError` where the interruptible block ends. If it is raised while that block begins or
    ends, it may leave it unchanged.
    """


class StopRequest:
    """Set by the first SIGTERM, SIGINT or SIGHUP inside its `with` block, or when the time is up.

    A second signal, half a second later or more, ends the process at once. (`timeout` and some schedulers signal a
    process and its group, so the first one comes twice.) So does the end of the grace period: something hangs that
    cannot be ended, and the sender of the signal would soon kill the process anyway.

    Attributes:
      reason: what requested the stop, `SIGTERM` for example; None before.
    """

    def __init__(self, *, exit_process: Callable[[int], object] = os._exit) -> None:
        """Takes the function that ends the process at once."""
        self.reason: str | None = None
        self._save_state: SaveState = lambda is_unchanged: True
        self._describe_end: DescribeEnd = lambda: (NOTHING_LOST, ExitCode.PREEMPTED)
        self._exit_process = exit_process
        self._grace_seconds = _GRACE_SECONDS
        self._max_wall_seconds: float | None = None
        self._began_seconds = time.monotonic()
        self._signals = SignalPipe(self._handle)
        self._watcher: threading.Thread | None = None
        self._main = _MainThread()

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._signals.install()
            pipe = self._signals.fileno()
            self._watcher = threading.Thread(target=self._watch, args=(pipe,), name="stop-watcher", daemon=True)
            self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.close(self._watcher)
        if isinstance(error, Interrupted):
            raise self.as_preempted(error) from error

    def set_limits(self, *, grace_seconds: float, max_wall_seconds: float | None) -> None:
        """Takes the limits of a run, once they are known.

        Args:
          grace_seconds: from a signal to the end of the process, in any state.
          max_wall_seconds: the run is stopped when this object is as old; None for no limit.
        """
        self._grace_seconds = grace_seconds
        self._max_wall_seconds = max_wall_seconds
        if max_wall_seconds is not None:
            self._signals.set_timer(max_wall_seconds - (time.monotonic() - self._began_seconds))

    def register(self, describe_end: DescribeEnd, save_state: SaveState | None = None) -> None:
        """Takes what this object's thread calls before it ends the process while the main thread hangs.

        Args:
          describe_end: returns what is saved, and the exit code.
          save_state: see `save_state`; None keeps the one that is registered.
        """
        self._describe_end = describe_end
        self._save_state = save_state or self._save_state

    def save_state(self, is_unchanged: Callable[[], bool]) -> bool:
        """Saves the state of the run while the main thread hangs; returns whether it is saved.

        Args:
          is_unchanged: called after the values were read; if False, the main thread has moved on and nothing is saved.
        """
        return self._save_state(is_unchanged)

    def check(self) -> None:
        """Raises `PreemptedError` if a stop was requested."""
        if self.reason is not None:
            raise self.as_preempted(Interrupted())

    def as_preempted(self, error: BaseException) -> BaseException:
        """Returns a `PreemptedError` for an `Interrupted`, and any other error as it is."""
        return PreemptedError(f"{self.reason}; {NOTHING_LOST}") if isinstance(error, Interrupted) else error

    def reinstall_handlers(self) -> None:
        """Takes the signals again after a library took them: TensorFlow's coordination service takes SIGTERM."""
        self._signals.reinstall()

    def uninterruptible(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that is never left early: other processes take part in it, and would wait for ever."""
        return self._main.uninterruptible()

    def stop_interrupting(self) -> None:
        """Makes sure that the main thread, from which this is called, is interrupted and rescued no more."""
        self._main.stop_interrupting()

    @contextlib.contextmanager
    def interruptible(self, rescue: Callable[[], bool] | None = None) -> Iterator[None]:
        """Leaves the block with `PreemptedError`, from anywhere inside, as soon as Python runs again.

        Only for code that can be left anywhere: before there is a state to save, and calls that TensorFlow completes
        or does not start.

        Args:
          rescue: for calls from which Python may not return in time. Once a stop is requested and the call still
            lasts, this is called in another thread, again and again. When it returns True, all is saved, and the
            process ends there. The main thread does not return from the block while it runs.
        """
        if self._main.is_held:
            yield
            return
        self.check()
        try:
            with self._main.interruptible(rescue):
                yield
        except Interrupted:
            self.check()
        except Exception as error:
            if not self._main.was_interrupted:
                raise
            # TensorFlow's C code may replace an exception that is raised in a call that it makes.
            raise self.as_preempted(Interrupted()) from error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, often after `_watch` has seen the signal."""
        self._request(number)
        self._main.interrupt()

    def _request(self, number: int) -> None:
        if self.reason is None:
            is_time = number == signal.SIGALRM
            limit = f"runtime.max_wall_seconds={self._max_wall_seconds:g} is over" if is_time else ""
            self.reason = limit or signal.Signals(number).name

    def _watch(self, pipe: int) -> None:
        """Reads which signals came, in a thread of its own, until the pipe is closed."""
        deadline: float | None = None
        while True:
            ready, _, _ = select.select([pipe], [], [], None if deadline is None else POLL_SECONDS)
            numbers = os.read(pipe, 64) if ready else b""
            if ready and not numbers:
                return
            for number in filter(self._signals.handles, numbers):
                self._request(number)
                deadline = deadline or time.monotonic() + self._grace_seconds
                if self._signals.insists(number):
                    self._exit_process(128 + number)
            if deadline is not None and not ready:
                self._main.rescue(on_saved=lambda: self._end(" "))
                if time.monotonic() > deadline:
                    limit = f"runtime.stop_grace_seconds={self._grace_seconds:g}"
                    self._end(f", and {limit} later the run had not ended; ")

    def _end(self, joint: str) -> None:
        ends: list[tuple[str, int]] = []
        # Bounded, because the file system may be what hangs.
        run_bounded(lambda: ends.append(self._describe_end()), _LAST_WORDS_SECONDS, "end-of-run")
        what, code = ends[0] if ends else ("what is saved is unknown", ExitCode.RETRY)
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"stopped: {self.reason}{joint}{what}", file=sys.stderr, flush=True)
        self._exit_process(int(code))


class _MainThread:
    """Whether the main thread can be interrupted now, and what saves its state while it hangs.

    Attributes:
      was_interrupted: whether it was, which happens once.
    """

    def __init__(self) -> None:
        self.was_interrupted = False
        self._rescue: Callable[[], bool] | None = None
        self._running = threading.RLock()  # held by the main thread except where it may hang
        self._running.acquire()
        self._num_interruptible = self._num_held = 0

    @property
    def is_held(self) -> bool:
        """Whether it must not be interrupted, even in a block that is interruptible."""
        return self._num_held > 0

    def interrupt(self) -> None:
        """Raises `Interrupted` if that is possible here; for the signal handler."""
        if self._num_interruptible and not self.is_held and not self.was_interrupted:
            self.was_interrupted = True
            raise Interrupted

    def stop_interrupting(self) -> None:
        """Makes sure that it is interrupted and rescued no more."""
        self.was_interrupted = True
        self._running.acquire()
        self._rescue = None

    @contextlib.contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Keeps it from being interrupted in the block."""
        self._num_held += 1
        try:
            yield
        finally:
            self._num_held -= 1

    @contextlib.contextmanager
    def interruptible(self, rescue: Callable[[], bool] | None) -> Iterator[None]:
        """Lets it be interrupted in the block, and rescued if that is possible."""
        self._num_interruptible += 1
        try:
            if rescue is None:
                yield
                return
            self._rescue = rescue
            self._running.release()
            try:
                yield
            finally:
                self._running.acquire()
                self._rescue = None
        finally:
            self._num_interruptible -= 1

    def rescue(self, on_saved: Callable[[], object]) -> None:
        """Tries to save the state, in another thread, if the main thread may hang now.

        Args:
          on_saved: called if it is saved, before the main thread can run on.
        """
        if not self._running.acquire(blocking=False):
            return
        try:
            if self._rescue is not None and self._rescue():
                on_saved()
        except Exception:
            _logger.exception("the state could not be saved while the main thread hangs")
            self._rescue = None
        finally:
            self._running.release()


class SignalPipe:
    """The signals that ask a process to stop: each is handled in the main thread, and its number is in a pipe at once.

    Not SIGHUP if it is ignored, which is what `nohup` does.
    """

    def __init__(self, handle: Callable[[int, FrameType | None], None]) -> None:
        """Takes the handler."""
        self._handle = handle
        self._previous: dict[int, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._previous_pipe = -1
        self._first_seconds: float | None = None

    def fileno(self) -> int:
        """Returns the descriptor from which numbers are read, without waiting, while the signals are taken."""
        assert self._pipe is not None, "install was not called"
        return self._pipe[0]

    def insists(self, number: int) -> bool:
        """Whether a signal comes half a second after the first or later: its sender does not want to wait.

        Not SIGHUP: a terminal that is closed sends one, its shell another, and the run can still save.
        """
        if number not in _SIGNALS or number == signal.SIGHUP:
            return False
        now = time.monotonic()
        self._first_seconds = self._first_seconds or now
        return now - self._first_seconds > _SAME_SIGNAL_SECONDS

    def install(self) -> None:
        """Takes the signals; in the main thread."""
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._previous_pipe = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        _unknown_to_children.add(self)
        _hook_fork()

    def handles(self, number: int) -> bool:
        """Whether a signal is among those taken."""
        return number in self._previous

    def set_timer(self, seconds: float) -> None:
        """Has SIGALRM come after `seconds`, if the signals are taken."""
        if self._pipe is not None:
            self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle)
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))

    def reinstall(self) -> None:
        """Takes the signals again, if they were taken."""
        if self._pipe is not None:
            for number in self._previous:
                signal.signal(number, self._handle)
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)

    def restore(self) -> None:
        """Gives the signals back to their former handlers; a forked child does nothing else."""
        if self._pipe is None:
            return
        if signal.SIGALRM in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()
        signal.set_wakeup_fd(self._previous_pipe)
        self._pipe = None

    def close(self, reader: threading.Thread | None = None) -> None:
        """Gives the signals back, if they are taken, and waits for a thread that reads the pipe to its end."""
        if self._pipe is None:
            return
        pipe = self._pipe
        self.restore()
        os.close(pipe[1])
        if reader is not None:
            reader.join()
        os.close(pipe[0])


_unknown_to_children: weakref.WeakSet[SignalPipe] = weakref.WeakSet()


@functools.cache
def _hook_fork() -> None:
    """Lets forked processes have their own signals: a worker that is ended by SIGTERM must not stop this run."""

    def restore() -> None:
        for receiver in list(_unknown_to_children):
            receiver.restore()

    os.register_at_fork(after_in_child=restore)


_GRACE_SECONDS = 25.0
_SAME_SIGNAL_SECONDS = 0.5  # `timeout` and some schedulers signal a process and its group, so the first one comes twice
_LAST_WORDS_SECONDS = 3.0

NOTHING_LOST = "nothing is lost, the same command continues"
