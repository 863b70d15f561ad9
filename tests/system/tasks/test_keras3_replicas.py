"""Models of Keras 3 on several devices and in two processes: the same weights, whatever is done to gradients."""

import functools

import numpy as np
import pytest

from official_trainer.tracking.jsonl import read_rows
from tests.support.cases import cases
from tests.support.keras3 import models, sides
from tests.support.places import PLACES, train
from tests.support.runs import values

SEVERAL = [place for place in PLACES if place != "1 device"]


def trained_weights(place, model_dir, name, *sets):
    train(place, model_dir, *sides.words(name, *sets), experiment=sides.EXPERIMENT)
    return sides.model_of(name, model_dir, *sets).get_weights()


def assert_close(ours, theirs):
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-6)


@functools.cache
def weights_of_fit(optimizer):
    return sides.fitted("dense", optimizer=optimizer)[1].get_weights()


UPDATES = {name: ((f"task.optimizer={name}",), name) for name in models.OPTIMIZERS} | {
    "micro-batches": (("task.optimizer=sgd", "trainer.gradient_accumulation_steps=2"), "sgd"),
    "micro-batches, clipped": (
        ("task.optimizer=global_clipnorm", "trainer.gradient_accumulation_steps=2"),
        "global_clipnorm",
    ),
    "a loss object": (("task.optimizer=sgd", "task.as_objects=true"), "sgd"),
}
"""What is done to gradients: settings, and the optimizer of `fit` on one device that does the same."""

REFUSED = [("accumulating", place) for place in SEVERAL]
EVERY = [(update, place) for update in UPDATES for place in PLACES if (update, place) not in REFUSED]
QUICK = ("global_clipnorm", "2 processes"), ("clipnorm", "2 devices"), ("micro-batches, clipped", "2 devices")


@pytest.mark.parametrize(("update", "place"), cases(EVERY, *QUICK))
def test_weights_are_those_of_fit_on_one_device(update, place, tmp_path):
    """N37: gradients are added up over replicas and micro-batches before they are clipped."""
    sets, optimizer = UPDATES[update]
    assert_close(trained_weights(place, tmp_path / "run", "dense", *sets), weights_of_fit(optimizer))


@pytest.mark.parametrize("place", cases(SEVERAL[:2], "2 devices"))
def test_an_optimizer_that_accumulates_by_itself_is_refused_on_several_replicas(place, tmp_path):
    """N37: Keras cannot, and the message says what can."""
    with pytest.raises(AssertionError, match=r"set\s+trainer\.gradient_accumulation_steps="):
        train(
            place, tmp_path / "run", *sides.words("dense", "task.optimizer=accumulating"), experiment=sides.EXPERIMENT
        )


def test_each_optimizer_changes_what_it_says():
    """N37: without that, the comparison above would compare plain SGD with itself."""
    plain = weights_of_fit("sgd")
    for optimizer in models.OPTIMIZERS:
        if optimizer != "sgd":
            assert max(np.abs(a - b).max() for a, b in zip(plain, weights_of_fit(optimizer), strict=True)) > 1e-3


@pytest.mark.parametrize("place", cases([*PLACES], "2 devices"))
def test_gradients_that_overflow_on_one_replica_are_skipped_by_all(place, tmp_path):
    """N37: weights stay as they were, and the loss scale is halved on each replica."""
    at = models.OVERFLOWS_AT
    sets = (
        "trainer.checkpoint_interval=1",
        f"trainer.train_steps={at + 2}",
        "trainer.actions=[{type: replica_integrity}]",
    )
    model_dir = tmp_path / "run"
    train(place, model_dir, *sides.words("overflow", *sets), experiment=sides.EXPERIMENT)
    before, after, later = (values(model_dir, step) for step in (at - 1, at, at + 1))
    weights = [key for key in before if key.startswith("model/") and before[key].dtype.kind == "f"]
    assert len(weights) == 2
    for key in weights:
        assert np.isfinite(later[key]).all()
        assert (before[key] == after[key]).all()
        assert (after[key] != later[key]).any()
    (scale,) = [key for key in before if "dynamic_scale" in key]
    assert (before[scale], after[scale], later[scale]) == (1024, 512, 512)
    rows = [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]
    # A mean over replicas: also right if each of them had another scale, but not with another one than these.
    assert [row["loss_scale"] for row in rows] == [1024] * (at - 1) + [512] * 3
    fitted = sides.losses_of(model_dir), sides.reference_losses("overflow")
    assert max(abs(a - b) for a, b in zip(*fitted, strict=False)) < 1e-3


@pytest.mark.parametrize("place", cases(SEVERAL, "2 devices"))
def test_masks_of_dropout_differ_by_replica_and_step(place, tmp_path):
    """N37: each replica of each step drops others, and half of them."""
    train(place, tmp_path / "run", "trainer.train_steps=12", experiment="keras3_chaos")
    lines = [line.split() for line in (tmp_path / "run.masks").read_text().splitlines()]
    replicas = 4 if place == "4 devices" else 2
    assert sorted((int(step), int(replica)) for step, replica, _ in lines) == [
        (step, replica) for step in range(12) for replica in range(replicas)
    ]
    masks = [mask for _, _, mask in lines]
    assert len(set(masks)) == len(masks)
    ones = "".join(masks).count("1") / len("".join(masks))
    assert 0.4 < ones < 0.6
