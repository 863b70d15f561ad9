"""The curves of a run while it goes on: in a notebook a picture, in a terminal a line at each evaluation.

Owns: when they are shown anew, and when that ends. Does not own: the run, which knows nothing of it; reading
(`opened.py`), drawing (`curve_plot.py`).

What is shown is read from the run's files each time. So it survives whatever happens to the notebook: a browser that
reconnects sees the picture go on, and after a restart of the kernel another call shows all of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from official_trainer.errors import UserError
from official_trainer.nearest import did_you_mean
from official_trainer.reports import curve_plot
from official_trainer.reports.recorded_curves import Curve, Curves
from official_trainer.runs.recorded import RecordedRun
from official_trainer.tracking.monitored import show

_MOST_CHARTS = 4

Charts = dict[str, dict[str, Curve]]
Screen = Callable[[str, Charts], None]
"""Shows a title and charts."""


class UnknownChartError(UserError, LookupError):
    """A chart that is asked for, and which a run that has ended does not have."""


def screen() -> Screen:
    """Returns what shows a title and charts in the place of the last ones.

    In a notebook it is a picture below the cell, in a terminal a line for each new last value of a curve.
    """
    try:
        from IPython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    place: list[Any] = []
    if shell is not None and hasattr(shell, "kernel"):

        def show_picture(title: str, charts: Charts) -> None:
            lines = {
                name: {split: (curve.steps, curve.values) for split, curve in curves.items()}
                for name, curves in charts.items()
            }
            picture = HTML(curve_plot.svg(lines, title))
            if place:
                place[0].update(picture)
            else:
                place.append(display(picture, display_id=True))

        return show_picture

    def show_line(title: str, charts: Charts) -> None:
        ends = [(name, split, curve) for name, curves in charts.items() for split, curve in curves.items()]
        words = [f"{split} {name} {show(curve.values[-1])} (step {curve.steps[-1]})" for name, split, curve in ends]
        if place != (line := ["; ".join([title, *words])]):
            print(*line, flush=True)
        place[:] = line

    return show_line


def attach(
    name: str,
    look: Callable[[], tuple[RecordedRun, Curves]],
    names: Sequence[str],
    screen: Screen,
    pause: Callable[[], object],
) -> None:
    """Shows the curves of a run until it ends, or the user interrupts it.

    Args:
      name: of the run.
      look: reads the run anew.
      names: of the charts; empty for the loss and the metric that decides.
      screen: where they are shown.
      pause: waits until the next look.

    Raises:
      UnknownChartError: the run has ended, and has no such chart.
    """
    while True:
        try:
            run, curves = look()
            charts, usual = curves.charts(), ("loss", (run.metric or "").replace("|", "/"))
            wanted = list(names) or [each for each in usual if each in charts] or [*charts][:_MOST_CHARTS]
            missing = [each for each in wanted if each not in charts]
            if missing and run.status != "running":  # else it may come
                hint = did_you_mean(missing[0], charts, otherwise=f"; it has {', '.join(charts) or 'none'}")
                raise UnknownChartError(f"{run.directory} has no chart {missing[0]}{hint}")
            end = f" of {run.end_step}" if run.end_step else ""
            title = f"{name}: {run.status}" + ("" if run.step is None else f", step {run.step}{end}")
            title += f"; no {missing[0]} yet" if missing else ""
            screen(title, {each: charts[each] for each in wanted if each in charts})
            if run.status != "running":
                return
            pause()
        except KeyboardInterrupt:
            print("not refreshed any more; the run is not touched by that")
            return
