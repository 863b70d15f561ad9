"""Early stopping: which evaluations count, and that a restart changes nothing."""

import json
import math
import shutil
import types

import pytest

from official_trainer.actions.action import LoopState, Run, Stop
from official_trainer.actions.checkpoint import CheckpointConfig
from official_trainer.actions.early_stopping import EarlyStopping, EarlyStoppingConfig
from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError
from official_trainer.tasks import metrics
from official_trainer.tracking.monitored import MissingMetricError
from tests.support import runs, scripted_runs


def run_at(step):
    evaluation = types.SimpleNamespace(chosen_direction=lambda name, mode, **limits: mode.replace("auto", "max"))
    trainer = types.SimpleNamespace(evaluation=evaluation, checkpoint_exporter=None)
    return Run(state=LoopState(step=step), trainer=trainer, model_dir="", tracker=None)


def stops_at(scores, **config):
    """Returns the step of the evaluation at which it stops, one every ten steps, and what it says; restarted often."""
    config = EarlyStoppingConfig(monitor="accuracy", **config)
    state = {}
    for step, score in zip(range(10, 1000, 10), scores, strict=False):
        action = EarlyStopping(config)
        action.restore(json.loads(json.dumps(state)))
        assert action.on_start(run_at(step)) is None
        answer = action.on_eval(run_at(step), {"accuracy": score})
        state = action.state()
        if answer is not None:
            assert isinstance(answer, Stop)
            return step, answer.reason
    return None


NAN = math.nan


ENDS = [
    ([0.5, 0.6, 0.55, 0.6, 0.59], {"patience": 3}, 50),  # a tie is no improvement
    ([0.5, 0.6, 0.55, 0.6, 0.61, 0.6], {"patience": 3}, None),
    ([0.5, 0.6, 0.55], {}, 30),
    ([0.5, 0.6, 0.55], {"patience": 1}, 30),
    ([0.5, 0.4, 0.45, 0.4, 0.41], {"mode": "min", "patience": 2}, 40),
    ([0.5, 0.54, 0.58, 0.63, 0.65], {"min_delta": 0.1, "patience": 2}, 30),
    ([0.5, 0.61, 0.58, 0.72], {"min_delta": 0.1, "patience": 2}, None),
    ([0.1, 0.2, 0.3], {"baseline": 0.5, "patience": 3}, 30),
    ([0.1, 0.2, 0.6, 0.5, 0.5], {"baseline": 0.5, "patience": 3}, None),
    ([0.1, 0.6, 0.55, 0.55], {"baseline": 0.5, "patience": 2}, 40),
    ([0.9, 0.8, 0.7, 0.6, 0.5], {"start_from_step": 30, "patience": 2}, 50),
    ([NAN, NAN, 0.5, NAN, 0.4], {"patience": 2}, 20),
    ([NAN, 0.5, NAN, 0.6, NAN, NAN], {"patience": 2}, 60),
    ([math.inf, math.inf], {}, 20),
]


def test_which_evaluation_is_the_last():
    """C1: strictly better by more than min_delta, beyond the baseline; NaN never; state goes on after each restart."""
    for scores, config, step in ENDS:
        stopped = stops_at(scores, **config)
        assert (stopped and stopped[0]) == step, (scores, config)


def test_it_says_why():
    """C1: the metric, for how long, and its best."""
    for scores, config, reason in (
        ([0.97222, 0.9, 0.9, 0.97], {"patience": 3}, "in 3 evaluations; its best is 0.9722 (step 10)"),
        ([0.5, 0.5], {"min_delta": 0.1}, "by more than 0.1 in 1 evaluation; its best is 0.5 (step 10)"),
        ([0.5], {"baseline": 0.99}, "in 1 evaluation, beyond the baseline 0.99; its best is 0.5 (step 10)"),
        ([NAN, NAN], {"patience": 2}, "in 2 evaluations; it was never a number"),
    ):
        assert stops_at(scores, **config)[1] == f"early stopping: accuracy has not improved {reason}"


def test_another_metric_starts_anew():
    """C1: the state of one metric says nothing about another."""
    action = EarlyStopping(EarlyStoppingConfig(monitor="accuracy"))
    action.restore({"monitor": "loss", "wait": 7, "best": 3.0, "best_step": 10})
    assert action.on_start(run_at(20)) is None
    assert action.state() == {"monitor": "accuracy", "wait": 0}


def test_an_evaluation_without_the_metric_is_an_error():
    """C1: message."""
    action = EarlyStopping(EarlyStoppingConfig(monitor="accuracy"))
    with pytest.raises(MissingMetricError, match="the evaluation left out 'accuracy' this time; it produced loss"):
        action.on_eval(run_at(10), {"loss": 1.0})


def test_it_comes_after_what_keeps_the_best():
    """C1: by its priority, wherever it is in the list."""
    configs = [EarlyStoppingConfig(monitor="accuracy"), CheckpointConfig(monitor="accuracy")]
    assert [action.name for action in Schedule(configs).actions] == ["checkpoint", "early_stopping"]


# In whole runs.

SCORES = (0.5, 0.7, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
STOP = EarlyStoppingConfig(monitor="score", patience=3)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """An unbroken run that stops early, which tests only read."""
    model_dir = str(tmp_path_factory.mktemp("stopped") / "run")
    scripted_runs.do(model_dir, STOP, scores=SCORES)
    return model_dir


def evaluated(model_dir):
    return [row["step"] for row in runs.rows(model_dir) if row["split"] == "validation"]


def test_a_run_stops(stopped):
    """C1: saved, summarized and evaluated as if it were the last step; the same command adds nothing."""
    assert evaluated(stopped) == [10, 20, 30, 40, 50]
    assert committed_steps(stopped) == (30, 50)
    assert runs.rows(stopped)[-1]["score"] == 0.7
    before = runs.rows(stopped)
    scripted_runs.do(stopped, STOP, scores=SCORES)
    assert runs.rows(stopped) == before
    assert committed_steps(stopped) == (30, 50)


def test_more_patience_goes_on(stopped, model_dir):
    """C1: from where the run stopped, with what it has counted."""
    shutil.copytree(stopped, model_dir)
    scripted_runs.do(model_dir, STOP.replace(patience=4), scores=(*SCORES[:5], 0.7, 0.6, 0.6))
    assert evaluated(model_dir) == [10, 20, 30, 40, 50, 60]


def test_a_direction_that_nobody_declares_is_asked_for(model_dir):
    """C1: before the first step; `mode` is the answer."""
    message = "early_stopping' failed in on_start at step 0: it is unknown whether a higher or a lower 'perplexity'"
    with pytest.raises(ActionError, match=message) as caught:
        scripted_runs.do(model_dir, EarlyStoppingConfig(monitor="perplexity"))
    assert isinstance(caught.value.__cause__, metrics.MetricDirectionError)


def test_what_cannot_be_monitored(model_dir):
    """C1: a name that is not there, anything in a mode without evaluations."""
    with pytest.raises(
        LookupError, match=r"action 'early_stopping': evaluation does not produce 'scores'; .*'score'\?"
    ):
        scripted_runs.do(model_dir, EarlyStoppingConfig(monitor="scores"))
    with pytest.raises(ConfigError, match="'early_stopping' needs 'score' of an evaluation, and mode train makes none"):
        scripted_runs.do(model_dir, STOP, mode="train")
