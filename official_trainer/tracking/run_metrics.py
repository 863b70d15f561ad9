"""What Prometheus is told of a run: names, labels, and where each value comes from; and the most memory of a process.

Owns: the table of names; the newest numbers that a tracker got; what `run.json` and `status.json` say when a scraper
asks. Does not own: how samples travel (`prometheus.py`), how the two files are written (`record.py`), what the numbers
of the split `time` mean (`runs/health/time_account.py`).

Training pays nothing for a question: the thread of the scraper reads the files. What cannot be read has no sample.
"""

from __future__ import annotations

import logging
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.files import RUN_FILE, STATUS_FILE
from official_trainer.tracking import Place
from official_trainer.tracking.record import unix_seconds

_logger = logging.getLogger(__name__)

Sample = tuple[str, Mapping[str, str], float]
"""A name of `HELP`, the labels, and the value."""

PREFIX = "official_trainer_"
HELP: Mapping[str, str] = {
    "run_info": "Always 1; its labels say which run the label `run` stands for.",
    "phase": "1 for what the run does now: start, build, restore, train, evaluate, save, export.",
    "step": "The global step; after a kill or a rollback it goes back.",
    "end_step": "The last step that is planned.",
    "remaining_seconds": "How long the steps that are left take at the speed since the last summary.",
    "steps_per_second": "Steps since the last summary by all time but starting and tracing.",
    "examples_per_second": "Examples that steps trained on since the last summary, by the time of these steps.",
    "input_wait_ratio": "How much of the time in steps since the last summary waited for data.",
    "goodput_ratio": "How much of the time since the last summary steps computed.",
    "metric": "The newest number of each metric and split.",
    "last_checkpoint_step": "The step of the newest checkpoint.",
    "last_checkpoint_timestamp_seconds": "When the run last saved a checkpoint.",
    "last_progress_timestamp_seconds": "When the run last ended steps, began a phase or saved.",
    "start_timestamp_seconds": "When the run first started.",
    "restarts_total": "How often the run was started again.",
}
"""Each name behind `PREFIX`, and what it is. One that ends in `_total` is a counter, any other a gauge."""


class RunMetrics:
    """The newest numbers of one process of a run; any thread may call `samples`.

    Args:
      run: its directory and names.
    """

    def __init__(self, run: Place) -> None:
        self._run = run
        self._run_label = run.name
        self._values: dict[tuple[str, str], float] = {}
        self._of_summary: dict[str, float] = {}
        self._summary_step = 0

    def begin(self) -> None:
        """Reads the run's id, which does not change."""
        run_id = _read_json(files.join(self._run.directory, RUN_FILE)).get("run_id")
        if isinstance(run_id, str):
            self._run_label = f"{self._run.name}-{run_id[:8]}"

    def rewind(self, step: int) -> None:
        """The run goes on from a step."""
        self._summary_step = step

    def log(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Takes new numbers."""
        if split == "time":
            self._take_time(step, values)
        else:
            # A new dict: a scraper's thread may read the old one.
            self._values = {**self._values, **{(split, name): value for name, value in values.items()}}

    def samples(self) -> list[Sample]:
        """Returns all there is to say now, with the label `run` on each."""
        numbers: list[Sample] = [(name, {}, value) for name, value in self._of_summary.items()]
        numbers += [("metric", {"split": split, "name": name}, n) for (split, name), n in self._values.items()]
        return [(name, {"run": self._run_label, **labels}, n) for name, labels, n in [*numbers, *self._of_record()]]

    def _take_time(self, step: int, values: Mapping[str, float]) -> None:
        """Takes what the time since the last summary was spent on."""
        steps, self._summary_step = step - self._summary_step, step
        wall = values.get("wall_seconds", 0.0)
        moving = wall - values.get("start_seconds", 0.0) - values.get("tracing_seconds", 0.0)
        new = {name: value for name, value in self._of_summary.items() if name == "steps_per_second"}
        if steps > 0 and moving > 0:
            new["steps_per_second"] = steps / moving
        if wall > 0:
            new["goodput_ratio"] = values.get("steps_seconds", 0.0) / wall
        for name, field in (("examples_per_second", "examples_per_second"), ("input_wait_ratio", "input_fraction")):
            if field in values:
                new[name] = values[field]
        self._of_summary = new

    def _of_record(self) -> Iterator[Sample]:
        directory = self._run.directory
        run, status = (_read_json(files.join(directory, name)) for name in (RUN_FILE, STATUS_FILE))
        facts = {"run_id": run.get("run_id", ""), "mode": run.get("mode", ""), "host": status.get("host", "")}
        labels = {"experiment": self._run.experiment, "model_dir": directory, "name": self._run.name}
        yield "run_info", labels | {name: str(value) for name, value in facts.items()}, 1.0
        if phase := status.get("phase"):
            yield "phase", {"phase": str(phase)}, 1.0
        steps = run.get("steps")
        step = _number(status.get("step"))
        end_step = _number(steps.get("end") if isinstance(steps, dict) else None)
        steps_per_second = self._of_summary.get("steps_per_second")
        remaining_seconds = None
        if step is not None and end_step is not None and steps_per_second:
            remaining_seconds = max(0.0, end_step - step) / steps_per_second
        values = {
            "step": step,
            "end_step": end_step,
            "remaining_seconds": remaining_seconds,
            "last_checkpoint_step": _number(run.get("last_checkpoint_step")),
            "last_checkpoint_timestamp_seconds": unix_seconds(status.get("last_saved")),
            "last_progress_timestamp_seconds": unix_seconds(status.get("updated")),
            "start_timestamp_seconds": unix_seconds(run.get("started")),
            "restarts_total": _number(run.get("restarts")),
        }
        yield from ((name, {}, value) for name, value in values.items() if value is not None)


def _read_json(path: str) -> Mapping[str, Any]:
    try:
        return files.read_json(path)
    except Exception as error:  # any of a file system's; the process beside an evaluator has no record
        _logger.debug("%s cannot be told: %s", path, error)
        return {}


def _number(value: Any) -> float | None:
    """Returns a number of a file that may be damaged, or None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def peak_bytes() -> int:
    """Returns the most bytes that this process has used."""
    status = Path("/proc/self/status")
    # `getrusage` counts the process that started this one, too.
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_memory(*, of_gpus: bool) -> dict[str, int]:
    """Returns the most bytes that this process and TensorFlow on each GPU have used, by `process` and `GPU:0`.

    Asking for GPUs starts TensorFlow's runtime, whose devices cannot be configured after that.
    """
    peaks = {"process": peak_bytes()}
    tensorflow = sys.modules.get("tensorflow") if of_gpus else None
    if tensorflow is not None:
        try:
            for device in tensorflow.config.list_logical_devices("GPU"):
                name = device.name.removeprefix("/device:")
                peaks[name] = int(tensorflow.config.experimental.get_memory_info(name)["peak"])
        except Exception as error:
            _logger.debug("the memory of GPUs cannot be told: %s", error)
    return peaks
