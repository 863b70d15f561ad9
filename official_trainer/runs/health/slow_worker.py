"""Which of the processes that train together makes the others wait, and in which phase.

Owns: the comparison, and how long a difference has to last before it is said. Does not own: what a process measures of
its own steps (`engine/step_times.py`, without what it waits for others), or where a finding goes (`runs/observer.py`).

A worker is slow if the steps of the others would be shorter without what it takes longer than each of them, which is
also what they wait for it. Saving is a part of the chief alone: all others wait for it.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Sequence

from official_trainer.runs.recorded import duration_text, step_time_text

MARGIN = 0.08
"""Of the run's time: what a worker has to cost to be named. With a fifth more work, it costs a sixth, or 0.17."""

_SPAN_SECONDS = 2.0  # windows are looked at together: a busy machine gives each worker its turn within that
_SPANS, _SPANS_OVER = 8, 7  # of the newest ones, how many have to show it; a wait for the system seldom lasts as long
_SAVES = 3

Seconds = tuple[float, float]
"""For how long a worker's steps waited for its data, and computed."""


@dataclasses.dataclass(frozen=True)
class SlowWorker:
    """A worker that the others wait for.

    Attributes:
      worker: its number.
      phase: `input`, `compute` or `save`.
      cost: how much of the run's time that is.
      evidence: the numbers that show it, in words.
    """

    worker: int
    phase: str
    cost: float
    evidence: str

    def __str__(self) -> str:
        return (
            f"worker {self.worker} is slow in {self.phase}, which is {self.cost:.0%} of the run's time: {self.evidence}"
        )


@dataclasses.dataclass
class _Span:
    """Windows in a row."""

    steps: int = 0
    seconds: float = 0.0
    workers: list[Seconds] = dataclasses.field(default_factory=list)

    def add(self, steps: int, seconds: float, workers: Sequence[Seconds]) -> None:
        self.steps += steps
        self.seconds += seconds
        before = self.workers or [(0.0, 0.0)] * len(workers)
        self.workers = [(a + c, b + d) for (a, b), (c, d) in zip(before, workers, strict=True)]

    @property
    def slowest(self) -> tuple[int, float]:
        """The worker whose own part of the steps is the longest, and how much of the time it is longer than others'."""
        own = [sum(each) for each in self.workers]
        worker = max(range(len(own)), key=own.__getitem__)
        return worker, (own[worker] - max(own[:worker] + own[worker + 1 :])) / self.seconds


class SlowWorkers:
    """Finds the worker that makes the others wait.

    Attributes:
      found: the one that is slow now, or None.
    """

    def __init__(self) -> None:
        self.found: SlowWorker | None = None
        self._spans: collections.deque[_Span] = collections.deque(maxlen=_SPANS)
        self._span = _Span()
        self._seconds, self._save_seconds = 0.0, 0.0
        self._saves: collections.deque[tuple[float, float]] = collections.deque(maxlen=_SAVES)

    def save(self, seconds: float) -> None:
        """The chief has saved, or begun to, and the others waited meanwhile."""
        self._save_seconds += seconds

    def window(self, steps: int, seconds: float, workers: Sequence[Seconds | None], *, has_traced: bool) -> bool:
        """A window has ended; returns whether what is found has changed.

        Args:
          steps: how many it ran.
          seconds: how long it took.
          workers: of each worker, what its own part took.
          has_traced: whether TensorFlow traced in it, so that it says little.
        """
        known = [each for each in workers if each is not None]
        if len(known) < max(2, len(workers)) or has_traced or steps == 0:
            self._save_seconds = 0.0
            return False
        self._seconds += seconds
        if self._save_seconds:
            self._saves.append((self._save_seconds, self._seconds + self._save_seconds))
            self._seconds = self._save_seconds = 0.0
        self._span.add(steps, seconds, known)
        if self._span.seconds < _SPAN_SECONDS:
            return False
        self._spans.append(self._span)
        self._span = _Span()
        before, self.found = self.found, self._saver() or self._slow()
        named = [None if each is None else (each.worker, each.phase) for each in (before, self.found)]
        return named[0] != named[1]

    def _slow(self) -> SlowWorker | None:
        """Compares the own parts; one that was named stays so while half of the newest spans show it."""
        if len(self._spans) < _SPANS:
            return None
        slowest = [span.slowest for span in self._spans]
        worker = statistics.mode(worker for worker, _ in slowest)
        is_named = self.found is not None and self.found.worker == worker and self.found.phase != "save"
        needed, margin = (_SPANS // 2, MARGIN / 2) if is_named else (_SPANS_OVER, MARGIN)
        if sum(each == worker and cost >= margin for each, cost in slowest) < needed:
            return None
        steps, total = sum(span.steps for span in self._spans), sum(span.seconds for span in self._spans)
        own = [tuple(sum(span.workers[i][k] for span in self._spans) / steps for k in (0, 1)) for i in self._numbers]
        others = [max(each[k] for i, each in enumerate(own) if i != worker) for k in (0, 1)]
        k = max((0, 1), key=lambda k: own[worker][k] - others[k])
        excess = sum(own[worker]) - max(sum(each) for i, each in enumerate(own) if i != worker)
        waits = max(total / steps - sum(each) for i, each in enumerate(own) if i != worker)
        doing = ("waits for its data", "computes")[k]
        left = total / steps - sum(own[worker])
        evidence = (
            f"in a step it {doing} {step_time_text(own[worker][k])}, the slowest of the others "
            f"{step_time_text(others[k])}; after its own part it waits {step_time_text(left)}, "
            f"another up to {step_time_text(waits)}, in the last {total:.0f} s"
        )
        return SlowWorker(worker, ("input", "compute")[k], excess * steps / total, evidence)

    @property
    def _numbers(self) -> range:
        return range(len(self._spans[-1].workers))

    def _saver(self) -> SlowWorker | None:
        """Says how much of the time between saves all wait for the chief's."""
        if len(self._saves) < _SAVES:
            return None
        saving, total = (sum(each) for each in zip(*self._saves, strict=True))
        is_named = self.found is not None and self.found.phase == "save"
        if saving / total < (MARGIN / 2 if is_named else MARGIN):
            return None
        evidence = f"all waited {duration_text(saving)} for its last {_SAVES} saves, of {duration_text(total)}"
        return SlowWorker(0, "save", saving / total, evidence)
