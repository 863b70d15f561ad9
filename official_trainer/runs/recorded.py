"""One run directory as a value: what its files say about the run, also of one that is damaged, foreign or still going.

Owns: reading a run directory, finding those below a folder, and the words for what cannot be known. Does not own: the
files (`tracking/record.py`, `config/dump.py`), how a restart reads them. Imports no TensorFlow, and writes nothing.

A config is kept as the lines of its `params.yaml`: reading 500 files of YAML takes many seconds, comparing their lines
takes a fraction of one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeGuard

from official_trainer import files
from official_trainer.checkpoints import garden
from official_trainer.config import ConfigError
from official_trainer.config.written import fields_of
from official_trainer.errors import ExitCode
from official_trainer.files import PARAMS_FILE, RUN_FILE, STATUS_FILE
from official_trainer.lock import LEASE_SECONDS, lock_path
from official_trainer.runs.resume import garden_run
from official_trainer.tracking import record

Status = Literal[
    "running",
    "done",
    "failed",
    "stalled",
    "preempted",
    "pruned",
    "died",
    "unknown",
    "Model Garden",
    "empty",
    "no run",
    "unreadable",
]
"""How a run stands. `died`: its record says that it runs, and no process does. `Model Garden`: it is a run of that
driver, which records no status. `empty` and `no run`: the folder holds nothing, or nothing of a run."""

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
      status: how the run stands.
      experiment: registered name; None if it is not known.
      step: the newest step that is recorded, or that has a checkpoint; None without any.
      end_step: the last step that is planned; None if it is not known.
      metric: the metric that decides which checkpoint is the best; None without one.
      best: its best value, a number or several by their names; None before the first evaluation.
      started_seconds: when the run first started, in Unix time; None if it is not known.
      duration_seconds: wall time of all its processes so far; None if it is not known.
      config: the value of each field of its `params.yaml`, by its path.
      comments: what is written behind such a field: what set it.
      notes: what went wrong, and what is not known.
      record: the content of `run.json`; empty without one that can be read.
      process: that of `status.json`: what its newest process does, and where.

    Size: what two files say, and the state that follows from them.
    """

    directory: str
    status: Status
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
        numbers = [
            _numbers(value) for value in (total.get("examples"), seconds.get("steps"), seconds.get("input") or 0.0)
        ]
        valid = [number for number in numbers if isinstance(number, float) and math.isfinite(number)]
        return valid[0] / spent if len(valid) == 3 and valid[0] > 0 and (spent := valid[1] + valid[2]) > 0 else None


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
    with os.scandir(directory) as entries:
        folder_entries = list(entries)
    if is_run([entry.name for entry in folder_entries]):
        return [read(directory, now_seconds=now)]
    opened = functools.partial(read, now_seconds=now)
    return list(_below(folder_entries, 1, opened, {os.path.realpath(directory)}))


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


def _below(
    entries: list[os.DirEntry[str]], depth: int, open_run: Callable[[str], RecordedRun], seen: set[str]
) -> Iterator[RecordedRun]:
    """Yields the runs in the folders among the entries of a folder, which lie `depth` below the first one."""
    for entry in sorted(entries, key=lambda entry: entry.name):
        try:
            is_folder = entry.is_dir()
        except OSError:  # a link in a circle
            continue
        if entry.name.startswith(".") or not is_folder or (real := os.path.realpath(entry.path)) in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(entry.path) as listing:
                inside = list(listing)
        except OSError as error:
            note = f"cannot be listed: {files.reason_of(error)}"
            yield RecordedRun(directory=entry.path, status="unreadable", notes=(note,))
            continue
        if is_run([inner.name for inner in inside]):
            yield open_run(entry.path)
            continue
        runs = list(_below(inside, depth + 1, open_run, seen)) if depth < MAX_DEPTH else []
        if not runs and depth == 1:
            runs = [RecordedRun(directory=entry.path, status="no run" if inside else "empty")]
        yield from runs


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
    run, status = _read_json(directory, RUN_FILE, notes), _read_json(directory, STATUS_FILE, notes)
    experiment, config, comments = _read_params(directory, notes)
    standing: Status
    is_ours = run is not None or status is not None or experiment is not None
    run, status = run or {}, status or {}
    steps, best = _mapping(run.get("steps")), _mapping(run.get("best"))
    metric = _text(best.get("metric")) or _text(config.get("trainer.best_checkpoint_eval_metric"))
    value, started = best.get("value"), _unix_seconds(run.get("started"))
    if is_ours:
        if not config and not notes:
            notes.append(f"no {PARAMS_FILE}: its config is not known")
        if changed := record.changed(run):
            notes.append(f"{RUN_FILE} was changed: {', '.join(changed)}")
        standing = _status(directory, run, status, now_seconds, notes)
    else:  # of Model Garden's driver, which records no experiment and no status
        standing = "Model Garden" if config else "unknown"
        folder = _text(config.get("trainer.best_checkpoint_export_subdir"))
        if metric and folder:
            value = (_read_json(files.join(directory, folder), garden.INFO, notes) or {}).get(metric)
        with contextlib.suppress(OSError):
            started = os.stat(files.join(directory, PARAMS_FILE)).st_mtime
        if not config:
            notes.append(f"no {RUN_FILE} and no {PARAMS_FILE}: only its checkpoints are known")
    recorded = [step for step in (steps.get("current"), status.get("step")) if is_step(step)]
    end_step = steps.get("end") or config.get(_END)
    if "steps" not in run:  # the record is lost
        with contextlib.suppress(OSError):
            recorded += [int(match[1]) for name in os.listdir(directory) if (match := _CHECKPOINT.fullmatch(name))]
    return RecordedRun(
        directory=directory,
        status=standing,
        experiment=_text(run.get("experiment")) or experiment,
        step=max(recorded, default=None),
        end_step=end_step if is_step(end_step) and end_step else None,
        metric=metric,
        best=_numbers(value),
        started_seconds=started,
        duration_seconds=_duration_seconds(run),
        config=config,
        comments=comments,
        notes=tuple(notes),
        record=run,
        process=status,
    )


_END = "trainer.train_steps"


def _read_json(directory: str, name: str, notes: list[str]) -> dict[str, Any] | None:
    """Returns the object that a file holds, or None; what is wrong with a file that is there becomes a note."""
    try:
        return files.read_json(files.join(directory, name))
    except FileNotFoundError:
        return None
    except files.UnreadableFileError:
        notes.append(f"{name} is damaged")
    except OSError as error:
        notes.append(f"{name} cannot be read: {files.reason_of(error)}")
    return None


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
    config, comments = dict[str, Any](), dict[str, str]()
    with contextlib.suppress(ConfigError):
        config, comments = fields_of(text)
    if not config or (experiment is not None and _END not in config):  # which all of ours have
        notes.append(f"{PARAMS_FILE} is damaged")
        return experiment, {}, {}
    return experiment, config, comments


def _status(
    directory: str, run: Mapping[str, Any], status: Mapping[str, Any], now_seconds: float, notes: list[str]
) -> Status:
    code = status.get("exit_code")
    if status.get("phase") == "refused" and isinstance(code, int):
        notes.append(f"its last start was refused with exit code {code}")
    phase = run.get("status", status.get("phase"))
    if phase in ("done", "preempted", "pruned"):
        return phase
    if phase == "failed":
        if code == ExitCode.STALLED:
            return "stalled"
        if isinstance(code, int):
            notes.append(f"exit code {code}")
        return "failed"
    if run.get("status") != "running":
        notes.append(f"without a whole {RUN_FILE} its status is not known")
        return "unknown"
    if _is_held(directory, status, now_seconds):
        return "running"
    notes.append("its record says running, but no process holds it")
    return "died"


def _is_held(directory: str, status: Mapping[str, Any], now_seconds: float) -> bool:
    """Whether a process holds a run: its lock was renewed just now, or on this machine the process is still there."""
    with contextlib.suppress(OSError):
        if abs(now_seconds - os.stat(lock_path(directory)).st_mtime) <= LEASE_SECONDS:
            return True
    if status.get("host") != socket.gethostname() or not isinstance(pid := status.get("pid"), int):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return os.path.exists(lock_path(directory))  # else another process has the number by now


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
    account = _numbers(_mapping(_mapping(run.get("time")).get("total")).get("wall_seconds"))
    if isinstance(account, float) and 0 <= account < math.inf:
        return account
    first = _unix_seconds(run.get("restarted")) or _unix_seconds(run.get("started"))
    last = _unix_seconds(run.get("finished"))
    return None if first is None or last is None else max(0.0, last - first)


def _unix_seconds(text: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
