"""Examples that cannot be read and were left out: which they are, and how many may be.

Owns: the set of them in one process, over all data sections, and what is said when there are too many. Does not own:
finding out that an example is bad (`reader.py`), the list that a run keeps (`runs/bad_records.py`).

A pipeline reads ahead, as far as there is time. So an example counts for the list only once training has come to the
step that needs it: then the list follows from the steps that were done, and from nothing else.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Iterable, Sequence

from official_trainer.shown import counted, shorten

_logger = logging.getLogger(__name__)

_SHOWN = 3  # one by one, of a section


@dataclasses.dataclass(frozen=True, order=True)
class BadRecord:
    """An example that cannot be read: the data section, its number there, its place, the reason.

    Example:
      >>> from official_trainer.inputs import BadRecord
      >>> str(BadRecord("task.train_data", 7, "a.parquet:7", "its checksum is wrong"))
      'a.parquet:7: its checksum is wrong'
    """

    section: str
    index: int
    where: str
    reason: str

    def __str__(self) -> str:
        text = " ".join(self.reason.split())
        return shorten(text if text.startswith(self.where) else f"{self.where}: {text}", 300)


class BadRecords:
    """The bad examples of a run that this process knows; any thread may call it.

    Example:
      >>> from official_trainer.inputs import BadRecord, BadRecords
      >>> known = BadRecords()
      >>> known.allow("task.train_data", 2, "max_bad_records: 2 of 50 examples")
      >>> known.add(BadRecord("task.train_data", 7, "a.parquet:7", "its checksum is wrong"), step=3)
      ''
      >>> known.take(before=3), [record.index for record in known.take(before=4)]
      ([], [7])
    """

    def __init__(self, listed: Iterable[BadRecord] = ()) -> None:
        """Takes those that are listed already."""
        self._found: dict[tuple[str, str], BadRecord] = {}
        self._counts = collections.Counter[str]()  # of sections
        self._lock = threading.Lock()
        self.merge(listed)
        self._steps: dict[tuple[str, str], int] = {}  # of those that are not listed, the first that needs each
        self._allowed: dict[str, tuple[int, str]] = {}

    @property
    def is_used(self) -> bool:
        """Whether the data of this process may leave out examples."""
        return bool(self._allowed)

    def allow(self, section: str, most: int, why: str) -> None:
        """Says how many examples of a section may be bad, and which fields say so."""
        self._allowed[section] = most, why

    def add(self, record: BadRecord, *, step: int) -> str:
        """Takes an example that was left out; returns what `excess` does.

        Args:
          record: what it is.
          step: the first that needs it, counted from 0; -1 if it counts at once, in an evaluation.
        """
        key = record.section, record.where
        with self._lock:
            is_new = key not in self._found
            if is_new or key in self._steps:
                self._keep(record)
                self._steps[key] = min(step, self._steps.get(key, step))
        if is_new:
            self._warn(record)
        return self.excess()

    def take(self, *, before: int | None) -> list[BadRecord]:
        """Returns what is to be added to the list: those that steps before this one need, or all if that is None."""
        with self._lock:
            certain = [key for key, step in self._steps.items() if before is None or step < before]
            for key in certain:
                del self._steps[key]
            return sorted(self._found[key] for key in certain)

    def merge(self, records: Iterable[BadRecord]) -> None:
        """Adds what other processes have listed."""
        with self._lock:
            for record in records:
                self._keep(record)

    def _keep(self, record: BadRecord) -> None:
        if (key := (record.section, record.where)) not in self._found:
            self._found[key] = record
            self._counts[record.section] += 1

    def listed(self) -> list[BadRecord]:
        """Returns those that are listed, in the order of their sections and numbers."""
        with self._lock:
            return sorted(record for key, record in self._found.items() if key not in self._steps)

    def excess(self) -> str:
        """Returns what to say of a section with more bad examples than its fields allow; empty if there is none."""
        for section, (most, why) in self._allowed.items():
            if self._count(section) > most:
                found = self._of(section)
                more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
                what = f"{counted(len(found), 'example')} cannot be read, and at most {most:,} may be bad ({why})"
                place = f"{section}: " if section else ""
                return "\n  ".join([f"{place}{what}:", *map(str, found[:_SHOWN]), *more])
        return ""

    def _count(self, section: str) -> int:
        with self._lock:
            return self._counts[section]

    def _of(self, section: str) -> Sequence[BadRecord]:
        with self._lock:
            return sorted(record for record in self._found.values() if record.section == section)

    def _warn(self, record: BadRecord) -> None:
        """Warns of the first few, each on one line."""
        count = self._count(record.section)
        place = f"{record.section}: " if record.section else ""
        if count <= _SHOWN:
            _logger.warning("%sleft out, because it cannot be read: %s", place, record)
        elif count == _SHOWN + 1:
            _logger.warning("%smore examples that cannot be read are left out without a warning", place)
