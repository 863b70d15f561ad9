"""How far a sweep is: its counts, its best trial, what its running trials do, and when it will be done.

Owns: these facts, from what the driver tells and from the records of the running trials.
Does not own: how they are shown (`sweeps/live_table.py`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.files import RUN_FILE, STATUS_FILE
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.failures import Failure
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import Trial

_DOING = {"train": "train", "evaluate": "eval", "save": "save", "export": "export"}
_ENDED = ("done", "failed", "preempted", "refused")  # an earlier process wrote it: this one has not begun


@dataclasses.dataclass
class Running:
    """A trial that runs.

    Attributes:
      trial: its record.
      since: when it was started.
      doing: what it does.
      step: its last known step; None before.
      end_step: its last step; None while that is not known.
      results: of the metrics that are compared, in its last evaluation; empty before.
    """

    trial: Trial
    since: float
    doing: str = "start"
    step: int | None = None
    end_step: int | None = None
    results: Sequence[float] = ()


class Progress(Observer):
    """What is known of a sweep while it runs.

    Attributes:
      asked: how many trials are to be complete or pruned.
      objective: what they are compared by.
      ended: the trials that have ended, the newest last.
      running: those that run here, by number.
      size: of the population; None for trials that are independent of each other.
    """

    def __init__(
        self,
        directory: str,
        *,
        asked: int,
        parallel: int,
        objective: Objective,
        size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked, self.objective, self.size = asked, objective, size
        self.ended: dict[int, Trial] = {}
        self.running: dict[int, Running] = {}
        self._begun: set[int] = set()
        self._directory, self._parallel = directory, parallel
        self._clock, self._began = clock, clock()
        self._seconds = 0.0  # that the trials took which have ended since then
        self._counted = 0  # how many of them count

    def know(self, trials: Mapping[int, Trial]) -> None:
        self._begun = {number for number, each in trials.items() if each.state is None}
        for number in self._begun:
            self.ended.pop(number, None)  # `sweep retry` has it run again
        for number, each in trials.items():
            if each.state is not None:
                self.ended.setdefault(number, each)

    def start(self, trial: Trial, *, continues: bool) -> None:
        self.running[trial.number] = Running(trial, self._clock())

    def report(self, trial: Trial, step: int, results: Sequence[float]) -> None:
        if trial.number in self.running:
            self.running[trial.number].results = results

    def wait(self, trial: Trial, how: str, seconds: float) -> None:
        self.running[trial.number].doing = "wait"

    def end(self, trial: Trial, result: str, failure: Failure | None = None) -> None:
        self.ended[trial.number] = trial
        running = self.running.pop(trial.number, None)
        if running is not None:
            self._seconds += self._clock() - running.since
            self._counted += self._counts(trial)

    def look(self) -> None:
        for number, running in self.running.items():
            place = files.join(trials.directory(self._directory, number), trials.RUN)
            status, record = _read(place, STATUS_FILE), _read(place, RUN_FILE)
            phase = status.get("phase")
            if phase is None or phase in _ENDED:
                continue
            running.doing = _DOING.get(phase, "start")
            running.step = status.get("step") or running.step
            running.end_step = (record.get("steps") or {}).get("end")

    @property
    def done(self) -> int:
        """How many of the trials that are asked for have ended."""
        return sum(map(self._counts, self.ended.values()))

    def _counts(self, trial: Trial) -> bool:
        return trial.state in ("complete", "pruned") or self.size is not None

    @property
    def open(self) -> int:
        """How many trials have begun that do not run here: other processes work on them, or they are continued."""
        return len(self._begun - self.running.keys() - self.ended.keys())

    def count(self, state: str) -> int:
        """Returns how many trials have ended in a state."""
        return sum(each.state == state for each in self.ended.values())

    @property
    def generation(self) -> tuple[int, int] | None:
        """The generation of a population that trains, from 1, and how many there are; None without a population."""
        if self.size is None:
            return None
        count = self.asked // self.size
        return min(len(self.ended) // self.size + 1, count), count

    @property
    def elapsed_seconds(self) -> float:
        """Since the sweep was started, or started again."""
        return self._clock() - self._began

    @property
    def left_seconds(self) -> float | None:
        """How long the rest will take, if the others take as long as those that have ended; None before one has."""
        if not self._counted:
            return None
        each = self._seconds / self._counted  # pruned trials are shorter, failed ones take time and do not count
        now = self._clock()
        spent = sum(min(now - running.since, each) for running in self.running.values())
        left = self.asked - self.done
        return max(0.0, left * each - spent) / max(1, min(left, self._parallel + self.open))


def _read(place: str, name: str) -> dict[str, Any]:
    try:
        return files.read_json(files.join(place, name))
    except Exception:  # not there yet, replaced just now, or on a storage that fails: the next look may have it
        return {}
