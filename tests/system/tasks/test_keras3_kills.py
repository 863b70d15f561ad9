"""Runs of Keras 3 models that are killed, and started again, end with the bits and the examples of an unbroken run."""

import functools
import random
import shutil

import pytest

from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos import inside
from tests.support.chaos.contract import RUN, Broken, Case, Instant, Part, Step, check
from tests.support.forked import Command

WORKSPACE = ROOT / "tests" / "support" / "keras3" / "workspace"
FP16 = "runtime.mixed_precision_dtype=float16"
MIRRORED = "runtime={distribution_strategy: mirrored, num_logical_cpus: 2}"
MIRRORED_FP16 = "runtime={distribution_strategy: mirrored, num_logical_cpus: 2, mixed_precision_dtype: float16}"
EXPORTS = "trainer.export={at_end: true, best: true}"

SETS = {
    "all": (),
    "all-mirrored": (MIRRORED,),
    "float16": (FP16, "task.optimizer=scaling"),
    "float16-mirrored": (MIRRORED_FP16, "task.optimizer=scaling"),
    "bfloat16": ("runtime.mixed_precision_dtype=bfloat16",),
    "averaging": ("task.optimizer=averaging",),
    "averages": ("trainer.optimizer_config.ema={average_decay: 0.9}",),
    "averages-mirrored": (MIRRORED, "trainer.optimizer_config.ema={average_decay: 0.9}"),
    "accumulation": ("trainer.gradient_accumulation_steps=2",),
    "accumulation-mirrored": (MIRRORED, "trainer.gradient_accumulation_steps=2"),
    "own_accumulation": ("task.optimizer=accumulating",),
    "exports": (EXPORTS,),
    "xla": ("runtime.enable_xla=true", "task.parts=[hidden, dropout, seeded_noise, noise]", "task.writes=false"),
}
"""What is killed: settings of `keras3_chaos` by a name."""


def start(sets, shared, folder, *more, first=None):
    words = [f"--set={word}" for word in (*sets, *more)]
    argv = ["train", "--experiment=keras3_chaos", f"--model_dir={folder}/{RUN}", "--mode=train_and_eval", *words]
    return Command(argv, cwd=WORKSPACE, folder=folder, first=first)


CASES = {name: Case(f"keras3-{name}", functools.partial(start, sets)) for name, sets in SETS.items()}


@pytest.mark.parametrize("name", cases(list(CASES), "all", "all-mirrored"))
def test_killed_anywhere(name, shared, tmp_path, request):
    """N38, N1: at a step, before a change on disk, and at any instant; the unbroken run has windows of seven steps."""
    seed = request.config.getoption("--chaos-seed")
    chance = random.Random(f"{seed}/{name}")
    steps_per_loop = chance.choice((1, 7, 50))
    is_whole = "full" in [mark.name for mark in request.node.iter_markers()]
    strikes = [Step(chance.randint(7, 49)), Part(chance.random())]
    if is_whole:
        strikes += [Part(chance.random()), Instant(chance.random())]
    check(shared, CASES[name], strikes, tmp_path, (f"trainer.steps_per_loop={steps_per_loop}",))


FORGOTTEN = {
    "random streams": (inside.forget_random, {"variables", "ids"}),
    "data position": (inside.forget_position, {"variables", "ids"}),
}


@pytest.mark.parametrize("item", FORGOTTEN)
def test_a_run_that_forgets_is_found_out(item, shared, tmp_path):
    """N37: leave one item of state out, and the comparison says so."""
    forget, kinds = FORGOTTEN[item]
    folder = shutil.copytree(shared.struck(CASES["all"], Step(23)), tmp_path / "copy")
    broken = Broken(shared, CASES["all"], folder)
    broken.finish(first=forget)
    found = broken.differences()
    assert kinds <= found.keys(), found
