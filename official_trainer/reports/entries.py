"""Runs beside each other: those in folders, what each is called there, and in which fields their configs differ.

Owns: finding them, for tables and for pages. Does not own: a run by itself (`opened.py`), names and differing fields
(`runs/differing.py`), the metrics by which runs are compared (`measures.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from official_trainer.reports import opened
from official_trainer.reports.opened import OpenedRun
from official_trainer.runs import differing
from official_trainer.shown import shorten

_LONGEST_ERROR = 120


@dataclasses.dataclass(kw_only=True)
class Entry:
    """A run among others.

    Attributes:
      run: the run.
      name: what it is called beside the others; unique there.
      differs: the fields of its config in which the runs differ, by path, as YAML.
    """

    run: OpenedRun
    name: str
    differs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What went wrong, and what is not known of the run and of what was read of its metrics."""
        error = self.run.record.get("error")
        said = [f"error: {shorten(str(error).strip().split(chr(10))[0], _LONGEST_ERROR)}"] if error else []
        were_read = "curves" in vars(self.run)  # which takes long, and is done for what needs it
        return [*self.run.recorded.notes, *said, *(self.run.curves.notes if were_read and self.run.is_run else ())]


def find(paths: Sequence[str], *, now_seconds: float) -> list[Entry]:
    """Returns the runs in folders, and below them, each once, in the order in which they are found.

    Args:
      paths: run directories, folders of runs, sweeps.
      now_seconds: the Unix time.

    Raises:
      NoRunError: a folder is not there, or cannot be listed.
    """
    runs: dict[str, OpenedRun] = {}
    for path in paths:
        for run in opened.open_all(path, now_seconds=now_seconds):
            runs.setdefault(os.path.realpath(run.directory), run)
    names = differing.names([run.directory for run in runs.values()])
    fields = differing.differing([run.recorded for run in runs.values()])
    return [
        Entry(run=run, name=name, differs=differs)
        for run, name, differs in zip(runs.values(), names, fields, strict=True)
    ]
