"""Sweeps whose drivers and trials are killed end with their trials, each as exact as an unbroken run.

Where all kills fell while the driver waited, the table is that of an unbroken sweep.
"""

import itertools
import random
import time

import pytest

from tests.support.sweeps.drivers import Sweep
from tests.support.waiting import until

SPACES = {
    "TPESampler": "{type: TPESampler, n_startup_trials: 2}",
    "CmaEsSampler": "{type: CmaEsSampler, n_startup_trials: 2}",
    "RandomSampler": "RandomSampler",
    "BruteForceSampler": "BruteForceSampler",
}
RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"
NUMBERS = f"{{{RATE}: 'log(1e-3, 1)', task.model.deep.dropout: 'float(0, 0.4)'}}"
GRID = f"{{{RATE}: 'choice(0.003, 0.03, 0.3)', task.model.deep.dropout: 'float(0, 0.4, 0.4)'}}"
PRUNER = "pruner: {type: MedianPruner, n_startup_trials: 1}\n"
TRIALS = 3
LONG = (*("trainer.train_steps=30", "trainer.checkpoint_interval=3", "trainer.validation_interval=6"),)
KEEP = ("trainer.max_to_keep=20",)


def space_of(sampler, *, prunes):
    space = GRID if sampler == "BruteForceSampler" else NUMBERS
    text = f"space: {space}\nsampler: {SPACES[sampler]}\ntrials: {TRIALS}\nseed: 5\n"
    return text + (PRUNER if prunes else "")


def strike(sweep, chance, *, num_kills, num_drivers):
    """Kills drivers and trials until it has done so often enough; returns how often each of them was struck."""
    counts = {"driver": 0, "trial": 0}
    drivers = [sweep.start() for _ in range(num_drivers)]
    for number in range(num_kills):
        trial = min(number * TRIALS // num_kills, TRIALS - 1)
        until(lambda trial=trial: sweep.has_trained(trial))
        time.sleep(chance.random() * 0.3)
        driver = chance.choice(drivers)
        if number % 2 and driver.kill_trial():
            counts["trial"] += 1
        elif driver.kill_idle() if num_drivers == 1 else driver.kill():
            counts["driver"] += 1
            driver.wait()
            drivers = [other for other in drivers if other is not driver] + [sweep.start()]
    for driver in drivers:
        done = driver.wait()
        assert done.code == 0, done.out + done.err
        assert "Traceback" not in done.err, done.err
    sweep.wait_until_gone()
    return counts


def check(tmp_path, sampler, prunes, num_drivers, num_kills, seed=0):
    text, words = space_of(sampler, prunes=prunes), (*LONG, *KEEP)
    sweep = Sweep(tmp_path / "struck", text, *words)
    counts = strike(sweep, random.Random(seed), num_kills=num_kills, num_drivers=num_drivers)
    assert sum(counts.values()) == num_kills, counts
    unbroken = Sweep(tmp_path / "unbroken", text, *words) if num_drivers == 1 else None
    if unbroken is not None:
        unbroken.finish()
        assert sweep.table() == unbroken.table()
    sweep.check_trials(TRIALS, unbroken)
    print(f"{sampler}, pruner {prunes}, drivers {num_drivers}: kills {counts}")


@pytest.mark.parametrize(
    ("sampler", "prunes", "num_drivers"), [("TPESampler", True, 1), ("BruteForceSampler", False, 2)]
)
def test_a_sweep_that_is_killed_ends_as_if_it_was_not(sampler, prunes, num_drivers, tmp_path):
    """N21: its driver and a trial, twice; one driver has the table of an unbroken sweep, two draw nothing twice."""
    check(tmp_path, sampler, prunes, num_drivers, num_kills=2)


@pytest.mark.full
@pytest.mark.parametrize(("sampler", "variant"), [*itertools.product(SPACES, ["alone", "pruned", "two"])])
def test_sixty_kills(sampler, variant, tmp_path, request):
    """N21: five in each of twelve sweeps."""
    seed = f"{request.config.getoption('--chaos-seed')}/{sampler}/{variant}"
    prunes = variant == "pruned" or (variant == "two" and sampler in ("TPESampler", "RandomSampler"))
    check(tmp_path, sampler, prunes, 2 if variant == "two" else 1, num_kills=5, seed=seed)
