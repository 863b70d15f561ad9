"""The picture of a learning-rate search: an SVG, which every browser shows.

Owns: the drawing. Does not own: the numbers (`rate_curve.py`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

from official_trainer.reports.rate_curve import RateCurve

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 46, 50
_TICKS = 5
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.paper { fill: white } .grid { stroke: #ddd } .raw { fill: none; stroke: #9bbcd8 }
.smoothed { fill: none; stroke: #1565a5; stroke-width: 2.5 } .mark { stroke: #c8501e; stroke-dasharray: 5 4 }
"""


def svg(curve: RateCurve, title: str, marks: Mapping[str, float]) -> str:
    """Returns the drawing: losses of single steps, smoothed losses, and a line at each suggestion.

    Args:
      curve: with at least one finite loss.
      title: above the drawing; any text.
      marks: rates by what suggests them.
    """
    axes = _Axes(curve)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text x="{_LEFT}" y="24">{html.escape(title)}</text>',
        *axes.grid(),
        f'<polyline class="raw" points="{axes.points(curve.rates, curve.losses)}"/>',
        f'<polyline class="smoothed" points="{axes.points(curve.rates, curve.smoothed)}"/>',
    ]
    for number, (name, rate) in enumerate(marks.items()):
        x = axes.x(rate)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x + 5:.1f}" y="{_TOP + 14 + 18 * number}">{html.escape(name)} {rate:.2g}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Axes:
    """Where rates and losses lie: rates on a logarithmic axis, and losses up to a little above the first one."""

    def __init__(self, curve: RateCurve) -> None:
        finite = [loss for loss in curve.smoothed if math.isfinite(loss)]
        top = max(finite[0], *finite[: max(1, len(finite) * 3 // 4)])
        self._low = min(loss for loss in [*finite, *curve.losses] if math.isfinite(loss))
        self._high = top + 0.25 * (top - self._low or 1.0)
        self._low -= 0.05 * (self._high - self._low)
        self._first, self._last = math.log10(curve.rates[0]), math.log10(curve.rates[-1])

    def x(self, rate: float) -> float:
        """Returns where a rate is."""
        span = self._last - self._first or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(rate) - self._first) / span

    def y(self, loss: float) -> float:
        """Returns where a loss is, at most at the border."""
        share = (min(max(loss, self._low), self._high) - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def points(self, rates: Sequence[float], losses: Sequence[float]) -> str:
        """Returns the corners of a line through all finite losses."""
        known = [(rate, loss) for rate, loss in zip(rates, losses, strict=True) if math.isfinite(loss)]
        return " ".join(f"{self.x(rate):.1f},{self.y(loss):.1f}" for rate, loss in known)

    def grid(self) -> Iterator[str]:
        """Yields lines and labels at powers of ten, and at even losses."""
        bottom = _HEIGHT - _BOTTOM
        for power in range(math.ceil(self._first - 1e-9), math.floor(self._last + 1e-9) + 1):
            x = self.x(10.0**power)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">1e{power}</text>'
        for number in range(_TICKS):
            loss = self._low + (self._high - self._low) * (number + 0.5) / _TICKS
            y = self.y(loss)
            yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>'
        yield f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">learning rate</text>'
        yield f'<text x="{_LEFT}" y="{_TOP - 6}" text-anchor="end">loss</text>'
