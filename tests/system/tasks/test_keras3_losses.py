"""Models of Keras 3 have the losses that Keras's own `fit` has, step by step."""

import keras
import numpy as np
import pytest

from tests.support.keras3 import models, sides

TOLERANCE = 1e-6


def assert_same_outputs(name, model, fitted):
    outputs = (keras.tree.flatten(side.predict(models.ALL[name].features(), verbose=0)) for side in (model, fitted))
    for ours, theirs in zip(*outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("name", models.CASES)
def test_losses_and_outputs_are_those_of_fit(name, tmp_path):
    """N37: over 50 steps, with the optimizer, the precision and the losses that layers add; and they fall."""
    pytest.importorskip(models.CASES[name].needs)
    losses, fitted = sides.fitted(name)
    of_engine = sides.engine_losses(name, tmp_path / "run")
    assert len(of_engine) == len(losses) == models.STEPS
    assert max(abs(a - b) for a, b in zip(of_engine, losses, strict=True)) <= TOLERANCE
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    assert_same_outputs(name, sides.model_of(name, tmp_path / "run"), fitted)


def test_outputs_after_windows_are_those_after_fit(tmp_path):
    """N37: also where several steps are one traced call."""
    name = "convolutions"
    sides.trained(name, tmp_path / "run", "trainer.steps_per_loop=7", "trainer.summary_interval=50")
    assert_same_outputs(name, sides.model_of(name, tmp_path / "run"), sides.fitted(name)[1])


def test_dropout_is_the_same_in_each_run(tmp_path):
    """N37: its masks are not those of `fit`, whose generator has a history; it repeats itself, and learns as well."""
    once, again, without = (
        sides.engine_losses("recurrent", tmp_path / f"{number}", f"task.dropout={dropout}")
        for number, dropout in enumerate((0.3, 0.3, 0.0))
    )
    assert once == again
    assert sum(a != b for a, b in zip(once, without, strict=True)) > models.STEPS / 2
    assert abs(np.mean(once) - np.mean(sides.reference_losses("recurrent", dropout=0.3))) < 0.15
