"""Drawing and pruning: a function of the records of earlier trials."""

import dataclasses

import pytest

from official_trainer.config import ConfigError, TrainerConfig, resolve
from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.settings import Objective, SweepConfig, objective_of, step_problem
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial

SPACE = Space(
    (
        Dimension("rate", "log", 1e-4, 1e-1),
        Dimension("units", "int", 2, 8, 2),
        Dimension("kind", "choice", choices=("a", "b")),
    )
)
OBJECTIVE = Objective("accuracy", "max", "best")


def settings(*sets):
    return resolve(SweepConfig(space={"rate": "log(1e-4, 1e-1)"}), sets=sets)


def study(*sets):
    return Study(SPACE, settings(*sets), OBJECTIVE)


def finished(count, **changes):
    """Trials whose best is at the largest rate; the drawn values are those of the study."""
    trials = {}
    for number in range(count):
        values = study(*changes.get("sets", ())).draw(number, trials).values
        reports = ((10, values["rate"]), (20, 2 * values["rate"]))
        trials[number] = Trial(
            number=number, values=values, state="complete", value=2 * values["rate"], reports=reports
        )
    return trials


def test_a_draw_depends_on_the_number_and_on_earlier_trials_alone():
    """N21: another process draws the same, whatever came later."""
    trials = finished(14)
    again = study()
    assert [again.draw(number, trials).values for number in range(14)] == [trial.values for trial in trials.values()]
    assert len({trial.values["rate"] for trial in trials.values()}) == 14
    assert all(trial.values["units"] in (2, 4, 6, 8) and trial.values["kind"] in "ab" for trial in trials.values())
    assert study("seed=1").draw(0, {}).values != study().draw(0, {}).values
    attempts = [study().draw(2, {}, attempt).values for attempt in range(4)]  # after draws that were refused
    assert attempts == [again.draw(2, {}, attempt).values for attempt in range(4)]
    assert len({each["rate"] for each in attempts}) == 4


def test_a_trial_below_the_median_is_pruned():
    """N21: of earlier trials only."""
    pruning = study("pruner=MedianPruner", "pruner_options={n_startup_trials: 3}")
    trials = finished(4)
    new = Trial(number=4, values=trials[0].values)
    assert pruning.prunes(new, [(10, 0.0)], trials)
    assert not pruning.prunes(new, [(10, 1.0)], trials)
    assert not pruning.prunes(Trial(number=1, values=new.values), [(10, 0.0)], trials)
    assert not study().prunes(new, [(10, 0.0)], trials)


def test_the_objective_is_the_metric_of_the_best_checkpoint_unless_told_otherwise():
    """N21: its direction is known; that of another metric has to be named."""
    kept = TrainerConfig(best_checkpoint_eval_metric="error", best_checkpoint_metric_comp="lower")
    assert objective_of(settings(), kept) == Objective("error", "min", "best")
    with pytest.raises(ConfigError, match=r"objective.direction: it is not declared which values of 'auc' are better"):
        objective_of(settings("objective.metric=auc"), kept)
    with pytest.raises(ConfigError, match=r"objective.metric: no metric is named; name one, or set trainer.best"):
        objective_of(settings(), TrainerConfig())


def test_several_metrics_have_directions_of_their_own():
    """N21: each is declared, or known as for one; a metric twice, and a pruner, are refused."""
    kept = TrainerConfig(best_checkpoint_eval_metric="error", best_checkpoint_metric_comp="lower")
    several = settings("objective={metric: auc, direction: max, others: {error: null, a.b|c: min}}")
    assert objective_of(several, kept) == Objective("auc", "max", "best", {"error": "min", "a.b|c": "min"})
    assert list(objective_of(several, kept).directions) == ["auc", "error", "a.b|c"]
    with pytest.raises(ConfigError, match=r"--set: objective.others.auc: it is not declared which values of 'auc' are"):
        objective_of(settings("objective.others={auc: null}"), kept)
    with pytest.raises(ConfigError, match=r"objective.others: names 'error', which is compared already; leave it out"):
        objective_of(settings("objective.others={error: null}"), kept)
    with pytest.raises(ConfigError, match=r"objective.others: names 'auc', which is objective.metric already; leave"):
        settings("objective={metric: auc, others: {auc: max}}")
    with pytest.raises(ConfigError, match=r"pruner: compares trials by one metric, and objective.others names more"):
        settings("objective.others={auc: max}", "pruner=MedianPruner")


@pytest.mark.parametrize(
    ("step", "trainer", "fix"),
    [
        (150, {"train_steps": 1000}, "write 100 or 200"),
        (50, {"train_steps": 1000}, "write 100"),
        (950, {"train_steps": 930}, "write 900 or 930"),
        (2000, {"train_steps": 930}, "write 930"),
        (910, {"train_steps": 930}, "write 900 or 930"),
        (50, {"train_steps": 60}, "write 60"),
        (150, {"train_epochs": 3}, "write 100 or 200"),
        (200, {"train_steps": 1000}, None),
        (930, {"train_steps": 930}, None),
        (5000, {"train_epochs": 3}, None),
    ],
)
def test_a_step_without_an_evaluation_is_found_with_the_nearest_ones(step, trainer, fix):
    """N21: by the interval and the last step, where that is known."""
    found = step_problem(Objective("auc", "max", step), TrainerConfig(validation_interval=100, **trainer))
    assert (None if found is None else found.fix) == fix
    assert found is None or f"no evaluation at step {step}: trainer.validation_interval is 100" in found.what


def test_of_several_metrics_what_is_drawn_depends_on_all():
    """N21: TPE and its Pareto front; pruned and failed trials are among those it reads."""
    several = Study(SPACE, settings("objective.others={cost: min}"), Objective("auc", "max", "best", {"cost": "min"}))
    trials = {number: Trial(number=number, values=several.draw(number, {}).values) for number in range(14)}
    for number, each in trials.items():
        end = {"state": "pruned", "reports": ((1, 0.5),)} if number % 5 == 4 else {"state": "complete", "value": 0.5}
        others = {} if number % 5 == 4 else {"cost": each.values["rate"]}
        trials[number] = dataclasses.replace(each, others=others, **end)
    turned = {
        number: dataclasses.replace(each, others={name: -cost for name, cost in each.others.items()})
        for number, each in trials.items()
    }
    assert several.draw(14, trials) == several.draw(14, trials) != several.draw(14, turned)
    assert not several.prunes(trials[0], [(10, 0.0)], trials)


def test_the_number_of_trials_in_a_process_was_removed(tmp_path):
    """N21: a file that sets it is told what has changed, and to remove it."""
    path = tmp_path / "space.yaml"
    path.write_text("space: {rate: 'log(1e-4, 1e-1)'}\ntrials_per_process: 1\n")
    what = "this field was removed; each trial has a process of its own now, so remove it"
    with pytest.raises(ConfigError, match=rf"space.yaml:2: trials_per_process: {what}"):
        resolve(SweepConfig(), config_files=[str(path)])


def test_a_space_without_fields_and_options_without_a_pruner_are_refused():
    """Each says what to write."""
    with pytest.raises(ConfigError, match=r"space: holds no field; write PATH: log\(1e-5, 1e-1\), or give --space"):
        resolve(SweepConfig())
    with pytest.raises(ConfigError, match="pruner_options: has no effect without a pruner; set pruner, or remove it"):
        study("pruner_options={a: 1}")


@pytest.mark.parametrize(
    ("path", "value"),
    [("rate", 1.0), ("rate", "<script>"), ("rate", True), ("units", 3.5), ("kind", "c"), ("other", 1)],
)
def test_a_trial_of_another_space_is_refused(path, value):
    """N21: such as a directory that was copied from another sweep."""
    values = {"rate": 1e-3, "units": 4, "kind": "a"}
    study().check([Trial(number=0, values=values)])
    with pytest.raises(SweepError) as caught:
        study().check([Trial(number=0, values=values), Trial(number=1, values=values | {path: value})])
    assert str(caught.value) == (
        f"trial 1 is none of this sweep, whose space does not draw {value!r} for {path}. Remove the directory of the "
        "trial: it is then run again"
    )
