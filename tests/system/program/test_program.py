"""Programs, where comparing them with Keras's takes longer."""

from __future__ import annotations

import numpy as np
import pytest

from official_trainer.program import Program
from tests.support.programs import examples, light, lightly


@pytest.fixture(scope="module")
def data():
    return examples()


def both(**settings):
    return lightly(light(), **settings), lightly(Program(light()), **settings)


def test_single_batches(data):
    """K3: the results of Keras's `…_on_batch`, with and without a reset between."""
    theirs, ours = both()
    x, y = data
    for reset in (True, False, True):
        for name in ("train_on_batch", "test_on_batch"):
            arguments = {"sample_weight": np.ones(9, np.float32), "reset_metrics": reset}
            expected = getattr(theirs, name)(x[:9], y[:9], **arguments)
            assert getattr(ours, name)(x[:9], y[:9], **arguments) == pytest.approx(expected, rel=1e-6), (name, reset)
    weights = {0: 1.0, 1: 2.0, 2: 0.5}
    assert ours.train_on_batch(x, y, class_weight=weights, return_dict=True) == pytest.approx(
        theirs.train_on_batch(x, y, class_weight=weights, return_dict=True), rel=1e-6
    )
    np.testing.assert_allclose(ours.predict_on_batch(x[:3]), theirs.predict_on_batch(x[:3]), rtol=1e-5)
    np.testing.assert_allclose(ours.predict(x, verbose=0), theirs.predict(x, verbose=0), rtol=1e-5)
