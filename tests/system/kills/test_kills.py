"""Killed anywhere and started again, all ends with what an unbroken run ends with. One test for each kind of strike."""

import itertools
import random

import pytest

from tests.support.cases import cases
from tests.support.chaos.contract import Broken, Part, Step, check
from tests.system.kills.cases import (
    AT_INSTANTS,
    AT_MOMENTS,
    AT_ONCE,
    BEFORE_CHANGES,
    DIGITS,
    ENDLESS,
    FALLING_BACK,
    STEP_BY_STEP,
    STOPS,
)


@pytest.fixture
def check_strikes(request, shared, tmp_path):
    """Strikes a case, and has it compared; says how to do it once more."""
    seed = request.config.getoption("--chaos-seed")

    def check_strikes(strikes):
        print(f"once more: pytest '{request.node.nodeid}' -m '' --chaos-seed={seed} -n 0")
        check(shared, strikes.case, strikes.drawn(seed), tmp_path, strikes.sets)

    return check_strikes


@pytest.mark.parametrize("strikes", BEFORE_CHANGES)
def test_killed_before_a_change(strikes, check_strikes):
    """N1, N3, C2, K6, T21, N18: just before any change on disk, where time alone hardly ever strikes."""
    check_strikes(strikes)


@pytest.mark.parametrize("strikes", AT_INSTANTS)
def test_killed_at_any_instant(strikes, check_strikes):
    """N1, N3: uniform over the time of an unbroken run: start-up, restore, trace, train, save, evaluate, export."""
    check_strikes(strikes)


@pytest.mark.parametrize("strikes", AT_MOMENTS)
def test_killed_at_a_moment(strikes, check_strikes):
    """N1, N5, N15, K1, K6, T17: after a step."""
    check_strikes(strikes)


@pytest.mark.parametrize("strikes", STOPS)
def test_stopped_by_sigterm(strikes, check_strikes):
    """N1, N5, N15, N18, T17: after a step, which is saved, also at every edge of an epoch; or before a write."""
    check_strikes(strikes)


@pytest.mark.parametrize("count", cases([1, 2], 1))
def test_falls_back_past_damaged_checkpoints(count, shared, tmp_path):
    """N1, N3: to a step before evaluations that have their rows and their best checkpoint already."""
    broken = Broken(shared, FALLING_BACK, tmp_path / "run", (STEP_BY_STEP, AT_ONCE))
    assert broken.is_struck(Step(44, leaves=36))
    broken.damage_newest(count)
    broken.finish()
    broken.check_end()


@pytest.mark.parametrize("kills", cases([2, 150], 2))
def test_a_directory_does_not_fill_up(kills, shared, tmp_path, request):
    """N3: one run, killed again and again between two writes, holds no more files than one that never was."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/endless")
    broken = Broken(shared, ENDLESS, tmp_path / "endless", unbroken=shared.unbroken(DIGITS))
    for _ in itertools.repeat(None, kills):
        assert broken.is_struck(Part(chance.random()))
