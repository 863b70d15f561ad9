"""How far the outputs of a file are from those of the model."""

import numpy as np
import pytest

from official_trainer.formats.writing import differences

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("wanted", "found", "least", "apart"),
    [
        ([0.0, 4.0], [0.0, 3.0], 0.05, (0.25, 0.125)),
        ([20.0, 20.0], [20.0, 21.0], 0.05, (1.0, 0.5)),
        ([-20.0, -19.5], [-20.0, -18.5], 0.05, (1.0, 0.5)),
        ([-20.0, -19.5], [-20.0, -18.5], 0.0, (2.0, 1.0)),  # of its own range, however large the values are
        ([20.0, 20.0], [20.0, 21.0], 0.0, (0.05, 0.025)),  # it has no range
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0.0, (0.0, 0.0)),
        ([0.0, 10.0, INF, NAN], [1.0, 10.0, INF, NAN], 0.0, (0.1, 0.025)),  # of the range of what is finite
        ([NAN, NAN], [NAN, NAN], 0.05, (0.0, 0.0)),
        ([0.0, 1.0], [0.0, NAN], 0.05, (INF, INF)),
        ([0.0, NAN], [0.0, 1.0], 0.05, (INF, INF)),
        ([0.0, INF], [0.0, -INF], 0.05, (INF, INF)),
        ([True, False], [True, True], 0.05, (1.0, 0.5)),
        ([], [], 0.05, (0.0, 0.0)),
        ([1.0], [1.0, 2.0], 0.05, (INF, INF)),
    ],
)
def test_how_far_outputs_are_apart(wanted, found, least, apart):
    """N46: in parts of the range of the model's finite outputs; NaN is equal to NaN alone."""
    result = differences([np.array(wanted)], [np.array(found)], least=least)
    assert (result["max"], result["mean"]) == apart
