"""A run on any number of devices and processes has the losses of a run on one, with all that draws while it trains."""

import numpy as np
import pytest

from tests import ROOT
from tests.support.cases import cases, full
from tests.support.keras3 import sides
from tests.support.places import PLACES, train
from tests.support.runs import values

STEPS = 200
DRAWS = "flip, translation, seeded_noise, noise, dropout, lstm"

RUNS = {
    "keras3": {"experiment": "keras3_chaos", "cwd": sides.WORKSPACE},
    "keras2": {"experiment": "digits_mlp", "cwd": ROOT},
}
SETS = {"keras3": (f"task.parts=[{DRAWS}]", "task.writes=false"), "keras2": ()}
EACH_STEP = (f"trainer.train_steps={STEPS}", "trainer.summary_interval=1", "trainer.export.at_end=false")


def run(kind, place, model_dir, *sets, **flags):
    train(place, model_dir, *EACH_STEP, *SETS[kind], *sets, **RUNS[kind], **flags)


def furthest(ours, theirs):
    """Returns the largest relative difference of the losses of two runs."""
    ours, theirs = (np.array(sides.losses_of(model_dir)) for model_dir in (ours, theirs))
    assert ours.shape == theirs.shape == (STEPS,)
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The run of each kind on one device."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "one"
            run(kind, "1 device", made[kind])
        return made[kind]

    return get


EVERY = [(kind, place) for kind in RUNS for place in PLACES if place != "1 device"]
QUICK = ("keras3", "4 devices"), ("keras3", "2 processes"), ("keras2", "4 devices")


@pytest.mark.parametrize(("kind", "place"), cases(EVERY, *QUICK))
def test_losses_of_200_steps_are_those_of_one_device(kind, place, one, tmp_path):
    """N43: each of them, within 1e-5, with dropout, noise and augmentation."""
    run(kind, place, tmp_path / "run")
    assert furthest(tmp_path / "run", one(kind)) < 1e-5


@pytest.mark.parametrize("kind", ["keras2", full("keras3")])
def test_a_run_that_changes_its_devices_ends_as_one_that_does_not(kind, one, tmp_path):
    """N43: 1, 4, 2 and 1 again, within rounding."""
    for place, until in (("1 device", 50), ("4 devices", 100), ("2 devices", 150), ("1 device", STEPS)):
        run(kind, place, tmp_path / "run", flags=[f"--until_step={until}", "--allow_config_change"])
    assert furthest(tmp_path / "run", one(kind)) < 1e-5
    ours, theirs = (values(model_dir, STEPS) for model_dir in (tmp_path / "run", one(kind)))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if np.asarray(value).dtype.kind == "f":  # the others are numbers of steps, and names
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
