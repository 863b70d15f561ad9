"""The picture of curves: an SVG with a chart for each metric, which notebooks and browsers show.

Owns: the drawing. Does not own: the numbers (`curves.py`, `find_lr.py`), when it is shown (`attached.py`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 40, 34
_COLOURS = ("#1565a5", "#c8501e", "#2e7d4f", "#7a4fa0", "#8a6d1d")
_TICKS, _TICK_WIDTH = 4, 90
_STYLE = """
.curves text { font: 12px system-ui, sans-serif; fill: #444 } .curves .name { font-weight: 600; fill: #222 }
.curves .paper { fill: white } .curves .grid { stroke: #e4e4e4 } .curves polyline { fill: none; stroke-width: 1.8 }
.curves .mark { stroke: #777; stroke-dasharray: 5 4 }
"""

Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""The lines of a chart by name: where their points are from left to right, by rising place, and their values."""


def svg(
    charts: Mapping[str, Lines],
    title: str,
    *,
    size: tuple[int, int] = (420, 260),
    marks: Mapping[str, float] | None = None,
) -> str:
    """Returns the drawing: a chart beside another, two in a row.

    Args:
      charts: the lines of each chart.
      title: above the drawing; any text.
      size: width and height of a chart, in pixels.
      marks: places with a line of their own, by name; then places are powers of ten. None for places as they are.
    """
    columns = min(2, max(1, len(charts)))
    width, height = columns * size[0], 30 + math.ceil(len(charts) / columns) * size[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" viewBox="0 0 {width} {height}" width="{width}">',
        f'<style>{_STYLE}</style><rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="name" x="14" y="20">{html.escape(title)}</text>',
    ]
    for number, (name, lines) in enumerate(charts.items()):
        x, y = number % columns * size[0], 30 + number // columns * size[1]
        parts += [f'<g transform="translate({x} {y})">', *_chart(name, lines, size, marks), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _chart(name: str, lines: Lines, size: tuple[int, int], marks: Mapping[str, float] | None) -> Iterator[str]:
    right, bottom = size[0] - _RIGHT, size[1] - _BOTTOM
    yield f'<text class="name" x="{_LEFT}" y="16">{html.escape(name)}</text>'
    points = [point for line in lines.values() for point in zip(*line, strict=True) if math.isfinite(point[1])]
    if not points:
        yield f'<text x="{_LEFT}" y="{size[1] // 2}">no finite value yet</text>'
        return
    xs, ys = _Axis([x for x, _ in points], _LEFT, right), _Axis([y for _, y in points], bottom, _TOP)
    for value in ys.ticks(_TICKS):
        y = ys.place(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    for value in xs.ticks(size[0] // _TICK_WIDTH):
        if value == int(value):
            label = f"{value:.0f}" if marks is None else f"1e{value:.0f}"
            yield f'<text x="{xs.place(value):.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>'
    for number, (mark, value) in enumerate((marks or {}).items()):
        x = xs.place(value)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        yield f'<text x="{x + 5:.1f}" y="{_TOP + 14 + 18 * number}">{html.escape(mark)} {10**value:.2g}</text>'
    for number, (label, line) in enumerate(lines.items()):
        colour, stretch = _COLOURS[number % len(_COLOURS)], []
        yield f'<text x="{_LEFT + 90 * number}" y="32" style="fill: {colour}">{html.escape(label)}</text>'
        for place, value in [*zip(*line, strict=True), (0, math.nan)]:  # a line for each stretch of finite values
            if math.isfinite(value):
                stretch.append(f"{xs.place(place):.1f},{ys.place(value):.1f}")
                continue
            if len(stretch) == 1:
                cx, cy = stretch[0].split(",")
                yield f'<circle cx="{cx}" cy="{cy}" r="2.5" fill="{colour}"/>'
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

    def ticks(self, count: int) -> list[float]:
        """Returns about so many round values between the ends."""
        rough = (self._high - self._low) / count
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * each for each in (1, 2, 5, 10) if size * each >= rough * (1 - 1e-9))
        first, last = math.ceil(self._low / step - 1e-9), math.floor(self._high / step + 1e-9)
        return [step * number for number in range(first, last + 1)]
