"""Which of the drawn fields tell good trials from others."""

import sys

import pytest

from official_trainer.sweeps.importance import LEAST_TRIALS, importances
from official_trainer.sweeps.space import read_free
from official_trainer.sweeps.trial import Trial
from tests.support.sweeps.written import RATE, SPACE

DIMENSIONS = read_free(SPACE, lambda keys: None).dimensions


def complete(count, *, others=lambda values: {}):
    """Trials whose rates and batch sizes spread over their ranges; a dropout with every second one."""
    found = []
    for number in range(count):
        values = {"task.model.type": ("mlp", "cnn")[number % 2]}
        values["task.train_data.global_batch_size"] = 32 * (1 + number % 4)
        values[RATE] = 10 ** (-4 + 3 * number / count)
        if number % 2 == 0:
            values["task.model.mlp.dropout"] = number * 7 % count / count / 2
        found.append(ended(number, values, values[RATE], others(values)))
    return found


def ended(number, values, value, others=None):
    return Trial(number=number, values=values, state="complete", value=value, others=others or {})


def test_the_field_that_decides_has_the_largest_share():
    """N21: conditional fields are among them; the shares add up to 1."""
    shares, reason = importances(DIMENSIONS, complete(40), ["max"])
    assert next(iter(shares)) == RATE and shares[RATE] > 0.5 and reason == ""
    assert "task.model.mlp.dropout" in shares and sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert importances(DIMENSIONS, complete(40), ["max"]) == (shares, "")
    several, _ = importances(DIMENSIONS, complete(40, others=lambda values: {"loss": -values[RATE]}), ["max", "min"])
    assert next(iter(several)) == RATE


def test_without_shares_the_reason_is_said(monkeypatch):
    """N21: few trials; no field that decides; a value outside of the space; no Optuna."""
    few = "9 complete trials are too few; 10 are needed"
    assert importances(DIMENSIONS, complete(LEAST_TRIALS - 1), ["max"]) == ({}, few)
    alike = [ended(i, {RATE: 0.01}, 1.0) for i in range(20)]
    assert importances(DIMENSIONS, alike, ["max"]) == ({}, "no field tells the best trials from the others")
    for outside in ({RATE: 7.0}, {"unknown": 1.0}):
        trials = [ended(i, outside, 1.0) for i in range(20)]
        assert importances(DIMENSIONS, trials, ["max"])[1].startswith("Optuna refuses a trial: ")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert importances(DIMENSIONS, complete(20), ["max"]) == (
        {},
        "they need Optuna: pip install 'official-trainer[sweep]'",
    )
