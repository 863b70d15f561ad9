"""What other commands ask of a sweep through its directory: to stop, and to run trials again.

Owns: the request to stop, which drivers on any machine find there, waiting for their end; forgetting how a trial ended.
Does not own: how a driver stops (`driver.py`), which process works on a trial (`claims.py`).
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.lock import DirectoryLock, LockedError, lock_path
from official_trainer.sweeps import results
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.trial import SweepError, Trial

STOP = "sweep stop"
"""What a driver says in the place of a signal's name."""

_FILE = ".stop.json"
_LOOK_SECONDS = 2.0
_POLL_SECONDS = 0.5


class StopRequest:
    """Says whether `sweep stop` was given since this object was made, also on another machine."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = files.join(directory, _FILE), clock
        self._before: Any = None
        self._before = self._read()
        self._looked_seconds = clock()

    def came(self) -> bool:
        """Looks now and then; returns whether the request is there."""
        if self._clock() - self._looked_seconds < _LOOK_SECONDS:
            return False
        self._looked_seconds = self._clock()
        return bool(self._read() != self._before)

    def _read(self) -> Any:
        try:
            return files.read_json(self._path)
        except (OSError, ValueError):  # not there; or the next look may have it
            return self._before


def stop(directory: str, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> bool:
    """Has all drivers of a sweep save and end, and waits for it; returns whether there were any.

    Args:
      directory: of the sweep.
      say: prints whom it waits for.
      sleep: waits.

    Raises:
      SweepError: no sweep is there.
    """
    results.read_identity(directory)
    locks: dict[str, DirectoryLock] = {}  # which know how long their holders were silent

    def holders() -> set[str]:
        """Returns the processes that run the sweep, which hold its lock or that of a trial."""
        found = set()
        for place in (directory, *(trials.directory(directory, number) for number in trials.numbers(directory))):
            try:
                holder = files.read_json(lock_path(place))
                named = f"pid {holder['pid']} on {holder['host']}"
            except (OSError, ValueError, KeyError):  # no process holds it
                continue
            lock = locks.setdefault(place, DirectoryLock(place))
            if lock.try_acquire():  # of a process that was killed
                lock.release()
            else:
                found.add(named)
        return found

    asked = holders()
    if not asked:
        return False
    files.write_text_atomically(files.join(directory, _FILE), json.dumps({"id": uuid.uuid4().hex}) + "\n")
    say(f"asked to save and end: {', '.join(sorted(asked))}; waiting until it is done")
    while asked & holders():
        sleep(_POLL_SECONDS)
    return True


def retry(directory: str, numbers: Sequence[int] = ()) -> list[int]:
    """Forgets how trials ended, and their runs: the next command runs them again with what was drawn for them.

    Args:
      directory: of the sweep.
      numbers: of the trials; none for all that have failed.

    Returns:
      Their numbers; none if no trial has failed.

    Raises:
      SweepError: there is no such trial, it has not ended, or a process works on it; then nothing has changed.
    """
    found = results.read(directory)
    chosen = [found.get(number) for number in sorted(set(numbers))]
    chosen = chosen if numbers else [each for each in found.results if each.state == "failed"]
    for each in chosen:
        number = each.trial.number
        if each.state == "unreadable":
            raise SweepError(each.trial.reason)
        size = found.population.size if found.population else 0
        if size and found.results[-1].trial.number >= (number // size + 1) * size:
            generation = number // size + 1
            raise SweepError(
                f"trial {number} is of generation {generation}, from which generation {generation + 1} was made; "
                "it cannot run again without that"
            )
        if each.state == "not done":
            raise SweepError(f"trial {number} is not done: the command of the sweep continues it")
    records = [each.trial for each in chosen]
    with contextlib.ExitStack() as held:
        for trial in records:  # neither a driver nor its own process may have one of them
            place = trials.directory(directory, trial.number)
            try:
                held.enter_context(DirectoryLock(place, flag="trial"))
                if files.exists(run_dir := files.join(place, trials.RUN)):
                    with DirectoryLock(run_dir, flag="run"):
                        pass
            except LockedError as error:
                what = f"trial {trial.number} is worked on, so it stays as it is: {error}"
                raise SweepError(what, ExitCode.RETRY) from error
        for trial in records:
            for name in (trials.RUN, trials.OUTPUT, trials.RESULT):  # before the record: a kill here can be repeated
                files.remove(files.join(trials.directory(directory, trial.number), name))
            kept = {name: getattr(trial, name) for name in ("number", "values", "parent", "attempt", "without")}
            trials.write(directory, Trial(**kept, retried=True))
    return [trial.number for trial in records]
