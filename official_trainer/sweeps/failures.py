"""Why trials fail: the error of a trial in one line, and whether further trials would have the same one.

Owns: both, and the words with which a sweep ends for it.
Does not own: the report of an error (`runs/mistakes/`, which writes it into the record of the run), restarts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.trial import SweepError, Trial
from official_trainer.tracking.record import read_run

MOST_FAILURES = 5
"""So many trials may fail one after the other."""

_MOST_ALIKE = 2  # the first trials; with the same error in all of them, there is no reason to try others
_MOST_LINES = 15
_DATA = "data"
_SAID = "error: "  # begins the message of an error that is meant for users, whose run was refused and left no record
_PLACE = re.compile(r"(?P<place>\S.*?:\d+) in [^,]+(,.*)?")
_TRACEBACK = re.compile(r"\s+traceback: (?P<path>.*?)( \(--traceback prints it\))?")
_ERROR = re.compile(r"  (?! |called from |while )(?P<error>.+)")
_OF_MEMORY = "ResourceExhaustedError"  # depends on what was drawn: the size of a batch, or of the model


@dataclasses.dataclass(frozen=True)
class Failure:
    """The error of a trial.

    Attributes:
      reason: in one line.
      cause: equal in trials that fail by the same error; empty if it says nothing about other trials.
      report: its lines.
      path: of the file with more.
    """

    reason: str
    cause: str
    report: tuple[str, ...]
    path: str


def failure_of(place: str, how: str, code: int, last: Sequence[str]) -> Failure:
    """Returns why a trial failed: by the record of its run, else by the last line that it printed.

    Args:
      place: the directory of the trial.
      how: how its process ended, in words.
      code: its exit code.
      last: the last lines of its output.
    """
    record = read_run(files.join(place, trials.RUN)) or {}
    report = str(record.get("error") or "").splitlines()
    output = files.join(place, trials.OUTPUT)
    if not report:
        said = next((line for line in reversed(last) if line.startswith(_SAID)), last[-1] if last else "")
        reason = f"{how}: {said.removeprefix(_SAID).strip()}" if said else how
        return Failure(reason, _DATA if code == ExitCode.DATA else "", tuple(last), output)
    found = _PLACE.fullmatch(report[0])
    if found is None:  # an error that is meant for users says what is wrong in its first line
        return Failure(report[0], _DATA if code == ExitCode.DATA else "", tuple(report[:_MOST_LINES]), output)
    error = next((match["error"] for line in report[1:] if (match := _ERROR.fullmatch(line))), how)
    written = next((match["path"] for line in report if (match := _TRACEBACK.fullmatch(line))), output)
    name = error.partition(":")[0]
    cause = _DATA if code == ExitCode.DATA else "" if name == _OF_MEMORY else f"{name} at {found['place']}"
    return Failure(f"{report[0].partition(',')[0]}: {error}", cause, tuple(report[:_MOST_LINES]), written)


def unfinished(run_dir: str) -> str:
    """Returns what is wrong with a run whose process ended without an error; empty if it is done.

    Args:
      run_dir: of the run; a function that a trial calls may train without one.
    """
    if (read_run(run_dir) or {}).get("status") != "running":
        return ""
    return "its process ended with exit code 0 in the middle of the run; look for os._exit in your code"


def refuse_more(sweep_dir: str, found: Iterable[Trial]) -> None:
    """Returns if a sweep may go on after its failures.

    Raises:
      SweepError: its first trials failed by the same error, or too many failed one after the other.
    """
    ended = sorted((each for each in found if each.state is not None), key=lambda each: each.number)
    first, last = ended[:_MOST_ALIKE], ended[-MOST_FAILURES:]
    alike = first[0].cause if len(first) == _MOST_ALIKE and len({each.cause for each in first}) == 1 else ""
    if alike:
        numbers = " and ".join(str(each.number) for each in first)
        what = f"trials {numbers} failed by the same error, which others would have too: {first[0].reason}"
    elif len(last) == MOST_FAILURES and all(each.state == "failed" for each in last):
        what = f"the last {MOST_FAILURES} trials failed; the last one: {last[-1].reason}"
    else:
        return
    raise SweepError(
        f"{what}\nMend the cause. After `official-trainer sweep retry {sweep_dir}`, the same command as before runs "
        "the failed trials again",
        ExitCode.DATA if alike == _DATA else ExitCode.FAILED,
    )
