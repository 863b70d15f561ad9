"""Being asked to stop: SIGTERM, SIGINT and the time limit, noticed in every phase of a run.

Owns: the signal handlers while a run lasts, what a second signal does, and the end of the grace period.
Does not own: saving (`engine/loop.py`), or when the state may be saved beside a step (`engine/input_wait.py`).

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

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How often, once the run is asked to stop, what may hang is looked at again."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PreemptedError(UserError, RuntimeError):
    """The run was asked to stop and has saved its state; the same command continues it."""

    exit_code = ExitCode.PREEMPTED


class Interrupted(BaseException):
    """Raised once, by the signal handler; no `except Exception` on its way, of Keras or a user, takes it for its own.

    It mostly becomes a `PreemptedError` where the block ends that may be interrupted. It may also come up as that block
    begins or ends and leave it as it is.
    """


class StopRequest:
    """Set by the first SIGTERM or SIGINT inside its `with` block, or when the time is up.

    A second signal, half a second later or more, ends the process at once. (`timeout` and some schedulers signal a
    process and its group, so the first one comes twice.) So does the end of the grace period: something hangs that
    cannot be ended, and whoever asked would soon kill the process anyway.

    Attributes:
      reason: what asked, `SIGTERM` for example; None while nobody did.
      save_state: called in a thread of this object's while the main thread hangs: saves the state, if the function it
        is given says so once the values have been taken; returns whether it is saved.
      on_leave: called in that thread before it ends the process: says what is saved, and gives the exit code.
    """

    def __init__(self, *, leave: Callable[[int], object] = os._exit) -> None:
        """Takes how the process is ended at once."""
        self.reason: str | None = None
        self.save_state: Callable[[Callable[[], bool]], bool] = lambda is_unchanged: True
        self.on_leave: Callable[[], tuple[str, int]] = lambda: (NOTHING_LOST, ExitCode.PREEMPTED)
        self._leave = leave
        self._grace_seconds = _GRACE_SECONDS
        self._max_wall_seconds: float | None = None
        self._began = time.monotonic()
        self._previous: dict[signal.Signals, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._previous_pipe = -1
        self._watcher: threading.Thread | None = None
        self._rescue: Callable[[], bool] | None = None
        self._python = threading.RLock()  # held by the main thread except where it may hang
        self._python.acquire()
        self._interruptible = self._held = 0
        self._has_interrupted = False

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python allows handlers nowhere else
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._previous_pipe = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        self._watcher = threading.Thread(target=self._watch, args=(self._pipe[0],), name="stop-watcher", daemon=True)
        self._watcher.start()
        _unknown_to_children.add(self)
        _hook_fork()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is not None:
            pipe = self._pipe
            self._let_go()
            os.close(pipe[1])  # ends the watcher
            assert self._watcher is not None
            self._watcher.join()
            os.close(pipe[0])
        if isinstance(error, Interrupted):
            raise self.explained(error) from error

    def _let_go(self) -> None:
        """Gives signals back to whoever had them; in a forked child, that is all of it."""
        if self._pipe is None:
            return
        if signal.SIGALRM in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()
        signal.set_wakeup_fd(self._previous_pipe)
        self._pipe = None

    def set_limits(self, *, grace_seconds: float, max_wall_seconds: float | None) -> None:
        """Takes the limits of a run, once they are known.

        Args:
          grace_seconds: from a signal to the end of the process, whatever it does.
          max_wall_seconds: the run is asked to stop when this object is as old; None for no limit.
        """
        self._grace_seconds = grace_seconds
        self._max_wall_seconds = max_wall_seconds
        if max_wall_seconds is not None and self._pipe is not None:
            self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle)
            left = max_wall_seconds - (time.monotonic() - self._began)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3))

    def check(self) -> None:
        """Raises `PreemptedError` if the run was asked to stop."""
        if self.reason is not None:
            raise self.explained(Interrupted())

    def take_back(self) -> None:
        """Takes signals again from whoever has taken them since: TensorFlow's coordination service takes SIGTERM."""
        if self._pipe is not None:
            for number in self._previous:
                signal.signal(number, self._handle)
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the block from being left early: other processes take part in it, and would wait for ever."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def explained(self, error: BaseException) -> BaseException:
        """Returns a `PreemptedError` for an `Interrupted`, and any other error as it is."""
        return PreemptedError(f"{self.reason}; {NOTHING_LOST}") if isinstance(error, Interrupted) else error

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Leaves the block with `PreemptedError`, from anywhere inside, as soon as Python gets to it.

        Only for what may be left anywhere: what has nothing to save yet, and calls that TensorFlow does whole or not at
        all.
        """
        if self._held:
            yield
            return
        self.check()
        self._interruptible += 1
        try:
            yield
        except Interrupted:
            self.check()
        except Exception as error:
            if not self._has_interrupted:
                raise
            # TensorFlow's C code does not hand on every exception that comes up in a call it makes: it may fail itself.
            raise self.explained(Interrupted()) from error
        finally:
            self._interruptible -= 1

    def regain(self) -> None:
        """Makes sure that the main thread, from which this is called, is interrupted and rescued no more."""
        self._has_interrupted = True
        self._python.acquire()
        self._rescue = None

    @contextlib.contextmanager
    def leaving(self, rescue: Callable[[], bool]) -> Iterator[None]:
        """As `interruptible`, for calls that Python may not come back from in time.

        Once the run is asked to stop and the call still lasts, `rescue` is called in another thread, again and again.
        When it returns True, all is saved, and the process ends there. The main thread does not return from the block
        while `rescue` runs.
        """
        if self._held:
            yield
            return
        with self.interruptible():
            self._rescue = rescue
            self._python.release()
            try:
                yield
            finally:
                self._python.acquire()
                self._rescue = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, often after `_watch` has seen the signal."""
        self._ask(number)
        if self._interruptible and not self._held and not self._has_interrupted:
            self._has_interrupted = True
            raise Interrupted

    def _ask(self, number: int) -> None:
        if self.reason is None:
            is_time = number == signal.SIGALRM
            limit = f"runtime.max_wall_seconds={self._max_wall_seconds:g} is over" if is_time else ""
            self.reason = limit or signal.Signals(number).name

    def _watch(self, pipe: int) -> None:
        """Reads which signals came, in a thread of its own, until the pipe is closed."""
        deadline: float | None = None
        first_signal: float | None = None
        while True:
            ready, _, _ = select.select([pipe], [], [], None if deadline is None else POLL_SECONDS)
            numbers = os.read(pipe, 64) if ready else b""
            if ready and not numbers:
                return
            for number in numbers:
                if number not in self._previous:
                    continue
                self._ask(number)
                now = time.monotonic()
                deadline = deadline or now + self._grace_seconds
                if number == signal.SIGALRM:
                    continue
                first_signal = first_signal or now
                if now - first_signal > _SAME_SIGNAL_SECONDS:
                    self._leave(128 + number)
            if deadline is not None and not ready:
                self._try_rescue()
                if time.monotonic() > deadline:
                    limit = f"runtime.stop_grace_seconds={self._grace_seconds:g}"
                    self._end(f", and {limit} later the run had not ended; ")

    def _try_rescue(self) -> None:
        """Ends the process from here if the main thread hangs and all can be saved."""
        if not self._python.acquire(blocking=False):
            return
        try:
            if self._rescue is not None and self._rescue():
                self._end(" ")
        except Exception:
            _logger.exception("the state could not be saved while the main thread hangs")
            self._rescue = None
        finally:
            self._python.release()

    def _end(self, joint: str) -> None:
        outcome: list[tuple[str, int]] = []
        asking = threading.Thread(target=lambda: outcome.append(self.on_leave()), daemon=True)
        asking.start()
        asking.join(_LAST_WORDS_SECONDS)  # the file system may be what hangs
        what, code = outcome[0] if outcome else ("what is saved cannot be told", ExitCode.RETRY)
        print(f"stopped: {self.reason}{joint}{what}", file=sys.stderr, flush=True)
        self._leave(int(code))


_unknown_to_children: weakref.WeakSet[StopRequest] = weakref.WeakSet()


@functools.cache
def _hook_fork() -> None:
    """Lets forked processes have their own signals: a worker that is ended by SIGTERM must not stop this run."""
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    for stop in list(_unknown_to_children):
        stop._let_go()


_GRACE_SECONDS = 25.0
_SAME_SIGNAL_SECONDS = 0.5
_LAST_WORDS_SECONDS = 3.0

NOTHING_LOST = "nothing is lost, the same command continues"
