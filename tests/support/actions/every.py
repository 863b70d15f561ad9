"""Runs of forty steps with every action."""

from official_trainer.lazy import keras
from official_trainer.runs import run
from tests.support.actions.samples import SAMPLES
from tests.support.shuffled_runs import resolve

SETS = (
    "trainer.train_steps=40",
    "trainer.checkpoint_interval=20",
    "trainer.validation_interval=20",
    "trainer.optimizer_config.ema=null",
)


def train(model_dir, *, acts=True, stop=None):
    """Trains with all actions, or with none."""
    keras.backend.clear_session()
    sets = (*SETS, f"trainer.actions=[{', '.join(SAMPLES.values())}]") if acts else SETS
    return run.run("toy_run", resolve(*sets), mode="train_and_eval", model_dir=str(model_dir), quiet=True, stop=stop)
