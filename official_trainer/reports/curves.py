"""The charts of a report: which metrics they show, and curves that are thinned out to what a screen can show.

Owns: the choice of charts, and thinning. Does not own: reading metrics (`reports/recorded_curves.py`), drawing
(`static/curves.js`).

A curve is thinned by its extremes: it is cut into stretches of as many points each, of which the lowest and the highest
stay. So a spike of one step is still seen, which means over the stretches would hide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from official_trainer.reports.opened import OpenedRun
from official_trainer.reports.recorded_curves import Curve
from official_trainer.tracking.tensorboard import shared_name

MAX_POINTS = 600
"""Most points of one curve: one for each pixel of a chart on a wide screen."""

_ALL_POINTS = 220_000  # of a page; about 15 bytes each
_LEAST_POINTS = 16
_MOST_CHARTS = 16


def chart(runs: Sequence[OpenedRun], metric: str | None) -> tuple[list[dict[str, Any]], str]:
    """Returns the charts of runs, as JSON takes them, and how curves were thinned out and what is left out.

    A chart has its `name` and `curves`, each with `run`, `split`, its whole `name`, `x` and `y`.

    Args:
      runs: those of the report.
      metric: of the first chart.
    """
    by_name: dict[str, list[tuple[int, str, str, Curve]]] = {}
    for index, run in enumerate(runs):
        for split, named in run.curves.by_split.items():
            for name, curve in named.items():
                if split != "time" and name != f"best_{metric}":
                    by_name.setdefault(shared_name(split, name, named), []).append((index, split, name, curve))
    last = ("smoothed_loss", "batch_loss", "learning_rate")

    def rank(name: str) -> tuple[Any, ...]:
        is_evaluated = any(split != "train" for _, split, _, _ in by_name[name])
        return name != metric, name != "loss", not is_evaluated, last.index(name) if name in last else -1, name

    order = sorted(by_name, key=rank)
    shown = {name: by_name[name] for name in order[:_MOST_CHARTS]}
    notes = [f"{len(order) - _MOST_CHARTS} more metrics are not drawn."] if len(order) > _MOST_CHARTS else []
    num_curves = max(1, sum(map(len, shown.values())))
    limit = max(_LEAST_POINTS, min(MAX_POINTS, _ALL_POINTS // num_curves))
    longest = max((len(curve.steps) for curves in shown.values() for *_, curve in curves), default=0)
    if longest > limit:
        notes.insert(
            0,
            f"Curves are thinned out: of each at most {limit} points are drawn, of up to {longest:,}; "
            "the lowest and the highest of each stretch stay.",
        )
    charts: list[dict[str, Any]] = []
    for title, drawn in shown.items():
        charts.append({"name": title, "curves": []})
        for index, split, name, curve in drawn:
            kept = thinned(curve.values, limit)  # with the digits that a chart can show; what is not finite is a gap
            y = [float(f"{curve.values[i]:.5g}") if math.isfinite(curve.values[i]) else None for i in kept]
            x = [curve.steps[i] for i in kept]
            charts[-1]["curves"].append({"run": index, "split": split, "name": name, "x": x, "y": y})
    return charts, " ".join(notes)


def thinned(values: Sequence[float], limit: int) -> list[int]:
    """Returns the indices of the values that stay: the first, the last, and the extremes of each stretch between.

    Example:
      >>> from official_trainer.reports.curves import thinned
      >>> thinned([0.0, 0.1, 9.0, 0.1, 0.2, 0.1, 0.0, 0.3], 6)
      [0, 1, 2, 5, 6, 7]
    """
    count = len(values)
    if count <= limit:
        return list(range(count))
    stretches = max(1, (limit - 2) // 2)
    kept = [0]
    for number in range(stretches):
        start = 1 + (count - 2) * number // stretches
        end = 1 + (count - 2) * (number + 1) // stretches
        inside = values[start:end]
        low, high = start + inside.index(min(inside)), start + inside.index(max(inside))
        kept += sorted({low, high})
    return [*kept, count - 1]
