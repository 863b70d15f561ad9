"""What Prometheus is told of a run: names, labels, and where each value comes from.

Owns: the table of names; the newest numbers that a tracker got; what `run.json` and `status.json` say at the moment of
the question, and memory. Does not own: how samples travel (`prometheus.py`, `scraping.py`),
how the two files are written (`record.py`), what the numbers of the split `time` mean (`runs/health/time_account.py`).

Training pays nothing for a question: who asks reads the files, in bounded time. What cannot be read has no sample.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.files import RUN_FILE, STATUS_FILE
from official_trainer.threads import Call, run_bounded
from official_trainer.tracking import Outcome, Place, Tracker

_logger = logging.getLogger(__name__)

Sample = tuple[str, Mapping[str, str], float]
"""A name of `HELP`, the labels, and the value."""

PREFIX = "official_trainer_"
HELP: Mapping[str, str] = {
    "run_info": "Always 1; its labels say which run the label `run` stands for.",
    "phase": "1 for what the run does now (start, build, restore, train, evaluate, save, export), or for how it ended.",
    "step": "The global step; after a kill or a rollback it goes back.",
    "end_step": "The last step that is planned.",
    "remaining_seconds": "How long the steps that are left take at the speed since the last summary.",
    "steps_per_second": "Steps since the last summary by all time but starting and tracing.",
    "examples_per_second": "Examples that steps trained on since the last summary, by the time of these steps.",
    "model_flops_per_second": "FLOPs of the model in a second of these steps, on all devices together.",
    "mfu_ratio": "How much of the FLOPs that the devices can do these steps did.",
    "step_seconds": "How long a step took since the last summary, by percentile.",
    "input_wait_ratio": "How much of the time in steps since the last summary waited for data.",
    "goodput_ratio": "How much time trained: since the last summary, or since the first start of the run.",
    "time_seconds_total": "Where the time of this process went; it is counted at each summary.",
    "metric": "The newest number of each metric and split.",
    "saves_total": "Checkpoints that this process has saved.",
    "last_checkpoint_step": "The step of the newest checkpoint.",
    "last_checkpoint_timestamp_seconds": "When the run last saved a checkpoint.",
    "last_progress_timestamp_seconds": "When the run last ended steps, began a phase or saved.",
    "start_timestamp_seconds": "When the run first started.",
    "restarts_total": "How often the run was started again.",
    "slow_worker_ratio": "How much of the time the others wait for the slow worker, by phase; none without one.",
    "memory_bytes": "Memory of this process that is in use.",
    "gpu_memory_bytes": "Memory of a GPU that TensorFlow uses now, and the most that it has used.",
}
"""Each name behind `PREFIX`, and what it is. One that ends in `_total` is a counter, any other a gauge."""

MAX_METRICS = 1000
"""Metrics and splits that are kept; a code that makes names without end would fill a database too."""

_READ_SECONDS = 1.0  # a scraper waits ten seconds
_KEPT_SECONDS = 1.0  # what a flood of questions gets meanwhile
_OF_A_ROW: tuple[tuple[str, Mapping[str, str], str], ...] = (  # of the split `time`
    ("examples_per_second", {}, "examples_per_second"),
    ("model_flops_per_second", {}, "model_flops_per_second"),
    ("mfu_ratio", {}, "mfu"),
    ("input_wait_ratio", {}, "input_fraction"),
    *(("step_seconds", {"percentile": percent}, f"step_seconds_p{percent}") for percent in ("50", "90", "95")),
)


class RunMetrics:
    """The newest numbers of one process of a run; `samples` may be called by any thread.

    Args:
      place: the run.
      clock: tells the time in Unix seconds.
      read: returns `run.json`, `status.json` and samples of memory; None reads those of `place` and this process.
    """

    def __init__(
        self,
        place: Place,
        *,
        clock: Callable[[], float] = time.time,
        read: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any], list[Sample]]] | None = None,
    ) -> None:
        self._place, self._clock = place, clock
        self._state = _Answer(read or self._read)
        self._run: Mapping[str, Any] = {}
        self._values: dict[tuple[str, str], float] = {}
        self._is_full = False
        self._told: list[Sample] = []  # of the newest row of the split `time`
        self._seconds: dict[str, float] = {}
        self._seconds_before = 0.0  # in steps, of earlier processes
        self._speed: float | None = None
        self._row_step = 0
        self._ended: str | None = None

    @property
    def run_id(self) -> str | None:
        """The run's id, if it has a record."""
        run_id = self._run.get("run_id")
        return run_id if isinstance(run_id, str) else None

    @property
    def label(self) -> str:
        """What the label `run` says: the run's name, and the beginning of its id, if it has a record."""
        return f"{self._place.name}-{self.run_id[:8]}" if self.run_id else self._place.name

    def begin(self) -> None:
        """Reads what does not change while this process runs."""
        if (state := self._state.newest()) is not None:
            self._run = state[0]
            total = _mapping(_mapping(self._run.get("time")).get("total"))
            self._seconds_before = _number(_mapping(total.get("seconds")).get("steps")) or 0.0

    def rewind(self, step: int) -> None:
        """The run goes on from a step."""
        self._row_step = step

    def end(self, status: str) -> None:
        """The process ends: `done`, `preempted` or `failed`."""
        self._ended = status
        self._state.forget()  # the last file says how the run has ended

    def log(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Takes new numbers."""
        if split == "time":
            self._account(step, values)
            return
        new = {**self._values, **{(split, name): value for name, value in values.items()}}
        if len(new) > MAX_METRICS and not self._is_full:
            self._is_full = True
            _logger.warning("only %d metrics of the run are told; those with later names are left out", MAX_METRICS)
        self._values = dict(list(new.items())[:MAX_METRICS])  # a new one: another thread may read the old one

    def samples(self) -> list[Sample]:
        """Returns all there is to say now, with the label `run` on each."""
        found = [*self._of_this_process(), *self._of_the_record()]
        return [(name, {"run": self.label, **labels}, value) for name, labels, value in found]

    def _account(self, step: int, values: Mapping[str, float]) -> None:
        """Takes what the time since the last summary was spent on."""
        parts = {name.removesuffix("_seconds"): value for name, value in values.items() if name.endswith("_seconds")}
        wall, in_steps = parts.pop("wall", 0.0), parts.get("steps", 0.0)
        self._seconds = {**self._seconds, **{part: self._seconds.get(part, 0.0) + s for part, s in parts.items()}}
        steps, self._row_step = step - self._row_step, step
        moving = wall - parts.get("start", 0.0) - parts.get("tracing", 0.0)
        if steps > 0 and moving > 0:
            self._speed = steps / moving
        told: list[Sample] = [] if self._speed is None else [("steps_per_second", {}, self._speed)]
        told += [(name, labels, values[field]) for name, labels, field in _OF_A_ROW if field in values]
        if wall > 0:
            told.append(("goodput_ratio", {"window": "summary"}, in_steps / wall))
        if (started := _unix_seconds(self._run.get("started"))) is not None and self._clock() > started:
            trained = self._seconds_before + self._seconds.get("steps", 0.0)
            told.append(("goodput_ratio", {"window": "run"}, trained / (self._clock() - started)))
        self._told = told

    def _of_this_process(self) -> Iterator[Sample]:
        yield from self._told
        for part, seconds in self._seconds.items():
            yield "time_seconds_total", {"part": part}, seconds
        for (split, name), value in self._values.items():
            yield "metric", {"split": split, "name": name}, value

    def _of_the_record(self) -> Iterator[Sample]:
        state = self._state.newest()
        run, status, memory = ({}, {}, []) if state is None else state
        ids = {name: str(self._run.get(name, "")) for name in ("run_id", "mode")}
        place = {"experiment": self._place.experiment, "model_dir": self._place.directory, "name": self._place.name}
        yield "run_info", {**ids, **place, "host": str(status.get("host", ""))}, 1.0
        if phase := self._ended or status.get("phase"):
            yield "phase", {"phase": str(phase)}, 1.0
        steps = _mapping(run.get("steps"))
        step, end_step = (_number(steps.get(name)) for name in ("current", "end"))
        if (newer := _number(status.get("step"))) is not None:
            step = newer
        left = None
        if step is not None and end_step is not None and self._speed:
            left = max(0.0, end_step - step) / self._speed
        found = {
            "step": step,
            "end_step": end_step,
            "remaining_seconds": left,
            "saves_total": _number(status.get("saves")),
            "last_checkpoint_step": _number(run.get("last_checkpoint_step")),
            "last_checkpoint_timestamp_seconds": _unix_seconds(status.get("last_saved")),
            "last_progress_timestamp_seconds": _unix_seconds(status.get("updated")),
            "start_timestamp_seconds": _unix_seconds(run.get("started")),
            "restarts_total": _number(run.get("restarts")),
        }
        yield from ((name, {}, value) for name, value in found.items() if value is not None)
        slow = _mapping(status.get("slow_worker"))
        if (cost := _number(slow.get("cost"))) is not None:
            yield "slow_worker_ratio", {"worker": str(slow.get("worker")), "phase": str(slow.get("phase"))}, cost
        yield from memory

    def _read(self) -> tuple[Mapping[str, Any], Mapping[str, Any], list[Sample]]:
        run, status = (_read_json(files.join(self._place.directory, name)) for name in (RUN_FILE, STATUS_FILE))
        return run, status, [*_memory(), *_gpu_memory()]


class MetricsTracker(Tracker):
    """A tracker that keeps what it gets in `RunMetrics`; a subclass tells a service of them."""

    def __init__(self, place: Place) -> None:
        """Takes the run."""
        self._metrics = RunMetrics(place)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        self._metrics.log(split, step, values)

    def rewind(self, step: int) -> None:
        self._metrics.rewind(step)

    def end(self, outcome: Outcome) -> None:
        self._metrics.end(outcome.status)


class _Answer:
    """What a function returned a moment ago, or None.

    It is called in a thread of its own, once at a time: a file system that hangs costs a thread, and everyone who asks
    at most a second.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._function = read
        self._lock = threading.Lock()
        self._call: Call | None = None
        self._read_at = -math.inf
        self._found: Any = None

    def newest(self) -> Any:
        """Returns what the function returned in the last second; None if it fails or hangs."""
        with self._lock:
            if self._call is None or (self._call.is_done and time.monotonic() - self._read_at > _KEPT_SECONDS):
                self._found, self._read_at = None, time.monotonic()
                self._call = run_bounded(self._ask, _READ_SECONDS, "prometheus-read")
                if self._call.error is not None:
                    _logger.debug("what the run records cannot be told: %s", self._call.error)
            return self._found if self._call.is_done else None

    def forget(self) -> None:
        """Has the function called again, however short a time ago it was."""
        with self._lock:
            self._read_at = -math.inf

    def _ask(self) -> None:
        self._found = self._function()


def _read_json(path: str) -> Mapping[str, Any]:
    try:
        return files.read_json(path)
    except Exception as error:  # any of a file system's; the process beside an evaluator has no record
        _logger.debug("%s cannot be told: %s", path, error)
        return {}


def _memory() -> Iterator[Sample]:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):  # not Linux
        return
    yield "memory_bytes", {}, float(pages * os.sysconf("SC_PAGE_SIZE"))


def peak_bytes() -> int:
    """Returns the most bytes that this process has used."""
    status = Path("/proc/self/status")
    if status.exists():  # `getrusage` counts the process that started this one, too
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_memory(*, of_gpus: bool) -> dict[str, int]:
    """Returns the most bytes that this process and TensorFlow on each GPU have used, by `process` and `GPU:0`.

    Asking for GPUs starts TensorFlow's runtime, whose devices cannot be configured after that.
    """
    found = {"process": peak_bytes()}
    samples = _gpu_memory() if of_gpus else []
    peaks = [(labels["device"], value) for _, labels, value in samples if labels["kind"] == "peak"]
    return found | {device: int(value) for device, value in peaks}


def _gpu_memory() -> list[Sample]:
    """Returns what TensorFlow says of each GPU; nothing if it is not imported."""
    found: list[Sample] = []
    if (tensorflow := sys.modules.get("tensorflow")) is None:
        return found
    try:
        for device in tensorflow.config.list_logical_devices("GPU"):
            name = device.name.removeprefix("/device:")
            info = tensorflow.config.experimental.get_memory_info(name)
            found += [("gpu_memory_bytes", {"device": name, "kind": kind}, float(n)) for kind, n in info.items()]
    except Exception as error:
        _logger.debug("the memory of GPUs cannot be told: %s", error)
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    """Returns a number of a file that may be damaged, or None."""
    try:
        return None if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _unix_seconds(text: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
