"""Live curves: what is shown of a run while it goes on."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from official_trainer import reports
from official_trainer.reports import attached, curve_plot
from official_trainer.reports.recorded_curves import Curve, Curves
from official_trainer.runs.recorded import RecordedRun
from tests.support.reports import kinds


def screen(shown):
    """Remembers what was shown."""
    return lambda title, charts: shown.append((title, {name: [*curves] for name, curves in charts.items()}))


def look(steps, status="running", **charts):
    curve = Curve([*range(steps)], [0.5] * steps, [None] * steps)
    both = {"training_loss": curve, "rate": curve}, {"validation_loss": curve, "accuracy": curve}
    by_split = charts or dict(zip(("train", "validation"), both, strict=True)) if steps else {}
    return RecordedRun(directory="d", status=status, step=steps, metric="accuracy"), Curves(by_split)


def test_it_is_refreshed_until_the_run_ends():
    """N29: the loss and the metric that decides, again after each pause; no more when the run has ended."""
    shown, looks, pauses = [], iter([look(0), look(1), look(2, "done")]), []
    attached.attach("n", lambda: next(looks), (), screen(shown), lambda: pauses.append(1))
    chosen = {"loss": ["train", "validation"], "accuracy": ["validation"]}
    assert shown == [("n: running, step 0", {}), ("n: running, step 1", chosen), ("n: done, step 2", chosen)]
    assert len(pauses) == 2


def test_an_interrupt_ends_the_pictures_and_a_later_call_shows_all_again(capsys):
    """N29: the run is not touched, and nothing is raised into the notebook."""

    def interrupted():
        raise KeyboardInterrupt

    shown = []
    attached.attach("n", lambda: look(1), (), screen(shown), interrupted)
    assert capsys.readouterr().out == "not refreshed any more; the run is not touched by that\n"
    attached.attach("n", lambda: look(2, "done"), (), screen(shown), interrupted)
    assert [title for title, _ in shown] == ["n: running, step 1", "n: done, step 2"]


def test_charts_by_name():
    """N29: a chart that is not there yet is waited for; one that never came is an error with the nearest name."""
    shown, looks = [], iter([look(0), look(1, "done")])
    attached.attach("n", lambda: next(looks), ["rate"], screen(shown), lambda: None)
    assert shown == [("n: running, step 0; no rate yet", {}), ("n: done, step 1", {"rate": ["train"]})]
    with pytest.raises(attached.UnknownChartError, match="d has no chart acuracy; did you mean accuracy"):
        attached.attach("n", lambda: look(1, "done"), ["acuracy"], screen([]), lambda: None)
    with pytest.raises(attached.UnknownChartError, match="d has no chart zzz; it has loss, rate, accuracy"):
        attached.attach("n", lambda: look(1, "done"), ["zzz"], screen([]), lambda: None)


def test_without_a_loss_the_first_charts_are_shown():
    """N29: of a run that records other things."""
    shown, curve = [], Curve([1], [1.0], [None])
    seen = look(1, "done", train={f"m{n}": curve for n in range(9)})
    attached.attach("n", lambda: seen, (), screen(shown), None)
    assert [*shown[0][1]] == ["m0", "m1", "m2", "m3"]


def test_of_a_run_in_a_terminal(tmp_path, capsys):
    """N29: a line with the last values, of the run as its files have it; what it returns is the run at its end."""
    run = reports.open(kinds.write_run(tmp_path / "mine"))
    assert run.attach("accuracy").status == "done"
    line = f"mine: done, step 40 of 40; validation accuracy {kinds.accuracy(1, 40):.4g} (step 40)\n"
    assert capsys.readouterr().out == line


def test_the_drawing():
    """N29: a line for each stretch of finite values, a point for a single one, names as text, round ticks."""
    curve = [0, 10, 20, 30, 40], [1.0, math.nan, 3.0, 4.0, math.inf]
    charts = {"<loss>": {"train": curve, "a&b": ([5], [2.0])}, "none": {"train": ([1], [math.nan])}}
    root = ElementTree.fromstring(curve_plot.svg(charts, "run <b>"))
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (tags.count("polyline"), tags.count("circle")) == (1, 2)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"run <b>", "<loss>", "a&b", "no finite value yet", "0", "10", "20", "30", "1", "2", "3", "4"} <= {*texts}
