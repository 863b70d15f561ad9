"""fit, evaluate and predict on two replicas: the numbers of one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cases import cases
from tests.support.replicas import X, Y, assert_alike, on


@pytest.mark.parametrize("weighting", cases(["sample_weight", "class_weight"], "sample_weight"))
def test_weights_count_as_on_one_replica(weighting):
    """K2"""
    given = {"sample_weight": np.linspace(0.1, 2, len(X)).astype("float32"), "class_weight": {0: 1.0, 1: 0.5, 2: 3.0}}
    arguments = {weighting: given[weighting], "shuffle": False, "batch_size": 9, "epochs": 2, "verbose": 0}
    assert_alike(on("mirrored2").fit(X, Y, **arguments).history, on("off").fit(X, Y, **arguments).history)
