"""How far the outputs of a file are from those of the model."""

import numpy as np
import pytest

from official_trainer.formats.writing import differences

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("wanted", "found", "least", "largest"),
    [
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0.0, 0.0),
        ([1.0, NAN], [1.0, 2.0], 0.0, INF),
        ([1.0, 2.0], [1.0, NAN], 0.0, INF),
        ([0.0, 10.0, INF], [1.0, 10.0, INF], 0.0, 0.1),  # of the range of what is finite
        ([0.0, INF], [0.0, -INF], 0.0, INF),
        ([NAN, NAN], [NAN, NAN], 0.0, 0.0),
        ([100.0, 101.0], [100.5, 100.5], 0.0, 0.5),
        ([100.0, 101.0], [100.5, 100.5], 0.05, 0.5 / 5.05),
        ([100.0, 100.0], [101.0, 100.0], 0.0, 0.01),  # without a range
    ],
)
def test_differences_are_parts_of_the_range_of_finite_numbers(wanted, found, least, largest):
    """N46: NaN is equal to NaN alone; a small range counts as a part of the largest value only where that is asked."""
    result = differences([np.array(wanted, "float32")], [np.array(found, "float32")], least=least)
    np.testing.assert_allclose(result["max"], largest, rtol=1e-6)
