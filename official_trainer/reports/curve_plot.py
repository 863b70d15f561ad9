"""The picture of a run's curves: an SVG with a chart for each metric, which notebooks and browsers show.

Owns: the drawing. Does not own: the numbers (`curves.py`), when it is shown (`attached.py`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

from official_trainer.reports.recorded_curves import Curve

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 40, 34
_COLOURS = ("#1565a5", "#c8501e", "#2e7d4f", "#7a4fa0", "#8a6d1d")
_TICKS = 4
_STYLE = """
.curves text { font: 12px system-ui, sans-serif; fill: #444 } .curves .name { font-weight: 600; fill: #222 }
.curves .paper { fill: white } .curves .grid { stroke: #e4e4e4 } .curves polyline { fill: none; stroke-width: 1.8 }
"""


def svg(charts: Mapping[str, Mapping[str, Curve]], title: str) -> str:
    """Returns the drawing: a chart beside another, two in a row, each with a line for each split.

    Args:
      charts: name → split → curve, as `Curves.charts` returns them.
      title: above the drawing; any text.
    """
    columns = min(2, max(1, len(charts)))
    rows = math.ceil(len(charts) / columns)
    width, height = columns * _WIDTH, 30 + rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" viewBox="0 0 {width} {height}" width="{width}">',
        f'<style>{_STYLE}</style><rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="name" x="14" y="20">{html.escape(title)}</text>',
    ]
    for number, (name, curves) in enumerate(charts.items()):
        x, y = number % columns * _WIDTH, 30 + number // columns * _HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_chart(name, curves), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _chart(name: str, curves: Mapping[str, Curve]) -> Iterator[str]:
    yield f'<text class="name" x="{_LEFT}" y="16">{html.escape(name)}</text>'
    points = [
        p for curve in curves.values() for p in zip(curve.steps, curve.values, strict=True) if math.isfinite(p[1])
    ]
    if not points:
        yield f'<text x="{_LEFT}" y="{_HEIGHT // 2}">no finite value yet</text>'
        return
    xs, ys = (
        _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT),
        _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP),
    )
    for value in ys.ticks():
        y = ys.place(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    for value in xs.ticks():
        if value == int(value):
            yield f'<text x="{xs.place(value):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{value:.0f}</text>'
    for number, (split, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<text x="{_LEFT + 90 * number}" y="32" style="fill: {colour}">{html.escape(split)}</text>'
        yield from _lines(curve, xs, ys, colour)


def _lines(curve: Curve, xs: _Axis, ys: _Axis, colour: str) -> Iterator[str]:
    """Yields a line for each stretch of finite values, and a point where such a stretch is one value long."""
    stretch: list[str] = []
    for step, value in [*zip(curve.steps, curve.values, strict=True), (0, math.nan)]:
        if math.isfinite(value):
            stretch.append(f"{xs.place(step):.1f},{ys.place(value):.1f}")
            continue
        if len(stretch) == 1:
            x, y = stretch[0].split(",")
            yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>'
        elif stretch:
            yield f'<polyline stroke="{colour}" points="{" ".join(stretch)}"/>'
        stretch = []


class _Axis:
    """Where values lie between two ends of an axis."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = min(values), max(values)
        if self._high == self._low:
            self._low, self._high = self._low - 0.5, self._high + 0.5
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        """Returns the coordinate of a value."""
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Returns round values between the ends."""
        rough = (self._high - self._low) / _TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * each for each in (1, 2, 5, 10) if size * each >= rough)
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [step * number for number in range(first, last + 1)]
