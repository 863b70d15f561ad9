"""The trackers of a process of a run, with `metrics.jsonl` as the ledger: a row there says that all else is done.

Owns: that the row of an evaluation comes after everything about it was written, so that a kill loses none of it and
none is there twice. Does not own: which trackers there are (`runs/build.py` of the engine), the rows' format
(`jsonl.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.tracking import Media, Tracker, Trackers, flatten
from official_trainer.tracking.jsonl import JsonlTracker

EVALUATION = "validation"
"""The split whose rows are asked for after a restart: an evaluation with a row is not made again."""


class LedgerTrackers(Trackers):
    """Sends everything to several trackers, and to the ledger last."""

    def __init__(self, trackers: Sequence[Tracker], ledger: JsonlTracker) -> None:
        super().__init__([*trackers, ledger])
        self._others = Trackers(trackers)
        self._ledger = ledger

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        flat = flatten(values)
        with self._counted():
            self._others.log(split, step, flat)
            if split == EVALUATION:
                self._others.flush()
            self._ledger.log(split, step, flat)

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        with self._counted():
            super().publish(split, step, media)

    def flush(self) -> None:
        with self._counted():
            super().flush()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent_seconds += time.monotonic() - start

    def rewind(self, step: int) -> None:
        super().rewind(step)
        if not self._ledger.has_row(step, EVALUATION):
            self._others.resume(EVALUATION, step)  # of a process that died before its row
