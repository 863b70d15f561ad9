"""Drawing and pruning: a function of the records of earlier trials."""

import pytest

from official_trainer.config import ConfigError, TrainerConfig, resolve
from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.settings import Objective, SweepConfig, objective_of
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

SPACE = Space(
    (
        Dimension("rate", "log", 1e-4, 1e-1),
        Dimension("units", "int", 2, 8, 2),
        Dimension("kind", "choice", choices=("a", "b")),
    )
)
OBJECTIVE = Objective("accuracy", "max", "best")


def study(*sets):
    return Study(SPACE, resolve(SweepConfig(space={"rate": "log(1e-4, 1e-1)"}), sets=sets), OBJECTIVE)


def finished(count, **changes):
    """Trials whose best is at the largest rate; the drawn values are those of the study."""
    trials = {}
    for number in range(count):
        values = study(*changes.get("sets", ())).draw(number, trials)
        reports = ((10, values["rate"]), (20, 2 * values["rate"]))
        trials[number] = Trial(
            number=number, values=values, state="complete", value=2 * values["rate"], reports=reports
        )
    return trials


def test_a_draw_depends_on_the_number_and_on_earlier_trials_alone():
    """N21: another process draws the same, whatever came later."""
    trials = finished(14)
    again = study()
    assert [again.draw(number, trials) for number in range(14)] == [trial.values for trial in trials.values()]
    assert len({trial.values["rate"] for trial in trials.values()}) == 14
    assert all(trial.values["units"] in (2, 4, 6, 8) and trial.values["kind"] in "ab" for trial in trials.values())
    assert study("seed=1").draw(0, {}) != study().draw(0, {})


def test_results_matter_once_there_are_enough():
    """Not every draw is random: TPE reads the values of earlier trials."""
    trials = finished(14)
    turned = {
        number: Trial(number=number, values=each.values, state="complete", value=-each.value)
        for number, each in trials.items()
    }
    assert study().draw(14, trials) != study().draw(14, turned)


def test_a_trial_below_the_median_is_pruned():
    """N21: of earlier trials only."""
    pruning = study("pruner=MedianPruner", "pruner_options={n_startup_trials: 3}")
    trials = finished(4)
    new = Trial(number=4, values=trials[0].values)
    assert pruning.prunes(new, [(10, 0.0)], trials)
    assert not pruning.prunes(new, [(10, 1.0)], trials)
    assert not pruning.prunes(Trial(number=1, values=new.values), [(10, 0.0)], trials)
    assert not study().prunes(new, [(10, 0.0)], trials)


def test_an_unknown_option_has_its_place_and_the_nearest_match():
    """N21: the options of Optuna's class, by its signature."""
    with pytest.raises(
        ConfigError, match=r"--set: sampler_options.n_startup_trial: TPESampler has no such option.*'n_startup_t"
    ):
        study("sampler_options={n_startup_trial: 3}")
    with pytest.raises(SweepError, match=r"pruner_options: PercentilePruner refuses them: .*percentile"):
        study("pruner=PercentilePruner")


def test_the_objective_is_the_metric_of_the_best_checkpoint_unless_told_otherwise():
    """N21: its direction is known; that of another metric has to be named."""
    kept = TrainerConfig(best_checkpoint_eval_metric="error", best_checkpoint_metric_comp="lower")
    assert objective_of(SweepConfig(), kept) == Objective("error", "min", "best")
    with pytest.raises(ConfigError, match=r"objective.direction: it is not declared which values of 'auc' are better"):
        objective_of(resolve(SweepConfig(space={"a": "b"}), sets=["objective.metric=auc"]).config, kept)
    with pytest.raises(ConfigError, match=r"objective.metric: no metric is named; name one, or set trainer.best"):
        objective_of(SweepConfig(), TrainerConfig())


def test_a_space_without_fields_and_options_without_a_pruner_are_refused():
    """Each says what to write."""
    with pytest.raises(ConfigError, match=r"space: holds no field; write PATH: log\(1e-5, 1e-1\), or give --space"):
        resolve(SweepConfig())
    with pytest.raises(ConfigError, match="pruner_options: has no effect without a pruner; set pruner, or remove it"):
        study("pruner_options={a: 1}")
