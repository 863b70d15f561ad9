"""The trials that this process works on, none of which another process works on.

Owns: claiming a trial by the lock of its directory, which trial comes next, noticing that a claim was lost.
Does not own: how a lock is taken (`lock.py`), what becomes of a trial (`driver.py`).

A trial may be claimed once the lock of its directory and that of its run are free: those of a process that was killed
are at once on its machine, and elsewhere after `lock.LEASE_SECONDS`. Nothing here waits for that: a driver asks again.

Only the kernel's lock decides at once between two processes that claim at the same time. Where processes of several
machines work, one that has claimed a trial waits for `SETTLE_SECONDS`, and has it if the claim was not overwritten by
then: that is longer than another process takes from its look at a free lock to its own claim. If it was not, the loser
finds out at its next renewal.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.lock import DirectoryLock, lock_path
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.trial import SweepError, Trial

SETTLE_SECONDS = 2.0


class ClaimLostError(SweepError):
    """Another process works on the trial by now."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"trial {number} was taken over by another process: {why}", ExitCode.RETRY)


class Claims:
    """The trials that this process works on; the end of the `with` block gives them back."""

    def __init__(
        self,
        sweep_dir: str,
        *,
        settle_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes where the trials are.

        Args:
          sweep_dir: directory of the sweep.
          settle_seconds: after which a claim counts.
          clock: returns the time in seconds from any origin.
          sleep: waits.
        """
        self._sweep_dir, self._settle_seconds, self._clock, self._sleep = sweep_dir, settle_seconds, clock, sleep
        self._mine: set[int] = set()
        self._locks: dict[str, DirectoryLock] = {}  # also of others, as they know how long their holders were silent

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *raised: object) -> None:
        for number in list(self._mine):
            self.release(number)

    def next(
        self,
        found: Mapping[int, Trial],
        wanted: int,
        counts: Callable[[Trial], bool] = lambda trial: trial.state in ("complete", "pruned"),
    ) -> int | None:
        """Claims the next trial that has no end on record; returns its number, or None if there is none to claim now.

        A new trial is claimed only if all that are not done would not be enough, whoever works on them: with those,
        never more than `wanted` count.

        Args:
          found: the records, as they are now. The caller reads that of the claimed trial again.
          wanted: how many trials are to count.
          counts: whether a trial counts; those that are complete or pruned do.
        """
        done = sum(map(counts, found.values()))
        mine = self._mine
        pending = {number for number, each in found.items() if each.state is None} | mine
        last = max(found.keys() | mine, default=-1)
        for number in itertools.count():
            trial = found.get(number)
            if number in mine or (trial is not None and trial.state is not None):
                continue
            before = pending if trial is None else {each for each in pending if each < number or each in mine}
            if (trial is not None and trial.retried) or done + len(before - {number}) < wanted:
                if self._claim(number):
                    return number if self._goes_on(number) else None
                pending.add(number)
            elif number > last:
                return None
        raise AssertionError

    def check(self, number: int, *, now: bool = False) -> None:
        """Returns if this process holds the claim on a trial.

        Args:
          number: of the trial.
          now: whether to look at the lock, not only at what its last renewal has found.

        Raises:
          ClaimLostError: another process has it, or its directory was moved.
        """
        lock = self._lock(trials.directory(self._sweep_dir, number))
        if now:
            lock.renew()
        if (why := lock.lost_to) is not None:
            raise ClaimLostError(number, why)

    def release(self, number: int) -> None:
        """Gives a trial back, if it is held."""
        if number in self._mine:
            self._mine.remove(number)
            self._locks.pop(trials.directory(self._sweep_dir, number)).release()

    def clean_up(self, ended: Iterable[int]) -> None:
        """Removes the locks that killed processes have left on trials that have ended."""
        for number in ended:
            for locked in (place(self._sweep_dir, number) for place in (trials.directory, trials.run_directory)):
                lock = DirectoryLock(locked, clock=self._clock)
                if files.exists(lock_path(locked)) and lock.try_acquire():
                    lock.release()

    def _claim(self, number: int) -> bool:
        """Claims a trial; returns whether it is this process's."""
        place = trials.directory(self._sweep_dir, number)
        files.make_dirs(place)
        lock = self._lock(place)
        if not lock.try_acquire():
            return False
        if self._settle_seconds:
            self._sleep(self._settle_seconds)
            lock.renew()
        if lock.lost_to is not None:
            lock.release()
            return False
        self._mine.add(number)
        return True

    def _goes_on(self, number: int) -> bool:
        """Returns whether a claimed trial may be worked on; gives it back while its old process still runs.

        That may outlive a driver that was stopped. Others wait for it too, as what they draw depends on its end.
        """
        run_dir = trials.run_directory(self._sweep_dir, number)
        if not files.exists(run_dir):
            return True
        is_free = self._lock(run_dir).try_acquire()
        self._lock(run_dir).release()
        if not is_free:
            self.release(number)
        return is_free

    def _lock(self, place: str) -> DirectoryLock:
        return self._locks.setdefault(place, DirectoryLock(place, clock=self._clock))
