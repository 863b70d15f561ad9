"""The stall watchdog: notices that a run makes no progress, and never takes a slow one for a stalled one.

Owns: what counts as progress, and how long a gap is healthy, which it learns from the run itself.
Does not own: when phases begin (`engine/loop.py`), or what is done about a stall (`stall_report.py`). It runs in a
thread, so a hang in C code that never lets go of Python's global lock stops it too, and is not noticed.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent import futures
from typing import Any

from official_trainer.runs.health.stall_report import PEERS, SHARED, LateReports, Stall, dump_and_exit
from official_trainer.threads import RepeatingThread, WorkerThread, has_ended

_logger = logging.getLogger(__name__)

FACTOR = 10
"""A gap is a stall when it is this many times as long as the longest one that was healthy."""

_MAX_POLL_SECONDS = 1.0
_POLLS_IN_FLOOR = 20
_TRAIN = (*SHARED, "input")

WAITING = "wait"
"""The phase of a process that waits for the next call of the chief, which may take any time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What a probe sees of a run from outside; one that differs from the last is progress.

    Attributes:
      step: global step, if it can be read.
      waiting_for_input: in the phase `train`, whether the next batch is waited for; None if that is unknown.
      waiting_for_peers: whether other processes are waited for, to do the same.
      detail: anything else that changes with the work, such as a count of batches or bytes.
    """

    step: int | None = None
    waiting_for_input: bool | None = None
    waiting_for_peers: bool = False
    detail: Hashable = None


def probe_of(trainer: Any) -> Callable[[], dict[str, Any]]:
    """Returns a function that returns what changes while a trainer works, as a `Reading` holds it, in any thread."""

    def probe() -> dict[str, Any]:
        clock = trainer.context.clock
        return {
            "step": trainer.context.step,
            "waiting_for_input": clock.is_waiting,
            "waiting_for_peers": trainer.process_group.is_waiting,
            "detail": (clock.mark, trainer.evaluation.num_examples),
        }

    return probe


class Progress:
    """What was seen of a run, and whether it stalls: a function of the calls and of the times given with them.

    A gap is the time between two signs of progress. It counts for every activity in it, and the most
    generous of their limits holds. Until a phase has moved (a beat, a step, or its end), the startup limit holds:
    batches that arrive show nothing about how long it takes to compile.
    """

    def __init__(self, *, floor_seconds: float, startup_seconds: float, now: float = 0.0) -> None:
        """Begins in the phase `start`.

        Args:
          floor_seconds: no gap shorter than this is a stall.
          startup_seconds: limit of an activity of which nothing was seen yet: tracing, compiling and the filling of
            shuffle buffers take long the first time.
          now: the time.
        """
        self.entries = 0
        self._floor_seconds, self._startup_seconds = floor_seconds, startup_seconds
        self._phase = self._activity = "start"
        self._step: int | None = None
        self._reading: Reading | None = None
        self._since = now
        self._activities = {"start"}
        self._moved: set[str] = set()
        self._longest_seconds: dict[str, float] = {}
        self._is_reported = False

    def enter(self, phase: str, step: int | None, now: float) -> None:
        """The run begins `phase`; earlier readings do not count for it."""
        self._moved.add(self._phase)
        self.entries += 1
        self._reading = None
        self._phase = self._activity = phase
        self._end_gap(step, now)

    def beat(self, step: int | None, now: float) -> None:
        """A piece of the phase's work is done."""
        self._moved.add(self._phase)
        self._end_gap(step, now)

    def read(self, reading: Reading | None, now: float) -> None:
        """Takes what the probe saw since the phase began; None if it had no answer."""
        before, self._activity = self._reading, self._phase
        if reading is not None:
            if reading.waiting_for_peers:
                self._activity = PEERS
            elif self._phase == "train" and reading.waiting_for_input is not None:
                self._activity = "input" if reading.waiting_for_input else "window"
            self._reading = reading
            self._step = self._step if reading.step is None else reading.step
            if before is not None and reading != before:
                if reading.step != before.step:
                    self._moved.add(self._phase)
                self._end_gap(reading.step, now)
        self._activities.add(self._activity)

    def stall(self, now: float, patience_seconds: float = math.inf) -> Stall | None:
        """Returns the stall that there is at `now`, once; None if all is well or it was returned before.

        Args:
          now: the time.
          patience_seconds: see `gap`.
        """
        gap = self.gap(now, patience_seconds)
        if gap is None or gap.waited_seconds <= gap.limit_seconds or self._is_reported:
            return None
        self._is_reported = True
        return gap

    def gap(self, now: float, patience_seconds: float) -> Stall | None:
        """Returns the gap that there is at `now`, however short; None if it may take any time.

        Args:
          now: the time.
          patience_seconds: the limit with other processes, in a step that does what was done before.
        """
        if self._phase == WAITING:
            return None
        longest = max(map(self._longest_gap_seconds, self._activities), key=self._limit_seconds)
        waited, limit = now - self._since, self._limit_seconds(longest)
        is_patience_over = self._activity in SHARED and longest is not None and waited > patience_seconds
        return Stall(
            activity=self._activity,
            waited_seconds=waited,
            limit_seconds=patience_seconds if is_patience_over else limit,
            longest_gap_seconds=longest,
            step=self._step,
            is_patience_over=is_patience_over,
        )

    def _limit_seconds(self, longest_gap_seconds: float | None) -> float:
        """Returns the limit after gaps of at most `longest_gap_seconds`; None if there were none."""
        usual = self._startup_seconds if longest_gap_seconds is None else FACTOR * longest_gap_seconds
        return max(self._floor_seconds, usual)

    def _end_gap(self, step: int | None, now: float) -> None:
        for activity in self._activities:
            self._longest_seconds[activity] = max(self._longest_seconds.get(activity, 0), now - self._since)
        self._activities = {self._activity}
        self._since = now
        self._is_reported = False
        self._step = self._step if step is None else step

    def _longest_gap_seconds(self, activity: str) -> float | None:
        if self._phase not in self._moved:
            return None
        longest_seconds = self._longest_seconds
        if activity in _TRAIN and (activity == "train" or activity not in longest_seconds):
            # The activity is unknown, or was too short to be seen: what is healthy in any of them is healthy.
            return max((longest_seconds[name] for name in _TRAIN if name in longest_seconds), default=None)
        return longest_seconds.get(self._phase if activity == PEERS else activity)


class Watchdog:
    """Watches a run from a thread of its own inside its `with` block.

    All calls may come from any thread.
    """

    def __init__(
        self,
        runtime: Any,
        late_reports: LateReports,
        *,
        record: Callable[[Stall], object] = lambda stall: None,
        on_stall: Callable[[Stall, str, Callable[[Stall], object]], object] = dump_and_exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares; the `with` block starts.

        Args:
          runtime: the config's section; without `stall_floor_seconds` nothing is ever a stall.
          late_reports: of the run's processes: this one reports when it is late, and reads which others are.
          record: puts a stall on record.
          on_stall: called in the watching thread, once a stall, with the folder of this process and `record`.
          clock: tells the time in seconds.
        """
        floor_seconds = runtime.stall_floor_seconds or math.inf
        self.poll_seconds = min(_MAX_POLL_SECONDS, floor_seconds / _POLLS_IN_FLOOR)
        self._end = lambda stall: on_stall(stall, late_reports.folder, functools.partial(self._record_and_tell, record))
        self._told: list[Callable[[Stall], object]] = []
        self._late_reports, self._is_late = late_reports, False
        self._prober: _Prober | None = None
        self._clock = clock
        self._polled_at = clock()
        self._watched_seconds = 0.0
        self._progress = Progress(floor_seconds=floor_seconds, startup_seconds=runtime.stall_startup_seconds)
        self._lock = threading.Lock()
        self._thread = RepeatingThread("stall-watchdog", self.poll, self.poll_seconds)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops for good; no stall is reported from now on."""
        with self._lock:
            self._thread.stop()
        if self._prober is not None:
            self._prober.close()

    def observe(self, probe: Callable[[], Mapping[str, Any]]) -> None:
        """Takes a function that looks at the run, once there is something to see.

        Args:
          probe: returns what a `Reading` holds. It is called in another thread; it may fail and it may block: then
            there is no information.
        """
        self._prober = _Prober(probe)

    def tell(self, function: Callable[[Stall], object]) -> None:
        """Takes a function that is told of a stall, in a thread of its own, before the process ends."""
        self._told.append(function)

    def _record_and_tell(self, record: Callable[[Stall], object], stall: Stall) -> None:
        calls = [WorkerThread("stall-told").submit(functools.partial(listener, stall)) for listener in self._told]
        try:
            record(stall)
        finally:
            for call in calls:
                has_ended(call)

    def enter(self, phase: str, step: int | None = None) -> None:
        """Takes the phase that the run begins; that is progress.

        Code that waits for batches itself may enter `input` and `window` as it does so, instead of a probe.
        """
        with self._lock:
            self._progress.enter(phase, step, self._now())

    def beat(self, step: int | None = None) -> None:
        """A piece of work is done: a window, a step of an evaluation, a file. Call it after the work, not before."""
        with self._lock:
            self._progress.beat(step, self._now())

    def poll(self) -> None:
        """Looks at the run once, as the thread does every `poll_seconds`."""
        patience_seconds = self._late_reports.patience_seconds
        with self._lock:
            now = self._watched_seconds = self._now()
            self._polled_at = self._clock()
            is_stopped = self._thread.is_stopped  # between the end of a pause and this call
            if self._prober is not None and not is_stopped:
                self._progress.read(self._prober.read(self._progress.entries), now)
            gap = None if is_stopped else self._progress.gap(now, patience_seconds)
            stall = None if gap is None else self._progress.stall(now, patience_seconds)
        is_late = gap is not None and gap.waited_seconds > min(gap.limit_seconds, patience_seconds) / 2
        if is_late != self._is_late:
            self._is_late = is_late
            self._late_reports.report(gap if is_late else None)
        if stall is not None:
            try:
                self._end(dataclasses.replace(stall, others=tuple(self._late_reports.of_others())))
            except Exception:
                _logger.exception("a stall could not be reported: %s", stall)

    def _now(self) -> float:
        """Returns the seconds for which this process was seen to run.

        A poll that comes late means that the whole process was stopped, suspended or starved: the run could not move
        either, so the excess counts neither as a stall nor as a gap that was healthy.
        """
        return self._watched_seconds + min(self._clock() - self._polled_at, 2 * self.poll_seconds)


class _Prober:
    """Calls a probe in a thread of its own, so that one that blocks does not block the watchdog."""

    def __init__(self, probe: Callable[[], Mapping[str, Any]]) -> None:
        self._probe = probe
        self._thread = WorkerThread("stall-probe")
        self._call: futures.Future[Any] | None = None
        self._answer: dict[int, Reading] = {}

    def read(self, entry: int) -> Reading | None:
        """Starts the next call, unless the last one lasts; returns what the last one read, if it was of `entry`."""
        if self._call is not None and not self._call.done():
            return None
        answer, self._answer = self._answer.get(entry), {}

        def ask() -> None:
            try:
                self._answer = {entry: Reading(**self._probe())}
            except Exception as error:
                _logger.debug("the probe of the stall watchdog failed: %s", error)

        self._call = self._thread.submit(ask)
        return answer

    def close(self) -> None:
        """Ends the thread, once the probe returns."""
        self._thread.close()
