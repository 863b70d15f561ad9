"""`official_trainer.sweep`: what is refused before anything starts, and what it returns."""

import dataclasses
import json

import pytest

from official_trainer.config import ConfigError
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.from_python import Sweep, sweep
from official_trainer.sweeps.trial import SweepError, Trial
from tests.unit.sweeps.test_functions import train

RATE = {"rate": "log(1e-4, 1e-1)"}
LOSS = {"metric": "loss", "direction": "min"}


@pytest.mark.parametrize(
    ("space", "arguments", "message"),
    [
        (RATE, {"trails": 3}, r"^trails: unknown field; did you mean 'trials'\?$"),
        ({"rate": "lag(1, 2)"}, {"objective": LOSS}, r"^rate: is no distribution, got 'lag'; did you mean 'log'\?$"),
        ({"rate": 0.1}, {"objective": LOSS}, r"^rate: is no distribution, got '0.1'; allowed: float"),
        (RATE, {}, r"objective.metric: no metric is named"),
        (
            RATE,
            {"objective": LOSS, "population": {"size": 2, "interval": 5}},
            r"^population: continues runs of an experiment .*; register an experiment, or leave it out$",
        ),
    ],
)
def test_mistakes_in_arguments_are_said_without_a_place(tmp_path, space, arguments, message):
    """N21: nothing is written."""
    with pytest.raises(ConfigError, match=message):
        sweep(train, space, model_dir=str(tmp_path / "new"), **arguments)
    assert not (tmp_path / "new").exists()


def test_changes_of_an_experiment_mean_nothing_for_a_function(tmp_path):
    """N21: they are refused."""
    with pytest.raises(SweepError, match="change an experiment; a function has none, leave them out"):
        sweep(train, RATE, model_dir=str(tmp_path), params_override="a=1")


def test_a_sweep_is_read_from_its_directory(tmp_path):
    """N21: its trials, the best of them, and a table for pandas."""
    objective = {"metric": "loss", "direction": "min", "evaluation": "best"}
    content = {"experiment": "train", "sweep": {"objective": objective, "space": RATE, "population": None}}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    for number, value in enumerate((0.5, 0.25)):
        trial = Trial(number=number, values={"rate": 0.1 * value}, state="complete", value=value, step=10)
        trials.write(str(tmp_path), trial)
    found = Sweep(str(tmp_path))
    assert [each.number for each in found.trials] == [0, 1] and found.best.number == 1
    row = {"trial": 1, "rate": 0.025, "state": "complete", "value": 0.25, "step": 10, "reason": ""}
    assert found.table()[1] == row
    content["sweep"]["objective"]["others"] = {"auc": "max"}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    for each in found.trials:
        trials.write(str(tmp_path), dataclasses.replace(each, others={"auc": each.value}))
    assert [each.number for each in found.front] == [1, 0]
    assert found.table()[1] == row | {"auc": 0.25}
    with pytest.raises(SweepError, match="of several metrics, trials 1, 0 are the best; take one of `front`"):
        _ = found.best
