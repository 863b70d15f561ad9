"""One run directory as a value: what its files say about the run, also of one that is damaged, foreign or still going.

A run has one of five statuses, which `run.json` holds, all but the last:

- `running`: a process trains or evaluates it;
- `done`: it has reached its end, or an action or its sweep has ended it early, which a note says;
- `stopped`: it was asked to stop before its end, and the same command goes on;
- `failed`: an error ended it; notes have it, with the exit code;
- `lost`: no process has it, and no record says how it ended: it was killed, its machine is gone, or `run.json` is.

All else that is wrong, or not known, is said in notes. A folder without a run has no status.

Owns: reading a run directory, finding those below a folder, and the words for what cannot be known. Does not own: the
files (`tracking/record.py`, `config/dump.py`), how a restart reads them. Imports no TensorFlow, and writes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from official_trainer import files
from official_trainer.checkpoints import garden
from official_trainer.config import ConfigError
from official_trainer.config.written import fields_of
from official_trainer.files import PARAMS_FILE, RUN_FILE, STATUS_FILE
from official_trainer.lock import LEASE_SECONDS, lock_path
from official_trainer.runs.resume import garden_run
from official_trainer.tracking import record

Status = Literal["running", "done", "stopped", "failed", "lost"]

PROGRAM = "Program"
"""The experiment that runs of a `Program` name; its model is in the code that made it, and in no config."""

LONGEST_SECONDS = 1e10
"""Three centuries; a record with a longer time is damaged."""

MAX_DEPTH = 5
"""How many folders below the given one a run directory may lie."""

_CHECKPOINT = re.compile(r"ckpt-(\d+)\.(?:index|manifest\.json)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """What the files of a folder say about the run in it.

    Attributes:
      directory: the run directory, or a folder without a run.
      status: how the run stands; None of a folder without a run.
      experiment: registered name; None if it is not known.
      step: the newest step that is recorded, or that has a checkpoint; None without any.
      end_step: the last step that is planned; None if it is not known.
      metric: the metric that decides which checkpoint is the best; None without one.
      best: its best value, a number or several by their names; None before the first evaluation.
      started_seconds: when the run first started, in Unix time; None if it is not known.
      duration_seconds: wall time of all its processes so far; None if it is not known.
      config: the value of each field of its `params.yaml`, by its path; under `optimizers` those that its code made.
      comments: what is written behind such a field: what set it.
      notes: what went wrong, and what is not known.
      record: the content of `run.json`; empty without one that can be read.
      process: that of `status.json`: what its newest process does, and where.

    Size: what two files say, and the state that follows from them.
    """

    directory: str
    status: Status | None
    experiment: str | None = None
    step: int | None = None
    end_step: int | None = None
    metric: str | None = None
    best: float | Mapping[str, float] | None = None
    started_seconds: float | None = None
    duration_seconds: float | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    comments: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    process: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def direction(self) -> Literal["higher", "lower"] | None:
        """Which values of the metric are better; None if the config does not say it."""
        comp = self.config.get("trainer.best_checkpoint_metric_comp")
        return comp if comp in ("higher", "lower") else None

    @property
    def examples_per_second(self) -> float | None:
        """Examples a second of its training steps with their waiting for data, over all its processes; None if unknown.

        Tracing, evaluations and saves are not in it, nor what a process did after its last record.
        """
        total = _mapping(_mapping(self.record.get("time")).get("total"))
        seconds = _mapping(total.get("seconds"))
        examples, steps, waits = map(
            _number, (total.get("examples"), seconds.get("steps"), seconds.get("input") or 0.0)
        )
        if examples is None or steps is None or waits is None or examples <= 0 or steps + waits <= 0:
            return None
        return examples / (steps + waits)


def find(directory: str, *, now_seconds: float | None = None) -> list[RecordedRun]:
    """Returns the runs in a folder and below it, by directory.

    A folder right in `directory` without a run in it is returned too, so that nothing there is left out in silence.
    Links to folders are followed; each folder is read once. Names that begin with a dot are left out.

    Args:
      directory: local folder; may be a run directory itself.
      now_seconds: the Unix time; None reads the clock.

    Raises:
      OSError: it cannot be listed.
    """
    now = time.time() if now_seconds is None else now_seconds
    runs: list[RecordedRun] = []
    notes: dict[str, str] = {}  # of folders right in it, whether or not they turn out to have a run below
    seen: set[str] = set()

    def refused(error: OSError) -> None:
        if error.filename == directory:
            raise error
        note = f"cannot be listed: {files.reason_of(error)}"
        runs.append(RecordedRun(directory=error.filename, status=None, notes=(note,)))

    for folder, folders, names in os.walk(directory, onerror=refused, followlinks=True):
        depth = 0 if folder == directory else os.path.relpath(folder, directory).count(os.sep) + 1
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        if is_run([*folders, *names]):
            runs.append(read(folder, now_seconds=now))
            folders.clear()
        elif depth == 1:
            notes[folder] = "holds no run" if folders or names else "is empty"
        folders[:] = [name for name in sorted(folders) if not name.startswith(".")] if depth < MAX_DEPTH else []
    for folder, note in notes.items():
        if not any(run.directory.startswith(f"{folder}{os.sep}") for run in runs):
            runs.append(RecordedRun(directory=folder, status=None, notes=(note,)))
    return sorted(runs, key=lambda run: run.directory)


def steps_text(run: RecordedRun) -> str:
    """Returns the step of a run, of how many: `20/40`; empty if it is not known."""
    if run.step is None:
        return ""
    return f"{run.step}/{run.end_step}" if run.end_step else str(run.step)


def duration_text(seconds: float | None) -> str:
    """Returns a duration in its two largest units; empty if it is not known.

    Example:
      >>> from official_trainer.runs.recorded import duration_text
      >>> duration_text(8.24), duration_text(95), duration_text(7384)
      ('8.2 s', '1 min 35 s', '2 h 3 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    if seconds > LONGEST_SECONDS:
        return f"{seconds / 86400:.3g} d"
    whole = round(seconds)
    for unit, length, inner, inner_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = (whole % length) // inner_length
            return f"{whole // length} {unit} {rest} {inner}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def step_time_text(seconds: float) -> str:
    """Returns how long a step takes, in three digits of the unit that fits; from a minute on as a duration.

    Example:
      >>> from official_trainer.runs.recorded import step_time_text
      >>> step_time_text(0.0000213), step_time_text(0.00342), step_time_text(1.24), step_time_text(90)
      ('21.3 µs', '3.42 ms', '1.24 s', '1 min 30 s')
    """
    for unit, length in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        count = float(f"{seconds / length:.3g}")
        if count < (60 if unit == "s" else 1000):
            return f"{count:g} {unit}"
    return duration_text(seconds)


def speed_text(examples_per_second: float) -> str:
    """Returns examples a second as a whole number; below 100 with three digits."""
    return f"{examples_per_second:,.0f}" if examples_per_second >= 100 else f"{examples_per_second:.3g}"


def is_step(value: Any) -> TypeGuard[int]:
    """Whether a value of a damaged file can be a global step."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_run(names: list[str]) -> bool:
    """Whether a folder with files of these names is a run directory, also a damaged one."""
    return any(name in (RUN_FILE, STATUS_FILE, PARAMS_FILE) or _CHECKPOINT.fullmatch(name) for name in names)


def read(directory: str, *, now_seconds: float) -> RecordedRun:
    """Returns what the files of one run directory say.

    Args:
      directory: local path.
      now_seconds: the Unix time.
    """
    notes: list[str] = []
    run, process = (_read_json(directory, name, notes) for name in (RUN_FILE, STATUS_FILE))
    experiment, config, comments = _read_params(directory, notes)
    for name, optimizer in _mapping(run.get("optimizers")).items() if config else ():
        config[f"optimizers.{name}"], comments[f"optimizers.{name}"] = optimizer, "the task"
        if name == "optimizer":  # in place of that of `trainer.optimizer_config`
            config = {path: value for path, value in config.items() if value is not None or not _UNSET.fullmatch(path)}
    if changed := record.changed(run):
        notes.append(f"{RUN_FILE} was changed: {', '.join(changed)}")
    steps, best = (_mapping(run.get(name)) for name in ("steps", "best"))
    recorded = [step for step in (steps.get("current"), process.get("step")) if is_step(step)]
    if "steps" not in run:  # the record is lost, or another tool's
        with contextlib.suppress(OSError):
            recorded += [int(match[1]) for name in os.listdir(directory) if (match := _CHECKPOINT.fullmatch(name))]
    step, end_step = max(recorded, default=None), steps.get("end") or config.get(_END)
    end_step = end_step if is_step(end_step) and end_step else None
    metric = _text(best.get("metric")) or _text(config.get("trainer.best_checkpoint_eval_metric"))
    value, started = best.get("value"), record.unix_seconds(run.get("started"))
    if run or process or experiment is not None or not config:
        if not config and not notes:
            notes.append(f"no {PARAMS_FILE}: its config is not known")
        status = _status(directory, run, process, now_seconds, notes)
    else:
        notes.append("of Model Garden's driver, which records no status")
        status = "done" if step == end_step and step else "stopped"
        folder = _text(config.get("trainer.best_checkpoint_export_subdir"))
        if metric and folder:
            value = _read_json(files.join(directory, folder), garden.INFO, notes).get(metric)
        with contextlib.suppress(OSError):
            started = os.stat(files.join(directory, PARAMS_FILE)).st_mtime
    return RecordedRun(
        directory=directory,
        status=status,
        experiment=_text(run.get("experiment")) or experiment,
        step=step,
        end_step=end_step,
        metric=metric,
        best=_numbers(value),
        started_seconds=started,
        duration_seconds=_duration_seconds(run),
        config=config,
        comments=comments,
        notes=tuple(notes),
        record=run,
        process=process,
    )


_END = "trainer.train_steps"
_UNSET = re.compile(r"trainer\.optimizer_config\.(optimizer|learning_rate|warmup)\.type")


def _read_json(directory: str, name: str, notes: list[str]) -> dict[str, Any]:
    """Returns the object that a file holds, empty without one; what is wrong with it becomes a note."""
    try:
        return files.read_json(files.join(directory, name))
    except FileNotFoundError:
        return {}
    except files.UnreadableFileError:
        notes.append(f"{name} is damaged")
    except OSError as error:
        notes.append(f"{name} cannot be read: {files.reason_of(error)}")
    return {}


def _read_params(directory: str, notes: list[str]) -> tuple[str | None, dict[str, Any], dict[str, str]]:
    """Returns the experiment that our `params.yaml` names, None in that of Model Garden; the fields; their comments."""
    try:
        text = files.read_bytes(files.join(directory, PARAMS_FILE)).decode("utf-8", "replace")
    except FileNotFoundError:
        return None, {}, {}
    except OSError as error:
        notes.append(f"{PARAMS_FILE} cannot be read: {files.reason_of(error)}")
        return None, {}, {}
    first, _, _ = text.partition("\n")
    header = garden_run.HEADER.decode()
    experiment = first.removeprefix(header).strip() if first.startswith(header) else None
    with contextlib.suppress(ConfigError):
        config, comments = fields_of(text)
        if config and (experiment is None or _END in config):  # which all of ours have
            return experiment, config, comments
    notes.append(f"{PARAMS_FILE} is damaged")
    return experiment, {}, {}


def _status(
    directory: str, run: Mapping[str, Any], process: Mapping[str, Any], now_seconds: float, notes: list[str]
) -> Status:
    code, phase = process.get("exit_code"), run.get("status", process.get("phase"))
    if early := run.get("stopped_early"):
        notes.append(f"ended early: {early}")
    if process.get("phase") == "refused" and isinstance(code, int):
        notes.append(f"its last start was refused with exit code {code}")
    elif phase == "failed" and isinstance(code, int):
        notes.append(f"exit code {code}")
    if phase in ("done", "stopped", "failed"):
        return phase
    if run.get("status") != "running":
        notes.append(f"without a whole {RUN_FILE} its status is not known")
    elif _is_held(directory, process, now_seconds):
        return "running"
    else:
        notes.append("its record says running, but no process holds it")
    return "lost"


def _is_held(directory: str, process: Mapping[str, Any], now_seconds: float) -> bool:
    """Whether a process holds a run: its lock was renewed just now, or on this machine the process is still there."""
    with contextlib.suppress(OSError):
        if abs(now_seconds - os.stat(lock_path(directory)).st_mtime) <= LEASE_SECONDS:
            return True
    if process.get("host") != socket.gethostname() or not isinstance(pid := process.get("pid"), int):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return os.path.exists(lock_path(directory))  # else another process has the number by now


def _number(value: Any) -> float | None:
    """Returns a recorded number that is finite; None for anything else."""
    number = _numbers(value)
    return number if isinstance(number, float) and math.isfinite(number) else None


def _numbers(value: Any) -> float | dict[str, float] | None:
    """Returns a recorded value, or several by their names; None for anything else."""
    if isinstance(value, dict):
        numbers = {name: _numbers(item) for name, item in value.items()}
        return {name: number for name, number in numbers.items() if isinstance(number, float)} or None
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _duration_seconds(run: Mapping[str, Any]) -> float | None:
    """Returns the wall time of all processes of a run; without an account of it, that of the last one."""
    account = _number(_mapping(_mapping(run.get("time")).get("total")).get("wall_seconds"))
    if account is not None and account >= 0:
        return account
    first = record.unix_seconds(run.get("restarted")) or record.unix_seconds(run.get("started"))
    last = record.unix_seconds(run.get("finished"))
    return None if first is None or last is None else max(0.0, last - first)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
