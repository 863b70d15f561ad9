"""The learning-rate finder on whole experiments: the rates of steps, under any optimizer, strategy and window."""

import itertools
import re

import pytest

from official_trainer import cli
from official_trainer import config as configuration
from official_trainer.lazy import keras
from official_trainer.reports import find_lr
from official_trainer.tasks import optimization, registry
from tests.support import (
    several_tasks,  # noqa: F401 - registers `several`
    shuffled_runs,
    toy,
)
from tests.support.cases import full

LINE = "trainer.optimizer_config.learning_rate"


def searched(folder, monkeypatch, *words, steps=40):
    """Searches in this process; returns the curve that is drawn."""
    curves = []
    svg = find_lr.RateCurve.svg
    monkeypatch.setattr(find_lr.RateCurve, "svg", lambda curve, title: curves.append(curve) or svg(curve, title))
    flags = (f"--output={folder / 'out'}", f"--steps={steps}", "--quiet")
    assert cli.main(["find-lr", *words, *flags]) == 0
    assert [path.name for path in (folder / "out").iterdir()] == ["plot.svg"]
    return curves[0]


def test_the_rate_rises_by_one_factor_from_step_to_step(tmp_path, monkeypatch):
    """N36: from the lowest towards the highest rate, whatever schedule, warmup and length of windows the run has."""
    sets = [f"{LINE}={{type: cosine, cosine: {{initial_learning_rate: 0.3, decay_steps: 9}}}}"]
    sets += ["trainer.optimizer_config.warmup={type: linear, linear: {warmup_steps: 5}}"]
    found = searched(tmp_path, monkeypatch, "toy_run", *sets)
    assert found.rates[0] == pytest.approx(1e-7, rel=1e-4) and len(found.rates) > 25
    factors = [after / before for before, after in itertools.pairwise(found.rates)]
    assert factors == pytest.approx([1e8 ** (1 / 39)] * len(factors), rel=1e-3)
    same = searched(tmp_path, monkeypatch, "toy_run", *sets, "trainer.steps_per_loop=10")
    assert (same.rates, same.losses) == (found.rates, found.losses)


@pytest.mark.parametrize(
    "words",
    [
        ["toy_run", "runtime.distribution_strategy=mirrored"],
        full(["toy_run", "runtime.mixed_precision_dtype=float16"]),
        full(["toy_run", "task.train_data.global_batch_size=20", "trainer.on_data_end=error"]),
        ["several"],
        full(["toy_run", "runtime.enable_xla=true", "trainer.steps_per_loop=7"]),
        full(["toy_run", "trainer.gradient_accumulation_steps=2"]),
    ],
)
def test_whatever_trains_is_tried(tmp_path, monkeypatch, words):
    """N36: two replicas, loss scaling, data that ends and begins again, several tasks, XLA, micro-batches."""
    found = searched(tmp_path, monkeypatch, *words)
    assert len(found.losses) > 25
    assert found.rates[0] == pytest.approx(1e-7, rel=1e-4)


def test_the_run_that_follows_the_suggestion_has_that_rate(tmp_path, monkeypatch, capsys):
    """N36: what is printed is a setting that `train` accepts."""
    searched(tmp_path, monkeypatch, "toy_run", "task.train_data.global_batch_size=50", steps=100)
    [(setting, rate)] = re.findall(r"^suggestion: (\S+=(\S+))$", capsys.readouterr().out, re.MULTILINE)
    resolved = configuration.resolve(registry.get_config("toy_run"), sets=[setting])
    assert resolved.config.trainer.optimizer_config.learning_rate.constant.learning_rate == float(rate)


def test_a_rate_that_cannot_be_raised_is_refused(tmp_path, capsys, monkeypatch):
    """N36: of an optimizer with a rate of its own, and of two rates, none can be suggested."""
    monkeypatch.setattr(optimization, "learning_rates", lambda optimizer, step: {"a": 0.1, "b": 0.2})
    assert cli.main(["find-lr", "toy_run", f"--output={tmp_path}"]) == 2
    assert "ShuffledTask trains with 0.1, 0.2, not with 1e-07" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(shuffled_runs.ShuffledTask, "create_optimizer", lambda *_, **__: keras.optimizers.SGD(0.3))
    assert cli.main(["find-lr", "toy_run", f"--output={tmp_path}"]) == 2
    assert "ShuffledTask trains with 0.3, not with 1e-07" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "suggested"),
    [
        ("{type: constant}", f"{LINE}.constant.learning_rate=0.012"),
        ("{type: polynomial, polynomial: {decay_steps: 9}}", f"{LINE}.polynomial.initial_learning_rate=0.012"),
        ("{type: stepwise, stepwise: {boundaries: [5]}}", f"a peak of 0.012 for the schedule in {LINE}"),
    ],
)
def test_the_setting_for_each_kind_of_schedule(schedule, suggested):
    """N36: the field that holds the peak; a schedule without one gets the rate alone."""
    kind = schedule.removeprefix("{type: ").partition("}")[0].partition(",")[0]
    first = {"constant": [], "stepwise": [f"{LINE}.stepwise.values=[1.0, 0.1]"]}
    peak = first.get(kind, [f"{LINE}.{kind}.initial_learning_rate=1"])
    resolved = configuration.resolve(toy.experiment(), sets=[f"{LINE}={schedule}", *peak])
    assert find_lr.suggestion(resolved, 0.01234) == suggested
