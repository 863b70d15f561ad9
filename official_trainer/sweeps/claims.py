"""The trials that this process works on, none of which another process works on.

Owns: claiming a trial by the lock of its directory, which trial comes next, noticing that a claim was lost.
Does not own: how a lock is taken (`lock.py`), what becomes of a trial (`driver.py`).

A trial may be claimed once the lock of its directory and that of its run are free: those of a process that was killed
are at once on its machine, and elsewhere after `lock.LEASE_SECONDS`. Nothing here waits, so a driver asks again.

Only the kernel's lock decides at once between two processes that claim at the same time. Where processes of several
machines work, a claim counts after `SETTLE_SECONDS`, if it has not been overwritten by then: that is longer than
another process takes from its look at a free lock to its own claim. If it was not, the loser finds out at its next
renewal.
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
    ) -> None:
        """Takes where the trials are.

        Args:
          sweep_dir: directory of the sweep.
          settle_seconds: after which a claim counts.
          clock: returns the time in seconds from any origin.
        """
        self._sweep_dir, self._settle_seconds, self._clock = sweep_dir, settle_seconds, clock
        self._claims: dict[int, _Claim] = {}

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *raised: object) -> None:
        for number in list(self._claims):
            self.release(number)

    @property
    def is_claiming(self) -> bool:
        """Whether a claim does not count yet."""
        return any(claim.is_held and not claim.counts for claim in self._claims.values())

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
        number = self._next(found, wanted, counts)
        for other, claim in list(self._claims.items()):
            if claim.is_held and not claim.counts and other != number:
                self.release(other)  # another process may have it, while this one trains the trial before
        return number if number is not None and self._claims[number].counts else None

    def _next(self, found: Mapping[int, Trial], wanted: int, counts: Callable[[Trial], bool]) -> int | None:
        """Returns the trial to claim next, with a claim that may not count yet."""
        done = sum(map(counts, found.values()))
        mine = {number for number, claim in self._claims.items() if claim.counts}
        pending = {number for number, each in found.items() if each.state is None} | mine
        last = max(found.keys() | mine, default=-1)
        for number in itertools.count():
            trial = found.get(number)
            if number in mine or (trial is not None and trial.state is not None):
                continue
            before = pending if trial is None else {each for each in pending if each < number or each in mine}
            if (trial is not None and trial.retried) or done + len(before - {number}) < wanted:
                if self._claim(number):
                    return number
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
        if (why := self._claims[number].lost_to(now=now)) is not None:
            raise ClaimLostError(number, why)

    def release(self, number: int) -> None:
        """Gives a trial back, if it is held."""
        if (claim := self._claims.pop(number, None)) is not None:
            claim.release()

    def clean_up(self, ended: Iterable[int]) -> None:
        """Removes the locks that killed processes have left on trials that have ended."""
        for number in ended:
            place = trials.directory(self._sweep_dir, number)
            for locked in (place, files.join(place, trials.RUN)):
                lock = DirectoryLock(locked, clock=self._clock)
                if files.exists(lock_path(locked)) and lock.try_acquire():
                    lock.release()

    def _claim(self, number: int) -> bool:
        """Claims a trial; returns whether it is this process's, which is so before the claim counts."""
        place = trials.directory(self._sweep_dir, number)
        files.make_dirs(place)
        claim = self._claims.get(number) or _Claim(place, self._settle_seconds, self._clock)
        self._claims[number] = claim  # also one that is not held: it knows how long its holder was silent
        return claim.take()


class _Claim:
    """The claim on one trial.

    Attributes:
      counts: whether the trial may be worked on.
    """

    def __init__(self, place: str, settle_seconds: float, clock: Callable[[], float]) -> None:
        self.counts = False
        self._lock = DirectoryLock(place, clock=clock)
        self._run_dir = files.join(place, trials.RUN)
        self._run_lock = DirectoryLock(self._run_dir, clock=clock)
        self._settle_seconds, self._clock = settle_seconds, clock
        self._since: float | None = None

    def take(self) -> bool:
        """Goes on claiming; returns whether the trial is this process's, which is so before it counts."""
        if self._since is None:
            if not self._lock.try_acquire():
                return False
            self._since = self._clock()
        elif self.lost_to(now=True) is not None:
            self.release()
            return False
        self.counts = self._clock() - self._since >= self._settle_seconds and self._run_is_free()
        return True

    @property
    def is_held(self) -> bool:
        """Whether the trial is this process's, as far as it knows."""
        return self._since is not None

    def lost_to(self, *, now: bool) -> str | None:
        """Returns why it is lost; None if it is held."""
        if now:
            self._lock.renew()
        return self._lock.lost_to

    def release(self) -> None:
        self._lock.release()
        self._since, self.counts = None, False

    def _run_is_free(self) -> bool:
        """Returns whether the trial's process is gone: it may outlive a driver that was stopped for long."""
        if not files.exists(self._run_dir):
            return True
        is_free = self._run_lock.try_acquire()
        self._run_lock.release()
        return is_free
