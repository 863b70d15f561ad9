"""Where the time of a run goes: parts that sum to it, percentiles, the verdict on the input, and what is recorded."""

import builtins
import dataclasses
import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer import lazy
from official_trainer.actions.action import Action
from official_trainer.actions.schedule import ActionError
from official_trainer.config import schema
from official_trainer.runs.health import time_account
from official_trainer.runs.health.time_account import (
    PARTS,
    TimeAccount,
    in_one_line,
    over_attempts,
    process_start_seconds,
    start_in_one_line,
)
from official_trainer.tracking import Tracker, Trackers
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.threads import ThreadedTracker
from tests.support.slow_runs import SleepyTask, do, recorded

IMPORTED_SECONDS = time.monotonic()


class FakeTime:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def after(self, seconds):
        self.now += seconds
        return self


class Told:
    """An account on a fake clock, told of a run."""

    def __init__(self):
        self.time = FakeTime()
        self.acted = 0.0
        self.account = TimeAccount(began_seconds=90.0, clock=self.time)
        self.waited = None
        self.built = 0.0
        self.account.attach(input=lambda: self.waited, actions=lambda: self.acted, data=lambda: self.built)

    def phase(self, name, seconds):
        self.account.enter(name)
        self.time.after(seconds)

    def window(self, steps, seconds, *, waited=None, has_traced=False):
        self.time.after(seconds)
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited
        self.account.window(steps, seconds, examples=10 * steps, has_traced=has_traced)

    def report(self):
        return self.account.report()


def seconds_of(**seconds):
    return {part: pytest.approx(seconds.get(part, 0.0)) for part in PARTS}


def a_run():
    """A run of 100 seconds, 70 of them in steps, of which 14 wait for data."""
    told = Told()
    told.phase("build", 2)
    told.phase("restore", 3)
    told.phase("train", 0)
    told.window(1, 4, waited=0, has_traced=True)
    told.time.after(1)
    told.window(50, 20, waited=4)
    told.phase("save", 2)
    told.phase("evaluate", 5)
    told.phase("train", 0)
    told.window(50, 50, waited=10)
    told.time.after(2)
    told.acted += 2
    told.phase("export", 1)
    return told


def test_the_start_is_split_and_holds_the_building_of_data(monkeypatch):
    """N26: importing TensorFlow counts as far as it was in this command."""
    monkeypatch.setattr(lazy, "_import_times", [(85.0, 91.0), (92.0, 92.5)])
    told = Told()
    told.phase("build", 2)
    told.phase("restore", 3)
    told.phase("train", 0)
    told.built = 6.0
    told.window(1, 10, has_traced=True)
    report = told.report()
    assert report["seconds"] == seconds_of(start=10 + 2 + 3 + 6, tracing=4) | {"input": None}
    assert report["start"] == {"tensorflow": 1.5, "build": 2, "restore": 3, "data": 6}
    assert start_in_one_line(report) == (
        "start: 21 s: importing TensorFlow 1.5 s, building the model 2 s, restoring 3 s, building the data 6 s, "
        "Python and other imports 8.5 s"
    )
    assert not start_in_one_line(report | {"wall_seconds": 211})


def test_a_stretch_has_its_own_share():
    """N16: a summary tells what steps have waited since the last one."""
    told = Told()
    told.phase("train", 0)
    told.window(100, 4.0, waited=1.0)
    assert told.account.end_stretch()["input_fraction"] == pytest.approx(0.25)
    told.window(1, 0.04, waited=0.03)
    row = told.account.end_stretch()
    assert (row["input_seconds"], row["steps_seconds"]) == (pytest.approx(0.03), pytest.approx(0.01))
    assert told.report()["input_fraction"] == pytest.approx(1.03 / 4.04, abs=1e-4)


def test_parts_sum_to_the_wall_time():
    """N16: start (from the process's start on), tracing, steps, input, saves, evaluation, export, actions, other."""
    report = a_run().report()
    assert report["seconds"] == seconds_of(
        start=15, tracing=4, steps=56, input=14, save=2, evaluation=5, export=1, actions=2, other=1
    )
    assert report["wall_seconds"] == 100
    assert report["input_fraction"] == pytest.approx(0.2)
    assert (report["steps"], report["examples"]) == (101, 1010)


def test_an_input_that_nobody_can_see_is_not_known():
    """N16: not 0; the time is among the steps."""
    told = Told()
    told.phase("train", 0)
    told.window(10, 5)
    report = told.report()
    assert report["seconds"] | {"start": 0} == seconds_of(steps=5) | {"input": None}
    assert report["input_fraction"] is report["verdict"] is None
    assert "input_fraction" not in told.account.end_stretch()
    assert in_one_line(report).startswith("time: steps and input 33 %, start 67 %;")


def test_actions_and_trackers_count_in_whichever_phase_they_are_waited_for():
    """N16: an action after an evaluation is no evaluation, and a slow destination of numbers no slow save."""
    clock, spent = FakeTime(), {"acted": 0.0, "waited": 0.0}
    account = TimeAccount(clock=clock)
    account.attach(actions=lambda: spent["acted"], trackers=lambda: spent["waited"])
    account.enter("evaluate")
    clock.after(8)
    spent |= {"acted": 3, "waited": 3}
    account.enter("save")
    clock.after(2)
    spent |= {"acted": 4}
    account.enter("export")
    assert account.report()["seconds"] == seconds_of(evaluation=2, save=1, actions=4, trackers=3)


def test_percentiles_are_of_steps_not_of_windows():
    """N16: a window counts as often as it has steps; one that traced says nothing."""
    told = Told()
    told.phase("train", 0)
    told.window(1, 30, has_traced=True)
    told.window(94, 94 * 0.002)
    for _ in range(6):
        told.window(1, 0.5)
    report = told.report()
    assert report["step_seconds_p50"] == pytest.approx(0.002, rel=0.01)
    assert report["step_seconds_p95"] == pytest.approx(0.5, rel=0.01)
    assert report["examples_per_second"] == pytest.approx(1000 / (94 * 0.002 + 3), rel=1e-4)


def test_a_window_that_traces_is_steps_as_far_as_they_usually_take():
    """N16: the rest of it, without what it waited for data, is tracing."""
    told = Told()
    told.phase("train", 0)
    told.window(1, 5, waited=2, has_traced=True)
    told.window(10, 10, waited=0)
    told.window(10, 17, waited=0, has_traced=True)
    assert told.report()["seconds"]["tracing"] == pytest.approx(3 + 7, rel=0.01)
    assert told.report()["seconds"]["input"] == pytest.approx(2)


def test_without_a_window_there_is_no_speed():
    """N16: unknown, not 0 and not an error."""
    report = Told().report()
    assert report["examples_per_second"] is report["step_seconds_p50"] is report["step_seconds_p95"] is None
    assert in_one_line(report) == "time: start 100 %"


def test_a_run_is_input_bound_when_steps_wait_more_than_they_compute():
    """N16: with where to look. A step that waits less than a millisecond pays for the call of an iterator."""
    for steps, steps_seconds, waited, is_told in (
        (10, 100, 62, True),
        (10, 100, 49, False),
        (10, 100, 0, False),
        (10, 0.9, 0.9, False),  # too short to tell
        (62_000, 100, 62, True),
        (63_000, 100, 62, False),  # as with data in memory
    ):
        told = Told()
        told.phase("train", 0)
        told.window(steps, steps_seconds, waited=waited)
        verdict = told.report()["verdict"]
        assert (verdict is not None) == is_told, (steps, steps_seconds, waited)
        if is_told:
            assert verdict.startswith("input-bound: 62 % of the time in steps waits for data; in task.train_data look")
            words = ("prefetch_buffer_size", "cycle_length", "use_multiprocessing", "num_parallel_calls")
            assert all(word in verdict for word in words)
    fields = {field.name for field in dataclasses.fields(schema.DataConfig)}
    assert {"cache", "prefetch_buffer_size", "cycle_length", "use_multiprocessing"} <= fields


def test_the_line_of_the_console():
    """N16: parts in percent, without those that round to nothing; how fast it was."""
    report = a_run().report()
    assert in_one_line(report) == (
        "time: steps 56 %, input 14 %, tracing 4 %, evaluation 5 %, saves 2 %, export 1 %, actions 2 %, start 15 %, "
        f"other 1 %; 14.3 examples/s, step p50 {report['step_seconds_p50'] * 1000:.3g} ms, p95 1 s"
    )


SPEEDS = [
    (0.00002, 3_200_000.4, "3,200,000 examples/s, step p50 20 µs, p95 40 µs"),
    (0.0009999, 640.2, "640 examples/s, step p50 1 ms, p95 2 ms"),
    (1.24, 51.6, "51.6 examples/s, step p50 1.24 s, p95 2.48 s"),
    (90.0, 0.0123, "0.0123 examples/s, step p50 1 min 30 s, p95 3 min"),
    (0.99951, 0.01, "0.01 examples/s, step p50 1 s, p95 2 s"),
]


def test_short_and_long_steps_are_said_in_their_units():
    """N16: never as a power of ten."""
    for seconds, speed, said in SPEEDS:
        report = a_run().report() | {"examples_per_second": speed}
        report |= {"step_seconds_p50": seconds, "step_seconds_p95": 2 * seconds}
        assert in_one_line(report).endswith(f"; {said}")


def attempt(**changes):
    report = a_run().report() | {"traces": {"train": 1, "eval": 1}, "trace_seconds": 2.0}
    return report | {"peak_memory_bytes": {"process": 5}} | changes


def test_attempts_are_added_up():
    """N16: over all processes of a run, with how often and how long it was started again."""
    time = over_attempts(None, attempt(), began=1000.0)
    assert (time["total"]["restarts"], time["total"]["restart_seconds"]) == (0, 0)
    for number in range(1, 31):
        peak = {"process": 9 if number == 7 else 3, "GPU:0": 2}
        now = attempt(peak_memory_bytes=peak)
        time = over_attempts(json.loads(json.dumps(time)), now, began=1000.0 + 100 * number)
    total = time["total"]
    assert (total["restarts"], total["restart_seconds"], total["wall_seconds"]) == (30, 450, 3100)
    assert total["seconds"] == seconds_of(
        **{part: 31 * seconds for part, seconds in attempt()["seconds"].items()},
    ) | {"between": 0}
    assert (total["steps"], total["traces"], total["trace_seconds"]) == (3131, {"train": 31, "eval": 31}, 62.0)
    assert total["peak_memory_bytes"] == {"process": 9, "GPU:0": 2}
    assert len(time["attempts"]) == time_account._KEPT_ATTEMPTS
    unknown = attempt(seconds=attempt()["seconds"] | {"input": None})
    assert over_attempts(None, unknown, began=0.0)["total"]["seconds"]["input"] is None
    assert over_attempts(time, unknown, began=4100.0)["total"]["seconds"]["input"] == total["seconds"]["input"]


@dataclasses.dataclass
class Simulated:
    """Processes of a run on one clock; `time` is what the newest record says."""

    clock: FakeTime
    draw: random.Random
    time: dict | None = None

    def process(self, end):
        account, before, began = TimeAccount(began_seconds=self.clock.now, clock=self.clock), self.time, self.clock.now
        self.clock.after(self.draw.uniform(0, 9))
        self.record(account, before, began)  # the start is on record in any case
        for phase in self.draw.choices(["build", "train", "evaluate", "save", "export"], k=6):
            if phase == "save" and end != "killed before its first save":
                self.record(account, before, began)
            account.enter(phase)
            self.clock.after(self.draw.uniform(0, 99))
            if phase == "train":
                account.window(10, self.draw.uniform(0, 99), examples=10, has_traced=self.draw.random() < 0.5)
        if end == "done":
            self.record(account, before, began)

    def record(self, account, before, began):
        about = {"traces": {}, "trace_seconds": 0, "peak_memory_bytes": {}}
        self.time = json.loads(json.dumps(over_attempts(before, account.report() | about, began=began)))


@given(st.lists(st.sampled_from(["done", "killed", "killed before its first save"]), max_size=49), st.integers(0, 99))
def test_the_parts_of_fifty_processes_sum_to_the_wall_time(ends, seed):
    """N27, N51: whatever a process did, however it ended, and however long none ran."""
    run = Simulated(FakeTime(), random.Random(seed))
    for end in [*ends, "done"]:
        run.process(end)
        ended = run.clock.now
        run.clock.after(run.draw.uniform(0, 9999))
    total = run.time["total"]
    assert sum(total["seconds"][part] or 0 for part in PARTS) == pytest.approx(total["wall_seconds"], abs=1e-3)
    assert sum(seconds or 0 for seconds in total["seconds"].values()) == pytest.approx(ended - 100, abs=1e-3)


def test_a_clock_that_was_set_back_takes_no_time_away():
    """N16: on another host, which may be behind."""
    time = over_attempts(over_attempts(None, attempt(), began=1000.0), attempt(), began=1050.0)
    assert (time["total"]["wall_seconds"], time["total"]["seconds"]["between"]) == (200, 0)


def test_a_process_knows_when_it_began(monkeypatch):
    """N16: before this file was imported; where the system does not say, nobody knows."""
    assert process_start_seconds() < IMPORTED_SECONDS

    def no_file(*arguments, **options):
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", no_file)
    assert process_start_seconds() is None


# Whole runs.


def test_a_run_that_fails_is_on_record_too(model_dir, monkeypatch):
    """N16: with the time until then; before the first step as well."""

    class Failing(Action):
        def on_step(self, run):
            raise ValueError("no")

    monkeypatch.setattr(SleepyTask, "build_actions", lambda self, trainer: [Failing()])
    with pytest.raises(ActionError):
        do(model_dir)
    (attempt,) = recorded(model_dir)["time"]["attempts"]
    assert recorded(model_dir)["status"] == "failed"
    assert attempt["steps"] == 20
    monkeypatch.setattr(SleepyTask, "build_model", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        do(f"{model_dir}-2")
    (attempt,) = recorded(f"{model_dir}-2")["time"]["attempts"]
    assert attempt["seconds"]["start"] == attempt["wall_seconds"] > 0


def test_a_tracker_that_is_slow_is_booked_as_one(tmp_path):
    """N16: by whoever hands the numbers on, the wait for threads included."""

    class Slow(Tracker):
        def log(self, split, step, values):
            time.sleep(0.05)

    rows = JsonlTracker(str(tmp_path / "metrics.jsonl"))
    trackers = Trackers([ThreadedTracker(Slow(), name="slow")], rows)
    trackers.log("validation", 1, {"accuracy": 1.0})
    assert trackers.spent_seconds >= 0.05
    trackers.close()
