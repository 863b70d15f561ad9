"""Which charts a page has, and curves that are thinned out."""

import types

from official_trainer.reports import curves
from official_trainer.reports.recorded_curves import Curve, Curves


def ranked(by_split):
    return types.SimpleNamespace(curves=Curves(by_split))  # what a chart reads of a run


def curve(values):
    return Curve(list(range(len(values))), list(values))


def test_thinning_keeps_the_ends_and_every_spike():
    """N22: a spike of one step is still seen after thinning."""
    values = [1.0] * 10_000
    values[0], values[-1], values[4321], values[7777] = 5.0, 6.0, 99.0, -99.0
    kept = curves.thinned(values, 100)
    assert len(kept) <= 100
    assert {0, 4321, 7777, 9_999} <= set(kept)
    assert kept == sorted(set(kept))
    assert curves.thinned(values[:100], 100) == list(range(100))
    assert all(len(curves.thinned(values, limit)) <= max(limit, 4) for limit in (2, 3, 24, 601))


def test_a_page_of_many_runs_stays_small_and_says_so():
    """N22: the more curves, the fewer points of each; the page says how many of how many."""
    long = curve([1.0 / (i + 1) for i in range(1_000)])
    runs = [ranked({"train": {"loss": long}}) for _ in range(1_000)]
    charts, about = curves.chart(runs, "accuracy")
    assert sum(len(drawn["x"]) for chart in charts for drawn in chart["curves"]) <= 250_000
    assert about.startswith("Curves are thinned out: of each at most 220 points are drawn, of up to 1,000;")
    assert curves.chart(runs[:2], "accuracy")[1].startswith("Curves are thinned out: of each at most 600")


def test_short_curves_are_whole_and_nothing_is_said():
    """N22: a curve that a screen can show has all its points; what is not finite is a gap."""
    values = [0.1, float("nan"), 0.123456789]
    (chart,), about = curves.chart([ranked({"validation": {"accuracy": curve(values)}})], None)
    points = {"x": [0, 1, 2], "y": [0.1, None, 0.12346]}
    assert chart["curves"] == [{"run": 0, "split": "validation", "name": "accuracy", **points}]
    assert about == ""


def test_training_and_validation_share_a_chart_and_the_metric_is_first():
    """N22: what both measure is one chart; the metric that decides comes first, then the loss."""
    point = curve([1.0])
    by_split = {
        "train": {"training_loss": point, "accuracy": point, "learning_rate": point},
        "validation": dict.fromkeys(("validation_loss", "accuracy", "best_accuracy", "dev/validation_loss"), point),
        "time": {"examples_per_second": point, "wall_seconds": point},
    }
    charts, _ = curves.chart([ranked(by_split)], "accuracy")
    names = ["accuracy", "loss", "dev/loss", "learning_rate"]
    assert [chart["name"] for chart in charts] == names
    assert [drawn["split"] for drawn in charts[1]["curves"]] == ["train", "validation"]


def test_metrics_beyond_the_limit_are_counted():
    """N22: a page has 16 charts, and says how many metrics it does not draw."""
    named = {f"metric_{i:02}": curve([1.0]) for i in range(30)}
    charts, about = curves.chart([ranked({"validation": named})] * 2, None)
    assert [len(chart["curves"]) for chart in charts] == [2] * 16
    assert about == "14 more metrics are not drawn."
