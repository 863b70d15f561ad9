"""Optuna's samplers and pruners, all of them: what each draws and prunes is a function of the records."""

import dataclasses
import importlib.util
import itertools
import typing
import warnings

import optuna
import pytest

from official_trainer.config import ConfigError, resolve
from official_trainer.sweeps.classes import PRUNERS, SAMPLERS
from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.settings import Objective, SweepConfig
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Study, suggested
from official_trainer.sweeps.trial import SweepError, Trial
from tests.support.cases import cases

NUMBERS = Space(
    (
        Dimension("rate", "float", 0.0, 1.0, 0.25),
        Dimension("units", "int", 2, 8, 2),
    )
)
CHOICES = Space((*NUMBERS.dimensions, Dimension("kind", "choice", choices=("a", "b"))))
BRANCHES = Space((*CHOICES.dimensions, Dimension("depth", "int", 1, 3, 1, needs=(("kind", ("b",)),))))
FREE = Space((Dimension("rate", "log", 1e-4, 1e-1), Dimension("units", "int", 2, 8, 2)))
OBJECTIVE = Objective("accuracy", "max", "best")
REFUSED = {
    "BaseSampler": "abstract",
    "BaseGASampler": "abstract",
    "BasePruner": "abstract",
    "PartialFixedSampler": "a field that is not drawn is set in the experiment",
    "NopPruner": "no pruner is `pruner: null`",
}
SAMPLER_OPTIONS = {
    "TPESampler": "{n_startup_trials: 3, constant_liar: true}",
    "GPSampler": "{n_startup_trials: 3}",
    "CmaEsSampler": "{n_startup_trials: 1, popsize: 4, independent_sampler: RandomSampler}",
    "NSGAIISampler": "{population_size: 4, crossover: {type: BLXAlphaCrossover, alpha: 0.4}}",
    "NSGAIIISampler": "{population_size: 4}",
}
PRUNER_OPTIONS = {
    "MedianPruner": "{n_startup_trials: 2}",
    "PercentilePruner": "{percentile: 40, n_startup_trials: 2}",
    "ThresholdPruner": "{lower: 0.5}",
    "PatientPruner": "{patience: 0, wrapped_pruner: {type: SuccessiveHalvingPruner, min_resource: 1}}",
    "WilcoxonPruner": "{p_threshold: 0.4}",
    "SuccessiveHalvingPruner": "{reduction_factor: 2}",
    "HyperbandPruner": "{min_resource: 1, reduction_factor: 2}",
}
TRIALS = 12


def needs(*names):
    for name in names:
        package = (SAMPLERS | PRUNERS)[name].package
        if package and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def settings(sampler="TPESampler", pruner=None, *sets):
    found = [f"sampler={sampler}", f"sampler_options={SAMPLER_OPTIONS.get(sampler, '{}')}"]
    found += [f"pruner={pruner}", f"pruner_options={PRUNER_OPTIONS[pruner]}"] if pruner else []
    return resolve(SweepConfig(space={"rate": "log(1e-4, 1e-1)"}), sets=[*found, *sets])


def study(*given, space=NUMBERS, objective=OBJECTIVE):
    return Study(space, settings(*given), objective)


def evaluations(values):
    """A curve that rises, falls a little and has another shape for other values."""
    good = values["rate"] + values["units"] / 10
    return [(step, good * step / 4 - (step == 3) * values["rate"]) for step in (1, 2, 3, 4)]


def ended(trial, asks):
    """Returns a trial as a sweep would record it, by asking the pruner after each evaluation."""
    reports = []
    for report in evaluations(trial.values):
        reports.append(report)
        if asks(list(reports)):
            return dataclasses.replace(trial, state="pruned", step=report[0], reports=tuple(reports))
    best = max(value for _, value in reports)
    return dataclasses.replace(trial, state="complete", value=best, reports=tuple(reports))


def swept(make, count=TRIALS):
    """Returns the records of a sweep; `make` returns what answers each question."""
    found = {}
    for number in range(count):
        drawn = make().draw(number, found)
        found[number] = ended(drawn, lambda reports: make().prunes(drawn, reports, found))  # noqa: B023
    return found


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna warns where it draws at random instead
        yield


def test_each_class_of_optuna_is_offered_or_refused_for_a_reason():
    """N21: a class that a new version of Optuna brings is decided about."""
    for module, known in ((optuna.samplers, SAMPLERS), (optuna.pruners, PRUNERS)):
        found = {name for name in module.__all__ if isinstance(getattr(module, name), type)}
        assert found == {*known, *(found & REFUSED.keys())}
    names = typing.get_type_hints(SweepConfig)
    assert set(typing.get_args(names["sampler"])) == SAMPLERS.keys()
    assert set(typing.get_args(typing.get_args(names["pruner"])[0])) == PRUNERS.keys()


NOTING = ("CmaEsSampler", "HyperbandPruner")
"""A sampler and a pruner of which both write notes."""


def pairs():
    """All pairs; those that are more than one of both alone carry `full`, but for two that write notes."""
    found = []
    for sampler in SAMPLERS:
        for pruner in (None, *PRUNERS):
            is_short = pruner is None or sampler == "RandomSampler" or (sampler, pruner) == NOTING
            found.append(pytest.param(sampler, pruner, marks=() if is_short else pytest.mark.full))
    return found


@pytest.mark.parametrize(("sampler", "pruner"), pairs())
def test_an_answer_is_a_function_of_the_records(sampler, pruner):
    """N21: a driver that is killed before each question ends with the table of one that never was."""
    needs(sampler, *([pruner] if pruner else []))
    one = study(sampler, pruner)
    unbroken = swept(lambda: one)
    assert swept(lambda: study(sampler, pruner)) == unbroken
    again = {number: each for number, each in unbroken.items() if number < TRIALS - 2}
    assert study(sampler, pruner).draw(TRIALS - 2, again).values == unbroken[TRIALS - 2].values
    assert len({tuple(each.values.values()) for each in unbroken.values()}) > 3


REMEMBER = (*(name for name, kind in SAMPLERS.items() if kind.remembers), "TPESampler")
RUNGS = (None, *(name for name, kind in PRUNERS.items() if kind.remembers))


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    cases([*itertools.product(REMEMBER, RUNGS)], *((sampler, None) for sampler in REMEMBER), NOTING),
)
def test_it_is_the_answer_of_optuna_in_one_process(sampler, pruner):
    """N21: generations, rungs and brackets are those of a study that Optuna keeps, with the same seeds."""
    needs(sampler)
    ours = swept(lambda: study(sampler, pruner))
    own = study(sampler, pruner)
    kept = optuna.create_study(
        direction="maximize",
        study_name="sweep",
        pruner=own._replayed(0, {}, ()).study.pruner if pruner else optuna.pruners.NopPruner(),
    )
    for number in range(TRIALS):
        kept.sampler = own._sampler(number)
        asked = kept.ask()
        values = NUMBERS.draw(lambda each: suggested(asked, each))  # noqa: B023

        def asks(reports, asked=asked):
            asked.report(reports[-1][1], reports[-1][0])
            return asked.should_prune()

        trial = ended(Trial(number=number, values=values), asks)
        state = {"complete": optuna.trial.TrialState.COMPLETE, "pruned": optuna.trial.TrialState.PRUNED}[trial.state]
        kept.tell(asked, trial.value, state=state)
        assert trial == dataclasses.replace(ours[number], step=trial.step), number
    assert pruner is None or any(each.state == "pruned" for each in ours.values())


@pytest.mark.parametrize("sampler", [name for name, kind in SAMPLERS.items() if kind.remembers])
def test_a_generation_holds_the_trials_that_were_drawn_for_it_also_in_parallel(sampler):
    """N21: a record names the trials that still ran, so what was drawn can be drawn again."""
    needs(sampler)
    found = {}
    for number in range(0, 16, 4):
        drawn = {}
        for each in range(number, number + 4):
            drawn[each] = study(sampler).draw(each, found | drawn)
        assert [len(each.without) for each in drawn.values()] == [0, 1, 2, 3]
        found |= {each: ended(trial, lambda reports: False) for each, trial in drawn.items()}
    for number, trial in found.items():
        at_that_time = {
            each: dataclasses.replace(other, state=None) if each in trial.without else other
            for each, other in found.items()
            if each < number
        }
        assert study(sampler).draw(number, at_that_time) == dataclasses.replace(
            trial, state=None, value=None, reports=()
        )


@pytest.mark.parametrize("sampler", ["GridSampler", "BruteForceSampler"])
def test_each_combination_is_visited_once(sampler):
    """N21: in an order that depends on the seed; fields in branches count where they are drawn."""
    full = study(sampler, space=BRANCHES)
    assert full.most == full.trials == 5 * 4 * (1 + 3)
    found = [full.draw(number, {}).values for number in range(full.most)]
    assert len({tuple(sorted(values.items())) for values in found}) == full.most
    assert all(("depth" in values) == (values["kind"] == "b") for values in found)
    assert {values["rate"] for values in found} == {0.0, 0.25, 0.5, 0.75, 1.0}
    other = study(sampler, None, "seed=1", space=BRANCHES)
    assert [other.draw(number, {}).values for number in range(5)] != found[:5]
    assert study(sampler, None, "trials=7", space=BRANCHES).trials == 7


def test_what_cannot_be_visited_is_refused():
    """N21: a range without a step, more trials than combinations, too many combinations, an option."""
    with pytest.raises(ConfigError, match=r"space.rate: is no list of values, which GridSampler needs; write choice"):
        study("GridSampler", space=FREE)
    with pytest.raises(ConfigError, match=r"trials: the space has 20 combinations, and GridSampler visits each of the"):
        study("GridSampler", None, "trials=21")
    with pytest.raises(ConfigError, match=r"space: has more than 10,000 combinations, which GridSampler would all vis"):
        study("GridSampler", space=Space((Dimension("rate", "int", 0, 10_000, 1),)))
    with pytest.raises(ConfigError, match=r"sampler_options.search_space: GridSampler has no such option.*none"):
        study("GridSampler", None, "sampler_options={search_space: {}}")


def test_a_sequence_covers_the_space_evenly():
    """N21: trial N has point N, although each trial has a sampler of its own; branches take their part of it."""
    needs("QMCSampler")
    space = Space((Dimension("x", "float", 0.0, 1.0), Dimension("y", "float", 0.0, 1.0)))
    points = [study("QMCSampler", space=space).draw(number, {}).values for number in range(16)]
    assert {(int(4 * each["x"]), int(4 * each["y"])) for each in points} == {(x, y) for x in range(4) for y in range(4)}
    fresh = study("QMCSampler", space=space)
    again = [fresh.draw(3, {}, attempt).values["x"] for attempt in range(3)]
    assert again[0] == points[3]["x"] and len(set(again)) == 3
    plain = study("QMCSampler", None, "sampler_options.scramble=false", space=space)
    assert plain.draw(0, {}).values == {"x": 0.0, "y": 0.0} != plain.draw(0, {}, 1).values
    kinds = [study("QMCSampler", space=BRANCHES).draw(number, {}).values for number in range(8)]
    assert [each["kind"] for each in kinds].count("a") == 4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_space_that_a_sampler_would_draw_at_random_is_refused(sampler):
    """N21: Optuna draws such fields at random, and says so in a log."""
    needs(sampler)
    kind = SAMPLERS[sampler]
    if kind.branches:
        assert study(sampler, space=BRANCHES).draw(0, {}).values
    else:
        with pytest.raises(ConfigError, match=f"sampler: {sampler} does not learn fields that are drawn in .*depth"):
            study(sampler, space=BRANCHES)
    if kind.choices:
        assert study(sampler, space=CHOICES).draw(0, {}).values
    else:
        with pytest.raises(ConfigError, match=f"{sampler} does not learn choices, such as kind; use TPESampler, or"):
            Study(CHOICES, settings(sampler, None, "sampler_options={}"), OBJECTIVE)
        assert study(sampler, space=CHOICES).draw(0, {}).values  # independent_sampler is set


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_several_metrics_are_learned_or_refused(sampler):
    """N21: the genetic samplers keep their generations with several metrics too."""
    needs(sampler)
    two = Objective("accuracy", "max", "best", {"seconds": "min"})
    given = (sampler, None, "objective.others={seconds: min}")
    if not SAMPLERS[sampler].several:
        with pytest.raises(ConfigError, match=f"sampler: {sampler} learns from one metric, and objective.others names"):
            study(*given, objective=two)
        return
    one, found = study(*given, objective=two), {}
    for number in range(TRIALS):
        drawn = one.draw(number, found)
        assert study(*given, objective=two).draw(number, found) == drawn
        seconds = {"seconds": drawn.values["units"] + 1.0}
        found[number] = dataclasses.replace(drawn, state="complete", value=drawn.values["rate"], others=seconds)


def test_wrong_names_and_options_have_the_nearest_match():
    """N21: also those of objects inside of options."""
    for sets, message in (
        (["sampler=TPSampler"], r"sampler: .*'TPSampler'.*did you mean 'TPESampler'"),
        (["pruner=Median"], r"pruner: .*'Median'.*MedianPruner"),
        (
            ["sampler_options={n_startup_trial: 3}"],
            r"n_startup_trial: TPESampler has no such option.*'n_startup_trials",
        ),
        (["sampler_options={gamma: 3}"], r"sampler_options.gamma: TPESampler takes a function of Python for it, which"),
        (["sampler_options={n_startup_trials: x}"], r"TPESampler refuses it, got 'x'; allowed: an integer"),
        (["pruner=PercentilePruner"], r"pruner_options: PercentilePruner refuses its options: .*percentile"),
        (["pruner=HyperbandPruner", "pruner_options={reduction_factor: 1}"], r"pruner_options: HyperbandPruner ref"),
        (
            ["pruner=PatientPruner", "pruner_options={patience: 1, wrapped_pruner: MedanPruner}"],
            r"pruner_options.wrapped_pruner: not one of the choices, got 'MedanPruner'.*did you mean 'MedianPruner'",
        ),
        (
            ["pruner=PatientPruner", "pruner_options={patience: 1, wrapped_pruner: {type: MedianPruner, warmup: 1}}"],
            r"pruner_options.wrapped_pruner.warmup: MedianPruner has no such option",
        ),
        (["sampler=NSGAIISampler", "sampler_options={crossover: SBX}"], r"sampler_options.crossover: not one of the"),
    ):
        with pytest.raises(ConfigError, match=message):
            Study(FREE, resolve(SweepConfig(space={"rate": "log(1e-4, 1e-1)"}), sets=sets), OBJECTIVE)


def test_a_package_that_is_missing_is_named(monkeypatch):
    """N21: with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, package in (("CmaEsSampler", "cmaes"), ("GPSampler", "torch"), ("QMCSampler", "scipy")):
        with pytest.raises(SweepError, match=f"sampler: {name} needs {package}: pip install {package}"):
            study(name)
