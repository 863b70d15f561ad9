"""Runs of four steps, whose config changes are guarded."""

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy


class GuardedConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(GuardedConfig)
class GuardedTask(toy.ToyTask):
    """The toy task with in-memory data."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@registry.register_config_factory("guarded_run")
def guarded_run():
    """Four steps, saved after every second."""
    base = toy.experiment(checkpoint_interval=2, summary_interval=2, export=schema.ExportConfig(at_end=False))
    return base.replace(
        task=GuardedConfig(train_data=schema.DataConfig(global_batch_size=10)),
        trainer=base.trainer.replace(train_steps=4),
    )


def train(model_dir, *sets, quiet=True, mode="train", **kwargs):
    keras.backend.clear_session()
    resolved = configuration.resolve(guarded_run(), experiment="guarded_run", sets=sets)
    return run.run("guarded_run", resolved, mode=mode, model_dir=model_dir, quiet=quiet, **kwargs)
