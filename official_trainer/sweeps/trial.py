"""The record of a trial: what was drawn, and how it ended.

Owns: `trials/N/trial.json`, written before the trial starts and once more when it has ended; the order of trials.
Does not own: the run of the trial, which is in `trials/N/run`.

A record holds no times, so equal sweeps have equal files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

from official_trainer import files
from official_trainer.config import FrozenDict
from official_trainer.errors import ExitCode, UserError
from official_trainer.sweeps.space import Value
from official_trainer.tracking.jsonl import encode

RECORD, RUN, OUTPUT, RESULT = files.TRIAL_FILE, "run", "output.log", "result"
State = Literal["complete", "pruned", "failed"]


class SweepError(UserError, RuntimeError):
    """A sweep that cannot go on."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.CONFIG) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial.

    Size: a field for each key of its record.

    Attributes:
      number: from 0.
      values: path of a field → what was drawn.
      state: how it ended; None before.
      value: of the metric that is compared, if it is complete.
      others: of each further metric that is compared, from the same evaluation.
      step: of the evaluation with that value, or of the one after which it was pruned.
      reason: why it failed or was pruned.
      reports: (step, value) of its evaluations, up to its end.
      cause: if it failed, what failures by the same error have in common; empty if that is not known.
      parent: the trial of a population whose run this one continues; None for one that begins at step 0.
      attempt: how often other values were drawn for it, and refused.
      without: the trials before it whose ends were not known when it was drawn.
      retried: whether it is to run again, also where enough others are done.
    """

    number: int
    values: Mapping[str, Value]
    state: State | None = None
    value: float | None = None
    others: Mapping[str, float] = FrozenDict()
    step: int | None = None
    reason: str = ""
    reports: tuple[tuple[int, float], ...] = ()
    cause: str = ""
    parent: int | None = None
    attempt: int = 0
    without: tuple[int, ...] = ()
    retried: bool = False

    @property
    def results(self) -> tuple[float, ...]:
        """Its value for each metric that is compared; none unless it is complete."""
        return () if self.value is None else (self.value, *self.others.values())


def show(value: Value | Sequence[Value]) -> str:
    """Returns a value as lines and tables show it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe(trial: Trial, metric: str) -> str:
    """Returns how a trial ended, as in `complete: accuracy 0.97 at step 200`; `metric` is the first one."""
    if trial.state == "complete" and trial.value is not None:
        results = {metric: trial.value, **trial.others}
        shown = ", ".join(f"{name} {value:.6g}" for name, value in results.items())
        return f"complete: {shown} at step {trial.step}"
    at = "" if trial.step is None else f" after step {trial.step}"
    return f"{trial.state}{at}: {trial.reason}"


def directory(sweep_dir: str, number: int) -> str:
    """Returns the directory of a trial."""
    return files.join(sweep_dir, "trials", str(number))


def run_directory(sweep_dir: str, number: int) -> str:
    """Returns the directory of a trial's run."""
    return files.join(directory(sweep_dir, number), RUN)


def write(sweep_dir: str, trial: Trial) -> None:
    """Writes the record of a trial, which only one process may do at a time."""
    place = directory(sweep_dir, trial.number)
    files.make_dirs(place)
    files.remove_temporaries(place, RECORD)  # of a process that was killed
    content = dataclasses.asdict(trial) | {
        "value": None if trial.value is None else encode(trial.value),
        "others": {name: encode(value) for name, value in trial.others.items()},
        "reports": [[step, encode(value)] for step, value in trial.reports],
    }
    files.write_text_atomically(files.join(place, RECORD), json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_all(sweep_dir: str, known: Mapping[int, Trial] = MappingProxyType({})) -> dict[int, Trial]:
    """Returns the recorded trials by their numbers, in this order.

    Args:
      sweep_dir: directory of the sweep.
      known: what an earlier call returned; the record of a trial that has ended is not read again.

    Raises:
      SweepError: a record cannot be read.
    """
    ended = {number: each for number, each in known.items() if each.state is not None}
    found = {number: ended.get(number) or read(sweep_dir, number) for number in numbers(sweep_dir)}
    return {number: each for number, each in found.items() if each is not None}


def numbers(sweep_dir: str) -> list[int]:
    """Returns the numbers of the trials that have a directory, in their order."""
    folder = files.join(sweep_dir, "trials")
    names = files.list_dir(folder) if files.exists(folder) else []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def read(sweep_dir: str, number: int) -> Trial | None:
    """Returns the record of a trial; None if it has none yet.

    Raises:
      SweepError: it cannot be read.
      OSError: the storage does not hand it out.
    """
    path = files.join(directory(sweep_dir, number), RECORD)
    try:
        content = files.parse_json(files.read_bytes(path))
        reports = tuple((int(step), float(value)) for step, value in content.pop("reports"))
        value, others = content.pop("value"), content.pop("others", {})
        numbers: dict[str, Any] = {
            "value": None if value is None else float(value),
            "others": {name: float(each) for name, each in others.items()},
            "without": tuple(map(int, content.pop("without", ()))),
        }
        trial = Trial(**content, reports=reports, **numbers)
        if trial.number != number:
            raise ValueError(f"it is that of trial {trial.number}")
        is_whole = (
            isinstance(trial.values, dict)
            and all(isinstance(each, str | int | float) for each in trial.values.values())
            and trial.state in (None, *get_args(State))
            and (trial.state != "complete" or trial.value is not None)
            and all(each is None or isinstance(each, int) for each in (trial.step, trial.parent))
            and isinstance(trial.reason, str)
            and isinstance(trial.cause, str)
        )
        if not is_whole:
            raise ValueError("it is no record of a trial")
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        place = path.removesuffix(RECORD).rstrip("/")
        raise SweepError(f"{path} cannot be read ({why}). Remove {place}: the trial is then run again.") from error
    return trial
