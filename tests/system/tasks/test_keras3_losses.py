"""Models of Keras 3 have the losses that Keras's own `fit` has, step by step."""

import functools

import keras
import numpy as np
import pytest

from tests.support.cases import cases
from tests.support.keras3 import models, sides

TOLERANCE = 1e-6

QUICK = "convolutions", "two_heads", "averaged", "float16", "lora", "added_loss", "bert"


@pytest.fixture(params=cases(list(models.CASES), *QUICK))
def name(request):
    pytest.importorskip(models.CASES[request.param].needs)
    return request.param


def furthest(ours, theirs):
    """Returns the largest difference of two lists of losses."""
    assert len(ours) == len(theirs) == models.STEPS
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def test_losses_are_those_of_fit(name, tmp_path):
    """N37: over 50 steps, with the optimizer, the precision and the losses that layers add; and they fall."""
    losses = sides.reference_losses(name)
    assert furthest(sides.engine_losses(name, tmp_path / "run"), losses) <= TOLERANCE
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


@pytest.mark.parametrize("steps_per_loop", cases([1, 7, 50], 7))
def test_outputs_after_windows_are_those_after_fit(name, steps_per_loop, tmp_path):
    """N37: also where several steps are one traced call."""
    sides.trained(name, tmp_path / "run", f"trainer.steps_per_loop={steps_per_loop}", "trainer.summary_interval=50")
    for ours, theirs in zip(outputs(sides.model_of(name, tmp_path / "run"), name), outputs_of_fit(name), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def outputs(model, name):
    return keras.tree.flatten(model.predict(models.CASES[name].features(), verbose=0))


@functools.cache
def outputs_of_fit(name):
    return outputs(sides.fitted(name)[1], name)


DROPOUT = 0.3
DROPPING = [name for name in models.CASES if name not in ("averaged", "bfloat16", "float16", "lora")]


@pytest.mark.parametrize("name", cases(DROPPING, "recurrent"))
def test_dropout_is_the_same_in_each_run(name, tmp_path):
    """N37: its masks are not those of `fit`, whose generator has a history; it repeats itself, and learns as well."""
    pytest.importorskip(models.CASES[name].needs)
    once, again, without = (
        sides.engine_losses(name, tmp_path / f"{number}", f"task.dropout={dropout}")
        for number, dropout in enumerate((DROPOUT, DROPOUT, 0.0))
    )
    assert once == again
    assert sum(a != b for a, b in zip(once, without, strict=True)) > models.STEPS / 2
    assert abs(np.mean(once) - np.mean(sides.reference_losses(name, dropout=DROPOUT))) < 0.15
