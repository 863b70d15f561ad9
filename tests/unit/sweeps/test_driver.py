"""What a driver decides about trials: which count, which failures end a sweep, what an evaluation is, which GPUs."""

import json
import types

import pytest
from optuna.trial import TrialState

from official_trainer.sweeps import driver
from official_trainer.sweeps.driver import MOST_FAILURES, REASON, REFUSED
from official_trainer.sweeps.settings import Objective, SweepError
from tests.support.gpus import nvidia_smi
from tests.support.sweeps.written import write_run


def trials(*states, **facts):
    numbered = enumerate(states)
    return [
        types.SimpleNamespace(number=number, state=TrialState[state], user_attrs=facts) for number, state in numbered
    ]


def test_trials_that_are_trained_to_their_end_or_pruned_count():
    """N21: one that fails or is refused does not, unless each combination comes once."""
    some = [*trials("COMPLETE", "PRUNED", "FAIL", "RUNNING", "WAITING"), *trials("PRUNED", **{REFUSED: True})]
    assert driver.count_done(types.SimpleNamespace(is_exhaustive=False), some) == 2
    assert driver.count_done(types.SimpleNamespace(is_exhaustive=True), some) == 4


def test_five_failures_in_a_row_end_a_sweep_with_the_cause():
    """N21: and with what to do; fewer, others between them, or those of an earlier command do not."""
    driver.refuse_more(trials(*["FAIL"] * (MOST_FAILURES - 1)), since=0)
    driver.refuse_more(trials(*["FAIL"] * 4, "COMPLETE", *["FAIL"] * 4, "RUNNING"), since=0)
    driver.refuse_more(trials(*["FAIL"] * MOST_FAILURES), since=1)
    message = r"the last 5 trials failed; the last one: a bug\nMend the cause; the same command"
    with pytest.raises(SweepError, match=message) as caught:
        driver.refuse_more(trials("COMPLETE", *["FAIL"] * MOST_FAILURES, **{REASON: "a bug"}), since=0)
    assert caught.value.exit_code == 1


def test_draws_that_the_experiment_refuses_again_and_again_end_a_sweep():
    """N21: with its reason."""
    facts = {REASON: "warmup: is longer than the training", REFUSED: True}
    driver.refuse_more(trials(*["PRUNED"] * 99, **facts), since=0)
    with pytest.raises(
        SweepError, match=r"refuses all of the last 100 draws; the last one: warmup: is longer.*\nNarrow"
    ):
        driver.refuse_more(trials(*["PRUNED"] * 100, **facts), since=0)


def test_an_evaluation_has_a_value_of_the_metric(tmp_path):
    """N21: rows of training are none; a metric that is not there is an error with those that are, and the nearest."""
    run = write_run(tmp_path, 0, rows=[(10, 0.5), (20, 0.75)])
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 30, "split": "train", "time": 1.0, "loss": 0.1}) + '\n{"step": 40, "spl')
    path = str(run / "metrics.jsonl")
    assert [*driver.evaluations(path, Objective("accuracy", "max", "best"))] == [(10, 0.5), (20, 0.75)]
    message = "objective: 'acuracy' is compared, and the evaluation produces accuracy; did you mean accuracy"
    with pytest.raises(SweepError, match=message):
        [*driver.evaluations(path, Objective("acuracy", "max", "best"))]


def test_the_best_or_the_last_evaluation_counts(tmp_path):
    """N21: without those that are NaN; a trial that was never evaluated ends the sweep."""
    rows = [(10, "NaN"), (20, 0.5), (30, 0.75), (40, 0.25), (50, "NaN")]
    path = str(write_run(tmp_path, 0, rows=rows) / "metrics.jsonl")
    for direction, evaluation, expected in (("max", "best", (30, 0.75)), ("min", "best", (40, 0.25))):
        assert driver.counted(path, Objective("accuracy", direction, evaluation)) == expected
    assert driver.counted(path, Objective("accuracy", "max", "last")) == (40, 0.25)
    nothing = str(write_run(tmp_path, 1, rows=rows[:1]) / "metrics.jsonl")
    assert driver.counted(nothing, Objective("accuracy", "max", "best")) is None
    with pytest.raises(
        SweepError, match=r"has no evaluation, so the trial cannot be compared; set task.validation_data"
    ):
        driver.counted(str(tmp_path / "none"), Objective("accuracy", "max", "best"))


def test_a_failure_has_its_error_in_one_line(tmp_path):
    """N21: that of the run's record, else the last one that was printed, and where more is."""
    folder, output = tmp_path / "trials" / "0", tmp_path / "trials" / "0" / "output.log"
    folder.mkdir(parents=True)
    how = "trial 0 ended with exit code 1"
    assert driver.failure(str(folder), how) == f"{how}: ; see {output}"
    output.write_text("starting\nerror: no such file\n\n")
    assert driver.failure(str(folder), how) == f"{how}: no such file; see {output}"
    write_run(
        tmp_path, 0, error="model.py:8 in build_model, while building:\n    raise it\n  ValueError: a bug\n  more"
    )
    error = "model.py:8 in build_model, while building: ValueError: a bug"
    assert driver.failure(str(folder), how) == f"{error}; see {output}"


@pytest.mark.parametrize(
    ("count", "visible", "parallel", "expected"),
    [
        (4, None, 2, ["0,1", "2,3"]),
        (4, "1,3", 2, ["1", "3"]),
        (3, None, 2, ["0", "1"]),
        (2, None, 3, ["0", "1", "0"]),
        (4, None, 1, [None]),
        (0, None, 2, [None, None]),
    ],
)
def test_trials_side_by_side_see_gpus_of_their_own(count, visible, parallel, expected, tmp_path):
    """N21: each as many as any other; a trial alone sees all."""
    environ = {**nvidia_smi(tmp_path, count)} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    environments = driver.environments(parallel, {**environ, "OFFICIAL_TRAINER_GPUS": "4"})
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in environments] == expected
    shares = [environment and len(environment.split(",")) for environment in expected]
    assert [environment.get("OFFICIAL_TRAINER_GPUS") for environment in environments] == [
        share and str(share) for share in shares
    ]
