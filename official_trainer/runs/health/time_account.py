"""Where the time of a run goes: its start, steps, waiting for data, evaluations, saves, actions, and between processes.

Owns: when the process began, the split of its wall time into parts that sum to it, how long steps take, the verdict on
the input, and the sums over all processes of a run.
Does not own: when phases begin (`engine/loop.py`), how long steps wait (`engine/step_clock.py`), or where the
numbers go (`tracking/record.py`, `tracking/`).
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import lazy
from official_trainer.actions.durations import StepDurations
from official_trainer.runs.recorded import duration_text, speed_text, step_time_text

PARTS = ("steps", "input", "tracing", "evaluation", "save", "export", "actions", "trackers", "start", "other")
"""The parts of the time of a process.

`start` lasts from the process's start to the first step, and holds the building of data; `tracing` is what windows that
traced took beyond their steps (compiling included), `input` is what steps wait for data, `save` what training waits for
a save, `trackers` what it waits for where numbers go.
"""

BETWEEN = "between"
"""One more part of the time of a run: no process ran, or one was killed and this is after its last record."""

_PART_OF_PHASE = {"build": "start", "restore": "start", "data": "start", "evaluate": "evaluation", "train": "other"}
_PERCENTILES = {f"step_seconds_p{percent}": percent / 100 for percent in (50, 90, 95)}
_INPUT_BOUND_FRACTION = 0.5  # below, a faster device changes more than faster input
_MIN_WAIT_SECONDS = 0.001  # with data in memory a step waits 0.03 to 0.1 ms, which no setting changes
_MIN_STEPS_SECONDS = 1.0  # a pipeline has to fill its buffers first
_KEPT_ATTEMPTS = 20
_TOLD_START_FRACTION = 0.1  # below, the start of a run is not what makes it slow
_START_WORDS = {
    "tensorflow": "importing TensorFlow",
    "build": "building the model",
    "restore": "restoring",
    "data": "building the data",
}

_Sums = Any
"""A Counter of floats, which its type does not allow: seconds by phase and counter, the `count` of steps, `examples`;
of windows that did not trace the `timed` seconds and `timed_examples`."""


class TimeAccount:
    """Accounts the time of one process of a run, from phases and windows as they are announced.

    Attributes:
      began_seconds: when the first part began, on the scale of the clock.
    """

    def __init__(self, *, began_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins.

        Args:
          began_seconds: when the first part began, on the scale of `clock`; None for now.
          clock: returns the time in seconds.
        """
        self._clock = clock
        self._since = self.began_seconds = clock() if began_seconds is None else began_seconds
        self._phase = "start"
        self._counters: Mapping[str, Callable[[], float | None]] = {}
        self._counted: dict[str, float] = {}
        self._sums: _Sums = Counter()
        self._sums_before: _Sums = Counter()  # at the last summary
        self._durations, self._durations_before = StepDurations(), StepDurations()

    def attach(self, **counters: Callable[[], float | None]) -> None:
        """Takes what counts the seconds of a part, once it is built: they are taken out of the phase that goes on.

        Args:
          **counters: return the seconds so far, by part (or `data` for those of building data); None if unknown.
        """
        self._counters = counters
        self._counted = {name: counter() or 0.0 for name, counter in counters.items()}

    def enter(self, phase: str) -> None:
        """A phase of the loop begins, and the one before ends."""
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
        sums, before = self._sums, self._sums["steps"]
        self._settle(seconds)
        sums.update(count=steps, examples=examples)
        if has_traced:
            usual_seconds = steps * (self._durations_before + self._durations).percentile(0.5)
            tracing_seconds = max(0.0, sums["steps"] - before - usual_seconds)
            sums.update(tracing=tracing_seconds, steps=-tracing_seconds)
        elif steps:
            sums.update(timed=seconds, timed_examples=examples)
            self._durations.add(seconds / steps, steps)

    def end_stretch(self) -> dict[str, float]:
        """Returns the numbers of the time since the last call, for trackers; what is unknown is left out."""
        self._settle()
        sums = Counter({name: value - self._sums_before[name] for name, value in self._sums.items()})
        speed = _speed(sums, self._durations)
        self._sums_before = self._sums.copy()
        self._durations, self._durations_before = StepDurations(), self._durations_before + self._durations
        seconds = {f"{part}_seconds": value for part, value in _by_part(sums).items() if value is not None}
        return {**speed, "wall_seconds": sum(seconds.values()), **seconds}

    def report(self) -> dict[str, Any]:
        """Returns what this process did with its time so far, as JSON takes it."""
        self._settle(math.inf if self._phase == "train" else 0.0)
        sums, began = self._sums, self.began_seconds
        unknown = dict.fromkeys(("examples_per_second", *_PERCENTILES, "input_fraction"))
        speed = unknown | _speed(sums, self._durations_before + self._durations)
        fraction, waited = speed["input_fraction"] or 0.0, sums["input"]
        is_long = waited + sums["steps"] >= _MIN_STEPS_SECONDS and waited >= sums["count"] * _MIN_WAIT_SECONDS
        return {
            "wall_seconds": self._since - began,
            "seconds": _by_part(sums),
            "start": {
                "tensorflow": lazy.import_seconds(since_seconds=began),
                **{name: float(sums[name]) for name in ("build", "restore", "data")},
            },
            "steps": sums["count"],
            "examples": sums["examples"],
            **speed,
            "verdict": _verdict(fraction) if is_long and fraction >= _INPUT_BOUND_FRACTION else None,
        }

    def _settle(self, window_seconds: float = 0.0) -> None:
        """Accounts the time since the last call: what was counted, then up to so many of a window, then the phase."""
        now = self._clock()
        left, self._since = max(0.0, now - self._since), now
        for name, counter in self._counters.items():
            if (counted_seconds := counter()) is not None:
                grown = min(left, max(0.0, counted_seconds - self._counted[name]))
                self._counted[name] = counted_seconds
                self._sums.update({name: grown})
                left -= grown
                window_seconds -= grown if name == "input" else 0.0
        in_window = min(max(0.0, window_seconds), left)
        self._sums.update({"steps": in_window})
        self._sums.update({self._phase: left - in_window})


def _by_part(sums: _Sums) -> dict[str, float | None]:
    """Returns the seconds of each part; those of `input` are None where they are not counted."""
    seconds: dict[str, float | None] = {part: float(sums[part]) for part in PARTS}
    for phase, part in _PART_OF_PHASE.items():
        seconds[part] = (seconds[part] or 0.0) + sums[phase]
    return seconds if "input" in sums or not sums["count"] else seconds | {"input": None}


def _speed(sums: _Sums, durations: StepDurations) -> dict[str, float]:
    """Returns examples a second and percentiles of the step time, of windows that did not trace; and the input's share.

    The share is of the time in steps. What is unknown is left out.
    """
    speed: dict[str, float] = {}
    if durations:
        speed["examples_per_second"] = sums["timed_examples"] / max(sums["timed"], 1e-9)
        speed |= {name: durations.percentile(share) for name, share in _PERCENTILES.items()}
    if "input" in sums and (in_steps := sums["input"] + sums["steps"]) > 0:
        speed["input_fraction"] = sums["input"] / in_steps
    return speed


def _verdict(input_fraction: float) -> str:
    """Returns a message that the run waits for its input, and where to look."""
    return (
        f"input-bound: {100 * input_fraction:.0f} % of the time in steps waits for data; in task.train_data look at "
        "prefetch_buffer_size; for files at cache and cycle_length, for a source at use_multiprocessing; in "
        "build_inputs at map() without num_parallel_calls, and at transforms that transform_fn can do for a whole batch"
    )


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


def over_attempts(before: Mapping[str, Any] | None, attempt: Mapping[str, Any], *, began: float) -> dict[str, Any]:
    """Returns the record of a run's time: its newest attempts, one a process, and the sum over all of them.

    Args:
      before: what this returned at the end of the attempt before; None for the first attempt.
      attempt: `TimeAccount.report()` of this one, with `traces`, `trace_seconds` and `peak_memory_bytes`.
      began: the Unix time at which this process began.

    Returns:
      `attempts` and `total`, whose `seconds` sum to the time since its `began`: those of all processes, which are its
      `wall_seconds`, and those between them.
    """
    total: dict[str, Any] = before["total"] if before else {"began": began}
    names = ("wall_seconds", "steps", "examples", "seconds", "traces", "trace_seconds")
    restart_seconds = attempt["seconds"]["start"] if before else 0.0
    restarts = {"restarts": int(before is not None), "restart_seconds": restart_seconds}
    new = _sum(total, {**{name: attempt[name] for name in names}, **restarts})
    between = began + attempt["wall_seconds"] - new["began"] - new["wall_seconds"]
    new["seconds"] |= {BETWEEN: max(0.0, between)}
    peaks, now = total.get("peak_memory_bytes", {}), attempt["peak_memory_bytes"]
    new["peak_memory_bytes"] = {name: max(peaks.get(name, 0), now.get(name, 0)) for name in {**peaks, **now}}
    return {"attempts": [*(before["attempts"] if before else ()), dict(attempt)][-_KEPT_ATTEMPTS:], "total": new}


def _sum(one: Any, other: Any) -> Any:
    """Returns the sum of two numbers of which either may be unknown, or of all those in mappings."""
    if isinstance(other, Mapping):
        one = one or {}
        return {name: _sum(one.get(name), other.get(name)) for name in {**one, **other}}
    return one if other is None else other if one is None else one + other


def in_one_line(report: Mapping[str, Any]) -> str:
    """Returns a `TimeAccount.report()` in one line, for the console; parts below half a percent are left out."""
    wall = max(report["wall_seconds"], 1e-9)
    percents = {part: round(100 * (seconds or 0.0) / wall) for part, seconds in report["seconds"].items()}
    words = {"save": "saves"} | ({} if report["input_fraction"] is not None else {"steps": "steps and input"})
    shares = [f"{words.get(part, part)} {percents[part]} %" for part in PARTS if percents[part]]
    speed = ""
    if report["step_seconds_p50"] is not None:
        p50, p95 = (step_time_text(report[f"step_seconds_{name}"]) for name in ("p50", "p95"))
        speed = f"; {speed_text(report['examples_per_second'])} examples/s, step p50 {p50}, p95 {p95}"
    return f"time: {', '.join(shares)}{speed}"


def start_in_one_line(report: Mapping[str, Any]) -> str:
    """Returns what the start of a process was spent on, for the console; empty if it was a small part of its time."""
    if (total := report["seconds"]["start"]) < _TOLD_START_FRACTION * report["wall_seconds"]:
        return ""
    return f"start: {duration_text(total)}: {start_parts(report)}"


def start_parts(report: Mapping[str, Any]) -> str:
    """Returns what the start of a process was spent on, in words, without what took 0 s; see `TimeAccount.report`."""
    seconds = {words: report["start"][name] for name, words in _START_WORDS.items()}
    rest = max(0.0, report["seconds"]["start"] - sum(seconds.values()))
    texts = {words: duration_text(value) for words, value in (seconds | {"Python and other imports": rest}).items()}
    return ", ".join(f"{words} {text}" for words, text in texts.items() if text != "0 s")
