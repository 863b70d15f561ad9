import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.runs.health.slow_worker import SlowWorkers

STEP = 0.05


def windows(workers, count, *, rest=0.01, has_traced=False, save_seconds=0.0, finder=None):
    """Gives windows of 20 steps to a finder, and returns it; `workers` are the own parts of a step, or draw them."""
    finder = finder or SlowWorkers()
    for number in range(count):
        parts = workers(number) if callable(workers) else workers
        seconds = (max(map(sum, parts)) + rest) * 20
        if save_seconds:
            finder.save(save_seconds)
        finder.window(20, seconds, [(20 * a, 20 * b) for a, b in parts], has_traced=has_traced)
    return finder


@pytest.mark.parametrize(("slow", "phase"), [((0.01, STEP), "input"), ((0.0, STEP * 1.2), "compute")])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("at", [0, -1])
def test_the_slow_worker_and_its_phase_are_found(slow, phase, count, at):
    """N49: a fifth more of one phase, within 30 s; the others, which wait, are not."""
    parts = [(0.0, STEP)] * count
    parts[at] = slow
    found = windows(parts, 30).found
    assert (found.worker, found.phase) == (at % count, phase)
    assert found.cost == pytest.approx(0.01 / 0.07)
    verb = "waits for its data 10 ms" if phase == "input" else "computes 60 ms"
    assert f"in a step it {verb}" in found.evidence
    assert "after its own part it waits 10 ms, another up to 20 ms" in found.evidence
    assert f"worker {at % count} is slow in {phase}, which is 14% of the run's time: " in str(found)


def test_it_is_said_once_and_taken_back():
    """N49: what is found changes when it begins, and when it is over; between the two margins it stays."""
    finder, changes = SlowWorkers(), []
    for cost in [0.0] * 20 + [0.012] * 40 + [0.005] * 40 + [0.0] * 40:
        seconds = 20 * (STEP + cost + 0.01)
        workers = [(0.0, 20 * STEP), (20 * cost, 20 * STEP)]
        if finder.window(20, seconds, workers, has_traced=False):
            changes.append(dataclasses.astuple(finder.found)[:2] if finder.found else None)
    assert changes == [(1, "input"), None]


@given(st.integers(0, 2**32), st.integers(2, 4))
def test_workers_that_a_busy_machine_slows_in_turn_are_not_named(seed, count):
    """N49: each is slower at times, by up to a half."""
    draw = random.Random(seed)
    finder = windows(lambda _: [(draw.random() * STEP / 4, STEP * (1 + draw.random() / 4)) for _ in range(count)], 100)
    assert finder.found is None


def test_saves_that_all_wait_for_are_the_chiefs():
    """N49: a fifth of the time, over the last saves; also where a worker is slow as well, because it costs more."""
    assert windows([(0.0, STEP)] * 2, 12, save_seconds=0.01).found is None
    found = windows([(0.0, STEP)] * 2, 12, save_seconds=0.24).found
    assert (found.worker, found.phase) == (0, "save")
    assert found.cost == pytest.approx(0.24 / 1.44)
    assert found.evidence == "all waited 0.7 s for its last 3 saves, of 4.3 s"


def test_what_is_not_known_names_no_one():
    """N49: windows that trace, that run no step, and of workers that measure nothing."""
    assert windows([(0.0, STEP), (STEP, STEP)], 40, has_traced=True).found is None
    finder = SlowWorkers()
    for _ in range(40):
        assert not finder.window(20, 1.0, [None, None], has_traced=False)
        assert not finder.window(20, 1.0, [], has_traced=False)
        assert not finder.window(0, 1.0, [(0.0, 0.1), (0.0, 0.9)], has_traced=False)
