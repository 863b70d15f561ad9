"""fit, evaluate and predict on two replicas: the numbers of one."""

from __future__ import annotations

import numpy as np
import pytest

from official_trainer.lazy import keras
from tests.support.cases import cases
from tests.support.programs import CLASSES, FEATURES
from tests.support.replicas import X, Y, assert_alike, on


@pytest.mark.parametrize("weighting", cases(["sample_weight", "class_weight"], "sample_weight"))
def test_weights_count_as_on_one_replica(weighting):
    """K2"""
    given = {"sample_weight": np.linspace(0.1, 2, len(X)).astype("float32"), "class_weight": {0: 1.0, 1: 0.5, 2: 3.0}}
    arguments = {weighting: given[weighting], "shuffle": False, "batch_size": 9, "epochs": 2, "verbose": 0}
    assert_alike(on("mirrored2").fit(X, Y, **arguments).history, on("off").fit(X, Y, **arguments).history)


def test_a_loss_that_is_a_sum_is_one_on_two_replicas():
    """K2: nothing is weighted by the size of a replica's part."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    arguments = {"shuffle": False, "batch_size": 9, "epochs": 2, "verbose": 0}
    plain = {"make": lambda: keras.Sequential([keras.layers.Dense(CLASSES, input_shape=[FEATURES])]), "loss": loss}
    weights = [
        (p := on(name, **plain)).fit(X, Y, **arguments) and p.model.get_weights() for name in ("off", "mirrored2")
    ]
    for left, right in zip(*weights, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-7)
