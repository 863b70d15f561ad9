"""The space of a sweep: its language, its check against the experiment, and in which branch a field is drawn."""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Literal

import optuna
import pytest

from official_trainer import config
from official_trainer.config import Config, ConfigError, ExperimentConfig, Fraction, OneOf, Positive, components
from official_trainer.sweeps import distributions, space, study
from official_trainer.sweeps.settings import Objective, SweepConfig
from tests import ROOT
from tests.support import golden


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deep(Config):
    """Layers.

    Attributes:
      hidden: units of each.
      dropout: share.
    """

    hidden: tuple[Positive, ...] = (4,)
    dropout: Fraction = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(OneOf):
    """The model.

    Attributes:
      type: which.
      deep: with layers.
      flat: without.
    """

    type: Literal["deep", "flat"] | None = "flat"
    deep: Deep = Deep()
    flat: Deep = Deep()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(Config):
    """An experiment.

    Attributes:
      model: its model.
      steps: of training.
      warmup: steps before.
    """

    model: Model = Model()
    steps: Positive = 100
    warmup: int = 10

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.warmup > self.steps:
            yield "warmup", "is longer than the training"


def resolve(sets):
    return config.resolve(Experiment(), sets=list(sets))


def read(**written):
    return space.read({path.replace("__", "."): text for path, text in written.items()}, lambda path: None, resolve)


def problem(**written):
    with pytest.raises(ConfigError) as caught:
        read(**written)
    return str(caught.value)


def drawn(space, **values):
    """Returns the paths that are drawn, by a trial that has some values already."""
    draws = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    draws.enqueue_trial({path.replace("__", "."): value for path, value in values.items()})
    trial = draws.ask()
    for field in space.fields:
        if space.is_drawn(field, trial.params):
            field.suggest(trial)
    return trial.params


def test_each_form_is_a_distribution_of_optuna():
    """N21: with its bounds, and a drawn value is an override of the experiment."""
    forms = {
        "float(0, 0.5)": optuna.distributions.FloatDistribution(0, 0.5),
        "float(0, 0.5, 0.1)": optuna.distributions.FloatDistribution(0, 0.5, step=0.1),
        "log(1e-4, 0.1)": optuna.distributions.FloatDistribution(1e-4, 0.1, log=True),
        "int(1, 9)": optuna.distributions.IntDistribution(1, 9),
        "int(1, 9, 2)": optuna.distributions.IntDistribution(1, 9, step=2),
        "logint(1, 9)": optuna.distributions.IntDistribution(1, 9, log=True),
        "choice([1, 2], [3], 'a,b')": optuna.distributions.CategoricalDistribution(("[1, 2]", "[3]", "'a,b'")),
    }
    for text, distribution in forms.items():
        assert distributions.read("x", text).distribution == distribution
    named = distributions.read("model", {"choice": {"small": {"type": "deep"}, "none": {"type": "flat"}}})
    assert named.text("small") == "{type: deep}" and distributions.read("x", "int(1, 9)").text(3) == "3"


def test_the_fields_of_a_plug_in_are_drawn_where_it_is_chosen(tmp_path, monkeypatch):
    """N21, T15: as those of any other branch; a field that it has not is refused with its fields."""
    (tmp_path / "schedules").mkdir()
    source = (ROOT / "tests" / "support" / "attached_state" / "schedules" / "triangle.py").read_text()
    (tmp_path / "schedules" / "triangle.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(components, "_workspace", [tmp_path])
    rate = "trainer.optimizer_config.learning_rate"

    def of_rate(**written):
        written = {f"{rate}.{path.replace('__', '.')}": text for path, text in written.items()}
        return space.read(written, lambda path: None, lambda sets: config.resolve(ExperimentConfig(), sets=list(sets)))

    drawn_of = of_rate(triangle__high="log(0.001, 0.1)", type="choice(constant, triangle)")
    assert [*drawn(drawn_of, **{f"{rate}.type": "constant"})] == [f"{rate}.type"]
    assert [*drawn(drawn_of, **{f"{rate}.type": "triangle"})] == [f"{rate}.type", f"{rate}.triangle.high"]
    with pytest.raises(ConfigError, match=r"triangle.hihg: unknown field of TriangleConfig; did you mean 'high'\?"):
        of_rate(triangle__hihg="log(0.001, 0.1)", type="choice(constant, triangle)")
    sys.modules.pop("schedules.triangle", None)
    sys.modules.pop("schedules", None)


def test_what_is_no_distribution_is_refused(request):
    """N21: an empty range, a bound that is none; with the field, what is allowed and the nearest word."""
    golden.check({"spaces": lambda given: problem(steps=given)}, request)


def test_a_field_that_the_experiment_does_not_have_is_refused_with_the_nearest():
    """N21: all wrong fields in one error."""
    message = problem(stepz="int(1, 9)", model__deep__droput="float(0, 1)")
    assert "stepz" in message and "did you mean 'steps'" in message and "did you mean" in message.partition("droput")[2]


def test_bounds_and_choices_are_tried_in_the_experiment():
    """N21: with the config's own message, each at its field; one in the middle of a choice, too."""
    message = problem(model__type="choice(deep, flat)", model__deep__dropout="float(-1, 2)", steps="int(0, 9)")
    assert (
        "model.deep.dropout: with -1" in message
        and "model.deep.dropout: with 2" in message
        and "steps: with 0" in message
    )
    message = problem(model__type="choice(deep, dep, flat)")
    assert "model.type: with dep, " in message and "did you mean 'deep'?" in message


def test_values_that_do_not_fit_each_other_are_no_problem_of_the_space():
    """N21: some of them fit; they are found when they are drawn."""
    space = read(steps="int(5, 200)", warmup="int(1, 100)")
    assert [field.path for field in space.fields] == ["steps", "warmup"]
    with pytest.raises(ConfigError, match="is longer than the training"):
        resolve(space.overrides({"steps": 5, "warmup": 100}))


def test_a_field_in_a_branch_is_drawn_where_that_is_chosen():
    """N21: by a choice of the space, by named sections, wherever it stands in the file; others always."""
    by_type = read(model__deep__dropout="float(0, 1)", model__type="choice(deep, flat)", steps="int(1, 9)")
    assert set(drawn(by_type, model__type="deep")) == {"model.type", "model.deep.dropout", "steps"}
    assert set(drawn(by_type, model__type="flat")) == {"model.type", "steps"}
    sections = {"choice": {"one": {"type": "deep", "deep": {"hidden": [2]}}, "none": {"type": "flat"}}}
    by_name = read(model__deep__dropout="float(0, 1)", model=sections)
    assert set(drawn(by_name, model="one")) == {"model", "model.deep.dropout"} and set(
        drawn(by_name, model="none")
    ) == {"model"}
    values = {"model": "one", "model.deep.dropout": 0.5}
    resolved = resolve(by_name.overrides(values)).config.model
    assert (resolved.type, resolved.deep.hidden, resolved.deep.dropout) == ("deep", (2,), 0.5)


def test_a_field_that_is_never_drawn_or_drawn_twice_is_refused():
    """N21: it would have no effect."""
    message = "model.deep.dropout: is never drawn: model.type is never 'deep'; add 'model.type: choice("
    assert message in problem(model__deep__dropout="float(0, 1)")
    section = {"choice": {"a": {"type": "deep"}, "b": {"type": "flat"}}}
    assert "is drawn twice; keep one of the two" in problem(model=section, model__type="choice(deep, flat)")


def test_combinations_are_counted_with_their_branches(monkeypatch):
    """N21: so that a sweep of all of them knows its end; very many are refused, and any number of values."""
    written = {"model__type": "choice(deep, flat)", "model__deep__dropout": "float(0, 1, 0.5)", "steps": "int(1, 9, 4)"}
    grid, space = SweepConfig(sampler="BruteForceSampler"), read(**written)
    assert study.count_combinations(grid, space) == 3 * 3 + 3
    assert study.count_combinations(SweepConfig(sampler="BruteForceSampler", trials=5), space) == 5
    monkeypatch.setattr(study, "MOST_COMBINATIONS", 11)
    with pytest.raises(ConfigError, match="trials: is not set, and there are more than 11 combinations; set it"):
        study.count_combinations(grid, space)
    with pytest.raises(ConfigError, match=r"sampler: Optuna says: .*step"):
        study.rehearse(grid, read(model__flat__dropout="float(0, 1)"), Objective("loss", "min", "best"))
