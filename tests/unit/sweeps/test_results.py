"""What is read of a sweep's directory, whatever state it is in, and all that a report draws."""

import json
import sys

import pytest

from official_trainer.sweeps import results
from official_trainer.sweeps.results import LEAST_TRIALS, importances
from official_trainer.sweeps.space import read_free
from official_trainer.sweeps.trial import SweepError, Trial
from tests.support.sweeps.written import OBJECTIVE, RATE, SPACE, ended, write_run, write_sweep


def test_a_trial_that_is_not_done_has_the_last_evaluation_of_its_run(tmp_path):
    """N21: so a table shows a running sweep, whose last line is only half there."""
    write_sweep(tmp_path, [Trial(number=0, values={RATE: 0.1}), Trial(number=1, values={RATE: 0.2})])
    run = write_run(tmp_path, 0, status="running", step=120, rows=[(50, 0.5), (100, 0.6)])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 150, "split": "vali')
    first, second = results.read(str(tmp_path)).results
    assert (first.state, first.step, first.results, first.end_step) == ("not done", 100, (0.6,), 200)
    assert (second.state, second.step, second.results, second.end_step) == ("not done", None, (), None)


def test_what_cannot_be_read_of_a_trial_is_said_in_its_place(tmp_path):
    """N21: a damaged record, one that is a folder, one that was never written, a damaged run."""
    write_sweep(tmp_path, [ended(0, 0.5), ended(1, 0.6), Trial(number=4, values={RATE: 0.1})])
    (tmp_path / "trials" / "1" / "trial.json").write_text("{")
    (tmp_path / "trials" / "2" / "trial.json").mkdir(parents=True)
    (tmp_path / "trials" / "3").mkdir()
    write_run(tmp_path, 4).joinpath("run.json").write_text("{")
    found = {each.trial.number: each for each in results.read(str(tmp_path), with_runs=True).results}
    assert [(number, each.state) for number, each in found.items()] == [
        (0, "complete"),
        (1, "unreadable"),
        (2, "unreadable"),
        (4, "not done"),
    ]
    assert (
        "trials/1/trial.json cannot be read" in found[1].trial.reason and "is then run again" in found[1].trial.reason
    )
    assert "trial.json" in found[2].trial.reason
    json.dumps(results.as_json(results.read(str(tmp_path), with_runs=True)), allow_nan=False)


WHOLE = {"space": SPACE, "population": None}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", ""),
        ("[]", "it holds no JSON object"),
        ("{}", "it lacks 'sweep'"),
        ('{"sweep": 5}', "'int' object is not subscriptable"),
        (json.dumps({"sweep": WHOLE}), "it lacks 'objective'"),
        (json.dumps({"sweep": WHOLE | {"objective": {"metric": "loss"}}}), "missing 2 required"),
        (json.dumps({"sweep": {"objective": OBJECTIVE, "population": None}}), "it lacks 'space'"),
        (json.dumps({"sweep": {"objective": OBJECTIVE, "space": []}}), "it lacks 'population'"),
    ],
)
def test_a_damaged_description_is_an_error_with_its_path(text, why, tmp_path):
    """N21: one line, and no traceback."""
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(SweepError, match=r"sweep.json cannot be read \(.*\); put a good copy back") as caught:
        results.read(str(tmp_path))
    assert why in str(caught.value)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(SweepError, match=r"holds no sweep \(there is no .*sweep.json\)"):
        results.read(str(tmp_path))


def test_a_report_has_all_that_it_draws_in_one_object(tmp_path):
    """N21: dimensions, trials, the best so far, the steps that pruning saved."""
    records = [ended(0, 0.5), ended(1, 0.4), ended(2, 0.7), ended(3, 0.1, state="pruned", step=100), ended(4, 0.6)]
    write_sweep(tmp_path, records)
    for number in range(5):
        write_run(tmp_path, number, step=100 if number == 3 else 200)
    _, written = results.write(str(tmp_path))
    found = json.loads((tmp_path / "results.json").read_text())
    assert found == written
    assert found["best"] == [2] and found["best_so_far"] == [[0, 0.5], [2, 0.7]]
    assert found["steps"] == {"spent": 900, "without_pruning": 1000}
    assert found["metrics"] == {"accuracy": "max"} and found["evaluation"] == "best"
    assert [each["path"] for each in found["dimensions"]] == list(SPACE)
    assert found["dimensions"][2] == {
        "path": RATE,
        "kind": "log",
        "low": 1e-4,
        "high": 1e-1,
        "step": None,
        "name": "initial_learning_rate",
        "choices": [],
    }
    assert found["trials"][3] == {
        "number": 3,
        "values": {"task.model.type": "cnn", RATE: 0.004},
        "state": "pruned",
        "results": {"accuracy": 0.1},
        "step": 100,
        "reason": "",
        "reports": [[50, 0.05], [100, 0.1]],
        "steps": 100,
        "end_step": 200,
        "seconds": 1.5,
        "parent": None,
        "run": "trials/3/run",
    }
    assert found["importances"] == {} and found["importances_missing"] == "4 complete trials are too few; 10 are needed"


def test_several_metrics_have_a_front(tmp_path):
    """N21: there is no best so far; the front comes first where the best do."""
    pairs = [(0.5, 0.1), (0.9, 0.5), (0.4, 0.2), (0.8, 0.5)]
    records = [ended(number, value, others={"loss": loss}) for number, (value, loss) in enumerate(pairs)]
    write_sweep(tmp_path, [*records, ended(4, state="failed")], objective={**OBJECTIVE, "others": {"loss": "min"}})
    found = results.read(str(tmp_path))
    assert [each.trial.number for each in found.ranked] == [1, 0, 3, 2, 4]
    content = results.as_json(found)
    assert content["best"] == [1, 0] and content["best_so_far"] == []
    assert content["trials"][0]["results"] == {"accuracy": 0.5, "loss": 0.1}


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
        found.append(decided(number, values, values[RATE], others(values)))
    return found


def decided(number, values, value, others=None):
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
    alike = [decided(i, {RATE: 0.01}, 1.0) for i in range(20)]
    assert importances(DIMENSIONS, alike, ["max"]) == ({}, "no field tells the best trials from the others")
    for outside in ({RATE: 7.0}, {"unknown": 1.0}):
        trials = [decided(i, outside, 1.0) for i in range(20)]
        assert importances(DIMENSIONS, trials, ["max"])[1].startswith("Optuna refuses a trial: ")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert importances(DIMENSIONS, complete(20), ["max"]) == (
        {},
        "they need Optuna: pip install 'official-trainer[sweep]'",
    )
