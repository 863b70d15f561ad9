"""What a driver tells of a sweep while it runs, and the plain lines of it.

Owns: the events, and their lines where the output is no terminal.
Does not own: what is shown on a terminal (`sweeps/live_table.py`), when something happens (`driver.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.config.text import short_names
from official_trainer.sweeps.failures import Failure
from official_trainer.sweeps.space import Value
from official_trainer.sweeps.trial import Trial, show

_logger = logging.getLogger(__name__)
_LINE = 120


class Observer:
    """Is told of each event; this one shows nothing."""

    def know(self, trials: Mapping[int, Trial]) -> None:
        """These trials are on record, at the beginning and now and then; also those of other processes."""

    def start(self, trial: Trial, *, continues: bool) -> None:
        """A trial is started; or it `continues` from its newest checkpoint."""

    def report(self, trial: Trial, step: int, results: Sequence[float]) -> None:
        """A trial was evaluated at a step, with these values of the metrics that are compared."""

    def wait(self, trial: Trial, how: str, seconds: float) -> None:
        """The process of a trial has ended, as `how` says, and starts again in `seconds`."""

    def end(self, trial: Trial, result: str, failure: Failure | None = None) -> None:
        """A trial has ended, or the config refuses what was drawn for it.

        Args:
          trial: as it is recorded.
          result: how it ended, in words.
          failure: what is known of its error; None if it has not failed by one.
        """

    def say(self, text: str) -> None:
        """Something is to be said about the sweep as a whole."""

    def warn(self, text: str) -> None:
        """Something is wrong, which is to be known also where nothing else is shown."""
        _logger.warning("%s", text)

    def look(self) -> None:
        """Time has passed; the driver calls it about twice a second."""

    def close(self) -> None:
        """Nothing more comes."""


class PlainLines(Observer):
    """One line for each event, and once the whole report of an error."""

    def __init__(self, paths: Mapping[str, str], write: Callable[[str], None]) -> None:
        """Takes what the fields that are drawn are called, see `names_of`, and what prints a line."""
        self._names, self._write = paths, write
        self._has_shown_report = False

    def start(self, trial: Trial, *, continues: bool) -> None:
        begins = "starts" if trial.parent is None else f"starts from trial {trial.parent}"
        self._write(f"trial {trial.number} {'continues' if continues else begins}: {self.drawn(trial)}")

    def wait(self, trial: Trial, how: str, seconds: float) -> None:
        self._write(f"trial {trial.number} {how}; it continues in {seconds:g} s")

    def end(self, trial: Trial, result: str, failure: Failure | None = None) -> None:
        for line in self.lines_of_end(trial, result, failure, _LINE):
            self._write(line)

    def say(self, text: str) -> None:
        self._write(text)

    def warn(self, text: str) -> None:
        self._write(text)

    def drawn(self, trial: Trial) -> str:
        """Returns what was drawn on one line."""
        drawn = fields_of(trial.values, self._names)
        return ", ".join(f"{self._names.get(path, path)}={show(value)}" for path, value in drawn.items())

    def lines_of_end(self, trial: Trial, result: str, failure: Failure | None, width: int) -> list[str]:
        """Returns a line, and for a failure where more is; for the first one its report too."""
        lines = [cut(f"trial {trial.number} {result}", width)]
        if failure is not None:
            lines.append(f"  {failure.path}")
            if not self._has_shown_report and failure.report:
                lines += [f"  {line}".rstrip() for line in failure.report]
            self._has_shown_report = True
        return lines


def names_of(space: Mapping[str, object]) -> dict[str, str]:
    """Returns what the fields of a space are called in lines and tables: short, and each with a name of its own."""
    names = short_names(space)
    branches = [name.removesuffix(".type") for name in names.values()]  # `optimizer` says more than `type`
    return names if len(set(branches)) < len(branches) else dict(zip(names, branches, strict=True))


def name_of(path: str, names: Mapping[str, str]) -> str:
    """Returns what something that is drawn is called: a field, or the length or an item of a list."""
    field = _field_of(path, names)
    return names.get(field, field) + path.removeprefix(field)


def fields_of(values: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value | list[Value]]:
    """Returns field → what was drawn for it; for a list its items.

    Args:
      values: of a trial.
      names: field → what it is called.
    """
    found: dict[str, Any] = {}
    for path, value in values.items():
        field = _field_of(path, names)
        if field == path:
            found[path] = value
        else:
            found.setdefault(field, []).extend([] if path == f"{field}[length]" else [value])
    return found


def _field_of(path: str, names: Mapping[str, str]) -> str:
    """Returns the field that something which is drawn is of: itself, or of `PATH[length]` and `PATH[0]` the list."""
    return path if path in names else path.rpartition("[")[0] or path


def cut(text: str, width: int) -> str:
    """Returns text on one line that is not wider than `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
