"""Whole runs of the toy task with actions, of forty steps, in this process."""

from official_trainer import config as configuration
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy

NAME = "toy_acting"


class ActingConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ActingConfig)
class ActingTask(toy.ToyTask):
    """The toy task, registered."""


@registry.register_config_factory(NAME)
def toy_acting():
    """Forty steps with every kind of event."""
    base = toy.experiment(steps_per_loop=7, summary_interval=10, checkpoint_interval=20, validation_interval=20)
    task = ActingConfig(
        train_data=schema.DataConfig(global_batch_size=10), validation_data=schema.DataConfig(global_batch_size=32)
    )
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=40))


def do(model_dir, *sets, mode="train_and_eval"):
    """Runs it with `--set` of each of `sets`; returns the metrics."""
    keras.backend.clear_session()
    sets = ("trainer.export.at_end=false", *sets)
    resolved = configuration.resolve(registry.get_config(NAME), experiment=NAME, sets=sets)
    return run.run(NAME, resolved, mode=mode, model_dir=str(model_dir), quiet=True)
