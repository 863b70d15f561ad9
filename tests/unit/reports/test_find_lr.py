"""What a curve of losses over rising rates suggests, when it has diverged, and its picture."""

import math
import random
import xml.etree.ElementTree as ElementTree

import pytest

from official_trainer.reports.find_lr import RateCurve

RATES = [10 ** (-7 + 8 * i / 99) for i in range(100)]


def curve_of(losses):
    curve = RateCurve()
    for rate, loss in zip(RATES, losses, strict=False):
        curve.add(rate, loss)
        if curve.has_diverged:
            break
    return curve


def falling(scatter=0.0, start=1e-4, end=1e-1):
    """Losses that are flat below one rate, fall to a twentieth up to another one, and then explode."""
    noise = random.Random(3)
    span = math.log(end / start)
    for rate in RATES:
        way = min(1.0, max(0.0, math.log(rate / start) / span))
        exploded = 1e3 * (rate / end - 1) if rate > end else 0.0
        yield 2.0 - 1.9 * way + exploded + noise.gauss(0.0, scatter)


SCATTERS = (
    0.0,
    0.02,
    0.1,
)


def test_the_suggestion_lies_where_the_loss_falls():
    """N36: in the fall, not at its end, with losses that scatter too; of a steady fall the middle, as with fastai."""
    for scatter in SCATTERS:
        assert 1e-4 < curve_of(falling(scatter)).valley < 5e-2
        assert curve_of([2.0 - i / 100 for i in range(100)]).valley == pytest.approx(RATES[49])


def test_a_loss_that_diverges_ends_the_search():
    """N36: four times the lowest loss is enough, and so is one that is not finite; the start does not count."""
    assert len(curve_of(falling()).losses) < 85
    assert len(curve_of([*[1.0] * 30, math.nan, *[1.0] * 69]).losses) == 31
    assert len(curve_of([*[1.0] * 30, math.inf]).losses) == 31
    assert len(curve_of([8.0, *[1.0] * 99]).losses) == 100


def test_negative_losses():
    """N36: a loss below 0, as of a likelihood, diverges by its distance from the lowest."""
    fine = [-1.0 - min(i, 70) / 100 for i in range(100)]
    assert len(curve_of(fine).losses) == 100
    assert curve_of(fine).valley is not None
    assert len(curve_of([*fine[:80], *[50.0] * 20]).losses) == 81


@pytest.mark.parametrize(
    "losses",
    [
        [1.0] * 100,
        [random.Random(i).gauss(1.0, 0.3) for i in range(100)],
        [1.0 + i / 100 for i in range(100)],
        [math.nan],
        [],
    ],
    ids=["flat", "noise", "rising", "NaN", "empty"],
)
def test_nothing_is_suggested_where_the_loss_does_not_fall(losses):
    """N36: no fall that is larger than the scatter, no suggestion."""
    assert curve_of(losses).valley is None


def test_the_picture():
    """N36: an SVG with both curves and what is suggested, of almost nothing too; text is text."""
    for losses in ([1.0], [1.0, math.nan], [*falling(0.1)]):
        drawn = ElementTree.fromstring(curve_of(losses).svg("<b> & $co"))
        texts = ["".join(line.itertext()) for line in drawn.iter() if line.tag.endswith("text")]
        assert {"<b> & $co", "each step", "smoothed", "learning rate", "loss"} <= set(texts)
        assert any(text.startswith("suggested: 0.0") for text in texts) == (len(losses) > 20)
