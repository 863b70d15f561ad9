"""Where the time of a run goes: its start, steps, waiting for data, evaluations, saves, actions, and between processes.

Owns: when the process began, the split of its wall time into parts that sum to it, how long steps take, and the
verdict on the input; the time that no record of a process covers.
Does not own: when phases begin (`engine/loop.py`), how long steps wait (`engine/step_clock.py`), or where the
numbers go (`tracking/record.py`, `tracking/`).
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import lazy
from official_trainer.actions.durations import StepDurations
from official_trainer.runs.recorded import duration_text, speed_text, step_time_text
from official_trainer.shown import counted

PARTS = ("start", "tracing", "steps", "input", "evaluation", "save", "export", "actions", "trackers", "other")
"""The parts of the time, in the order of the record.

`start` lasts from the process's start to the first step, and holds the building of data; `tracing` is what windows that
traced took beyond their steps (compiling included), `input` is what steps wait for data, `save` what training waits for
a save, `trackers` what it waits for where numbers go.
"""

INPUT_BOUND_FRACTION = 0.5
"""Steps that wait for data longer than they compute are input-bound: a faster device would change less than faster
input. Below that, small models pay for each call of an iterator, which is no fault of the data."""

MIN_WAIT_SECONDS = 0.001
"""There is no verdict on steps that wait less, however short they are: with data in memory a step waits 0.03 to 0.1 ms
(experiments of this repository on two CPU cores), which no setting changes."""

MIN_STEPS_SECONDS = 1.0
"""There is no verdict on less: a pipeline has to fill its buffers first."""

OUTSIDE = ("lost", "between")
"""The time before a process that no record of an earlier one covers. `lost` is what a process that was killed did after
its last record, as long as `status.json` shows that it lived; in `between` no process ran, as far as is known."""

_PART_OF_PHASE = {
    "start": "start",
    "build": "start",
    "restore": "start",
    "evaluate": "evaluation",
    "save": "save",
    "export": "export",
}
_KEPT_ATTEMPTS = 20
_SPEED_DIGITS = {"examples_per_second": 2, "step_seconds_p50": 9, "step_seconds_p90": 9, "step_seconds_p95": 9}


@dataclasses.dataclass
class _Tally:
    """What a stretch of a run took; where it is unknown how long steps wait for data, that is part of them."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    measures_input: bool = False
    steps: int = 0
    examples: int = 0
    timed_seconds: float = 0.0  # of windows that did not trace, with their examples and steps
    timed_examples: int = 0
    timed_steps: StepDurations = dataclasses.field(default_factory=StepDurations)

    def __add__(self, other: _Tally) -> _Tally:
        sums = {name: value + vars(other)[name] for name, value in vars(self).items() if name != "seconds"}
        seconds = {part: self.seconds.get(part, 0.0) + other.seconds.get(part, 0.0) for part in PARTS}
        return _Tally(seconds=seconds, **sums | {"measures_input": self.measures_input or other.measures_input})

    def add(self, part: str, seconds: float) -> None:
        """Adds to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def seconds_by_part(self) -> dict[str, float | None]:
        """Returns the seconds of each part; those of `input` are None if unknown."""
        seconds_by_part: dict[str, float | None] = {part: self.seconds.get(part, 0.0) for part in PARTS}
        return seconds_by_part if self.measures_input or not self.steps else seconds_by_part | {"input": None}

    def input_fraction(self) -> float | None:
        """Returns how much of the time in steps waits for data; None if that is unknown."""
        seconds = self.seconds_by_part()
        waited, computed = seconds["input"], seconds["steps"] or 0.0
        return None if waited is None or waited + computed == 0 else waited / (waited + computed)

    def waits_long(self) -> bool:
        """Whether a step waits for data so long, of so many, that faster input would be noticed."""
        seconds = self.seconds_by_part()
        waited, computed = seconds["input"] or 0.0, seconds["steps"] or 0.0
        return waited + computed >= MIN_STEPS_SECONDS and waited >= self.steps * MIN_WAIT_SECONDS

    def speed(self) -> dict[str, float]:
        """Returns examples per second and percentiles of the step time, of the windows that did not trace."""
        if not self.timed_steps:
            return {}
        return {
            "examples_per_second": self.timed_examples / max(self.timed_seconds, 1e-9),
            **{f"step_seconds_p{percent}": self.timed_steps.percentile(percent / 100) for percent in (50, 90, 95)},
        }


class TimeAccount:
    """Accounts the time of one process of a run, from phases and windows as they are announced."""

    def __init__(self, *, began_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins.

        Args:
          began_seconds: when the first part began, on the scale of `clock`; None for now.
          clock: returns the time in seconds.
        """
        self._clock = clock
        self._spent: Mapping[str, Callable[[], float]] = {}
        self._spent_before: dict[str, float] = {}
        self._waited: Callable[[], float | None] = lambda: None
        self._waited_before = 0.0
        self._since = self._began = clock() if began_seconds is None else began_seconds
        self._phase = "start"
        self._before, self._stretch = _Tally(), _Tally()
        self._start_seconds = {"build": 0.0, "restore": 0.0, "data": 0.0}
        self._lock = threading.RLock()  # a process that hangs is reported by another thread

    @property
    def began_seconds(self) -> float:
        """When the first part began, on the scale of the clock."""
        return self._began

    def attach(
        self,
        *,
        waited_seconds: Callable[[], float | None] = lambda: None,
        actions_seconds: Callable[[], float] = lambda: 0.0,
        trackers_seconds: Callable[[], float] = lambda: 0.0,
        data_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Takes what accounts for parts of a phase, once it is built.

        Args:
          waited_seconds: returns for how long steps waited for data so far; None if that is unknown.
          actions_seconds: returns how long actions took so far, in any phase.
          trackers_seconds: the same of trackers.
          data_seconds: the same of building the data that steps read, in windows.
        """
        self._spent = {"actions": actions_seconds, "trackers": trackers_seconds, "data": data_seconds}
        self._waited = waited_seconds

    def enter(self, phase: str) -> None:
        """A phase of the loop begins, and the one before ends."""
        with self._lock:
            self._settle()
            self._phase = phase

    def window(self, steps: int, seconds: float, *, examples: int, has_traced: bool) -> None:
        """A window has ended.

        Args:
          steps: how many it ran.
          seconds: how long it took.
          examples: how many it trained on.
          has_traced: whether TensorFlow traced in it, so that it says little about the time of a step.
        """
        with self._lock:
            tally = self._stretch
            seconds = min(seconds, self._settle(within_window=seconds))
            waited = self._take_waits()
            tally.steps += steps
            tally.examples += examples
            if has_traced:
                usual = steps * (self._before + tally).timed_steps.percentile(0.5)
                tracing = max(0.0, seconds - waited - usual)
                tally.add("tracing", tracing)
                tally.add("steps", -tracing)
            elif steps:
                tally.timed_seconds += seconds
                tally.timed_examples += examples
                tally.timed_steps.add(seconds / steps, steps)

    def end_stretch(self) -> dict[str, float]:
        """Returns the numbers of the time since the last call, for trackers; what is unknown is left out."""
        with self._lock:
            self._settle()
            self._take_waits()
            tally = self._stretch
            self._before, self._stretch = self._before + tally, _Tally()
        fraction = tally.input_fraction()
        fractions = {} if fraction is None else {"input_fraction": fraction}
        seconds_by_name = {
            f"{part}_seconds": value for part, value in tally.seconds_by_part().items() if value is not None
        }
        return {**tally.speed(), **fractions, "wall_seconds": sum(tally.seconds.values()), **seconds_by_name}

    def report(self) -> dict[str, Any]:
        """Returns what this process did with its time so far, as JSON takes it; any thread may ask."""
        with self._lock:
            self._settle(within_window=math.inf if self._phase == "train" else 0.0)
            self._take_waits()
            tally = self._before + self._stretch
            wall = self._since - self._began
            start = {"tensorflow": lazy.import_seconds(since_seconds=self._began), **self._start_seconds}
        speed, fraction = tally.speed(), tally.input_fraction()
        return {
            "wall_seconds": round(wall, 6),
            **_parts(tally.seconds_by_part(), wall),
            "start": {name: _rounded(seconds, 6) for name, seconds in start.items()},
            "steps": tally.steps,
            "examples": tally.examples,
            **{name: _rounded(speed.get(name), digits) for name, digits in _SPEED_DIGITS.items()},
            "input_fraction": _rounded(fraction, 4),
            "verdict": verdict(fraction) if tally.waits_long() else None,
        }

    def _settle(self, within_window: float = 0.0) -> float:
        """Accounts the time since the last call; returns how much of it was in a window, `within_window` at most."""
        now = self._clock()
        elapsed, self._since = max(0.0, now - self._since), now
        left, tally = elapsed, self._stretch
        for part, spent_seconds in self._spent.items():
            before, self._spent_before[part] = self._spent_before.get(part, 0.0), spent_seconds()
            grown = min(left, self._spent_before[part] - before)
            tally.add("start" if part == "data" else part, grown)
            left -= grown
            if part in self._start_seconds:
                self._start_seconds[part] += grown
        in_window = min(within_window, left)
        tally.add("steps", in_window)
        tally.add(_PART_OF_PHASE.get(self._phase, "other"), left - in_window)
        if self._phase in self._start_seconds:
            self._start_seconds[self._phase] += left - in_window
        return in_window

    def _take_waits(self) -> float:
        """Counts what steps waited since the last call as input, and returns it."""
        if (waited := self._waited()) is None:
            return 0.0
        seconds = min(max(0.0, waited - self._waited_before), max(0.0, self._stretch.seconds.get("steps", 0.0)))
        self._waited_before, self._stretch.measures_input = waited, True
        self._stretch.add("input", seconds)
        self._stretch.add("steps", -seconds)
        return seconds


def process_start_seconds() -> float | None:
    """Returns when this process began, on the scale of `time.monotonic`; None if that is unknown."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            of_process = file.read().rpartition(")")[2].split()  # the name before it may contain spaces
        ticks = int(of_process[19])  # `man proc_pid_stat`: field 22, where 3 is the first after the name
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.monotonic() - max(0.0, age)


def verdict(input_fraction: float | None) -> str | None:
    """Returns a message that the run waits for its input, and where to look; None if it does not."""
    if input_fraction is None or input_fraction < INPUT_BOUND_FRACTION:
        return None
    return (
        f"input-bound: {input_fraction:.0%} of the time in steps waits for data; in task.train_data look at cache, "
        "prefetch_buffer_size and, for files, cycle_length; in build_inputs at map() without num_parallel_calls"
    ).replace("%", " %")


def outside(before: Mapping[str, Any] | None, *, began: float, last_sign: float | None) -> dict[str, float]:
    """Returns the seconds of each part of `OUTSIDE` before a process; none for the first process of a run.

    Args:
      before: what `over_attempts` returned last in the process before.
      began: the Unix time at which this process began.
      last_sign: the Unix time at which the one before wrote its status for the last time; None if that is not known.
    """
    recorded_until = before["total"].get("until") if before else None  # records of earlier versions have none
    if recorded_until is None:
        return {}
    seconds = max(0.0, began - recorded_until)  # less than nothing on a host whose clock is behind
    lost = min(seconds, max(0.0, (last_sign or 0.0) - recorded_until))
    return {"lost": round(lost, 6), "between": round(seconds - lost, 6)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """What a process knows of those before it.

    Attributes:
      record: what `over_attempts` returned last in the process before; None for the first one.
      began: the Unix time at which this process began.
      outside: the time before it that no record covers, as `outside` returns it.
    """

    record: Mapping[str, Any] | None = None
    began: float = 0.0
    outside: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def with_attempt(self, attempt: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the record of the run's time, with what this process did so far."""
        until = round(self.began + attempt["wall_seconds"], 6)
        return over_attempts(self.record, {**attempt, "outside": dict(self.outside), "until": until})


def over_attempts(before: Mapping[str, Any] | None, attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record of a run's time: its newest attempts, one a process, and the sum over all of them.

    Args:
      before: what this returned at the end of the attempt before; None for the first attempt.
      attempt: `TimeAccount.report()` of this one, and what its traces were; where they are known, the time `outside` of
        processes before it, and `until`, the Unix time of the report.

    Returns:
      `attempts` and `total`. The `seconds` of the total sum to its `wall_seconds`, those of all processes; with those
      `outside` they sum to `elapsed_seconds`, all from the first start `until` the newest record.
    """
    earlier, total = (before["attempts"], before["total"]) if before else ([], {})
    seconds: dict[str, float | None] = {}
    for part in PARTS:
        measured = [s for s in (total.get("seconds", {}).get(part), attempt["seconds"][part]) if s is not None]
        seconds[part] = sum(measured) if measured else None
    wall = total.get("wall_seconds", 0.0) + attempt["wall_seconds"]
    gaps = {part: total.get("outside", {}).get(part, 0.0) + attempt.get("outside", {}).get(part, 0) for part in OUTSIDE}
    traces = total.get("traces", {})
    new_total = {
        "restarts": total["restarts"] + 1 if total else 0,
        "restart_seconds": round(total["restart_seconds"] + attempt["seconds"]["start"], 6) if total else 0.0,
        "wall_seconds": round(wall, 6),
        **_parts(seconds, wall),
        "outside": {part: round(gap, 6) for part, gap in gaps.items()},
        "elapsed_seconds": round(wall + sum(gaps.values()), 6),
        "until": attempt.get("until"),
        "steps": total.get("steps", 0) + attempt["steps"],
        "examples": total.get("examples", 0) + attempt["examples"],
        "traces": {kind: traces.get(kind, 0) + count for kind, count in attempt["traces"].items()},
        "trace_seconds": round(total.get("trace_seconds", 0.0) + attempt["trace_seconds"], 4),
    }
    peaks, now = total.get("peak_memory_bytes", {}), attempt.get("peak_memory_bytes", {})
    new_total["peak_memory_bytes"] = {name: max(peaks.get(name, 0), now.get(name, 0)) for name in {**peaks, **now}}
    return {"attempts": [*earlier, dict(attempt)][-_KEPT_ATTEMPTS:], "total": new_total}


def _parts(seconds_by_part: Mapping[str, float | None], wall_seconds: float) -> dict[str, dict[str, float | None]]:
    """Returns the parts for the record, in seconds and as fractions."""
    wall_seconds = max(wall_seconds, 1e-9)
    return {
        "seconds": {part: _rounded(seconds, 6) for part, seconds in seconds_by_part.items()},
        "fractions": {
            part: _rounded(None if s is None else s / wall_seconds, 6) for part, s in seconds_by_part.items()
        },
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def in_one_line(report: Mapping[str, Any]) -> str:
    """Returns a `TimeAccount.report()` in one line, for the console; parts below half a percent are left out."""
    percents = {part: round(100 * (fraction or 0)) for part, fraction in report["fractions"].items()}
    words = {"save": "saves"} | ({} if report["input_fraction"] is not None else {"steps": "steps and input"})
    shares = [f"{words.get(part, part)} {percents[part]} %" for part in _ORDER if percents[part]]
    speed = ""
    if report["step_seconds_p50"] is not None:
        p50, p95 = (step_time_text(report[f"step_seconds_{name}"]) for name in ("p50", "p95"))
        speed = f"; {speed_text(report['examples_per_second'])} examples/s, step p50 {p50}, p95 {p95}"
    return f"time: {', '.join(shares)}{speed}"


def in_lines(time: Mapping[str, Any]) -> list[str]:
    """Returns `time` of a run's record, as `over_attempts` made it: a line for each part, and what the start took."""
    total, last = time["total"], time["attempts"][-1]
    count = total["restarts"] + 1
    wall, gaps = total["wall_seconds"], {part: s for part, s in total.get("outside", {}).items() if s}
    elapsed = max(total.get("elapsed_seconds", wall), 1e-9)
    over = f", over {duration_text(elapsed)}" if gaps else ""
    steps = counted(total["steps"], "step")
    steps += ", without those in the time lost" if gaps.get("lost") else ""
    lines = [f"{duration_text(wall)} in {count} process{'es' * (count > 1)}{over}, {steps}"]
    spent = {part: total["seconds"][part] for part in PARTS} | gaps
    for part, seconds in sorted(spent.items(), key=lambda item: -(item[1] or 0)):
        time_text = "unknown" if seconds is None else f"{duration_text(seconds):>12} {100 * seconds / elapsed:4.0f} %"
        lines.append(f"{part:10} {time_text}")
    if (start_seconds := last.get("start")) is not None:  # that of an earlier version of this program has none
        rest = max(0.0, last["seconds"]["start"] - sum(start_seconds.values()))
        shown = [f"{words} {duration_text(start_seconds[name])}" for name, words in _START_WORDS.items()]
        lines.append(f"the start of the newest process: {', '.join([*shown, f'all else {duration_text(rest)}'])}")
    if peaks := total.get("peak_memory_bytes"):
        lines.append(f"memory at most: {', '.join(f'{name} {size / 2**30:.2f} GiB' for name, size in peaks.items())}")
    return lines


_START_WORDS = {
    "tensorflow": "importing TensorFlow",
    "build": "building the model",
    "restore": "restoring",
    "data": "building the data",
}
_ORDER = ("steps", "input", "tracing", "evaluation", "save", "export", "actions", "trackers", "start", "other")
