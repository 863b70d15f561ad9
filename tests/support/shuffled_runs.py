"""Whole runs of the toy task on shuffled data, of eighty steps with every kind of event, in this process."""

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy


class ShuffledConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ShuffledConfig)
class ShuffledTask(toy.ToyTask):
    """The toy task with shuffled in-memory data and dropout."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@registry.register_config_factory("toy_run")
def toy_run():
    """Eighty steps with every kind of event."""
    base = toy.experiment(
        steps_per_loop=10, summary_interval=20, checkpoint_interval=20, validation_interval=40,
        best_checkpoint_eval_metric="accuracy", ema=EMAConfig(average_decay=0.9),
    )  # fmt: skip
    task = ShuffledConfig(
        train_data=schema.DataConfig(global_batch_size=10), validation_data=schema.DataConfig(global_batch_size=32)
    )
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=80))


def resolve(*sets):
    return configuration.resolve(registry.get_config("toy_run"), experiment="toy_run", sets=sets)


def do(model_dir, *sets, mode="train_and_eval", **kwargs):
    keras.backend.clear_session()
    return run.run("toy_run", resolve(*sets), mode=mode, model_dir=model_dir, quiet=True, **kwargs)
