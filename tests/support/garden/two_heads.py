"""The experiments of `workspace/experiments/two_heads.py`: read, and run in this process."""

import sys

from official_trainer.tasks import registry
from tests import ROOT
from tests.support import jobs

WORKSPACE = ROOT / "tests" / "support" / "garden" / "workspace"
NAMES = ("two_heads", "mine/doubling", "points_on_sets", "points_alone")
EMA = "trainer.optimizer_config.ema={average_decay: 0.9, trainable_weights_only: true}"
JOINT, QUIET = "trainer.trainer_type=joint", "trainer.export.at_end=false"


def resolved(name, *sets, **layers):
    return jobs.resolved(name, *sets, config=registry.get_config(name, WORKSPACE), **layers)


def do(model_dir, *sets, name="two_heads", **options):
    return jobs.do(name, model_dir, *sets, config=registry.get_config(name, WORKSPACE), **options)


def module():
    """The workspace's module, as the newest `resolved` has imported it."""
    return sys.modules["experiments.two_heads"]
