"""The experiments of `workspace/experiments/two_heads.py`: read, and run in this process."""

import sys

from official_trainer import config as configuration
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from tests import ROOT
from tests.support import jobs

WORKSPACE = ROOT / "tests" / "support" / "garden" / "workspace"
NAMES = ("two_heads", "mine/doubling", "points_on_sets", "points_alone")
EMA = "trainer.optimizer_config.ema={average_decay: 0.9, trainable_weights_only: true}"
JOINT, QUIET = "trainer.trainer_type=joint", "trainer.export.at_end=false"


def resolved(name, **layers):
    return configuration.resolve(registry.get_config(name, WORKSPACE), experiment=name, **layers)


def do(model_dir, *sets, name="two_heads", mode="train_and_eval"):
    keras.backend.clear_session()
    return jobs.run(name, resolved(name, sets=sets), mode=mode, model_dir=str(model_dir), quiet=True)


def module():
    """The workspace's module, as the newest `resolved` has imported it."""
    return sys.modules["experiments.two_heads"]
