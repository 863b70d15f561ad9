"""Numbers as lines of Python's `logging`, for a service that collects the log of a program.

Owns: the lines, `train @ 100: training_loss 0.53, accuracy 0.84`. Does not own: where the log goes and how it looks,
which the program decides that this runs in. Steps that a restart repeats are logged again: a log is not rewound.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from typing import Any, Literal

from official_trainer.config import TrackerConfig
from official_trainer.tracking import Place, Tracker, monitored

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig(TrackerConfig):
    """Lines in Python's log, one for each step and split.

    Attributes:
      logger: name of the logger.
      level: of the lines; a program started from the command line shows `info` of `official_trainer` and below, and
        `warning` of every logger.
      splits: which have lines.
    """

    logger: str = __name__
    level: Literal["debug", "info", "warning"] = "info"
    splits: tuple[str, ...] = ("train", "validation")

    def build(self, place: Place) -> LogTracker:
        return LogTracker(logging.getLogger(self.logger), level=_LEVELS[self.level], splits=self.splits)


class LogTracker(Tracker):
    """Logs each row in a line.

    Args:
      logger: takes them.
      level: a level of `logging`.
      splits: which are logged.
    """

    def __init__(self, logger: logging.Logger, *, level: int, splits: Collection[str]) -> None:
        self._logger, self._level, self._splits = logger, level, splits

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        if split in self._splits:
            self._logger.log(self._level, "%s @ %d: %s", split, step, monitored.show(values))
