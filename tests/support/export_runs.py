"""Runs of twenty steps that export SavedModels while they train."""

import json

from official_trainer import config as configuration
from official_trainer import files, inputs
from official_trainer.config import schema
from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy


class ExportedConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ExportedConfig)
class ExportedTask(toy.ToyTask):
    """The toy task with shuffled in-memory data."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@registry.register_config_factory("exported_run")
def exported_run():
    """Twenty steps with averaged weights and an evaluation every five."""
    base = toy.experiment(
        steps_per_loop=4, summary_interval=10, checkpoint_interval=10, validation_interval=5,
        ema=EMAConfig(average_decay=0.9),
    )  # fmt: skip
    data = [schema.DataConfig(global_batch_size=size) for size in (10, 32)]
    task = ExportedConfig(train_data=data[0], validation_data=data[1])
    trainer = base.trainer.replace(train_steps=20, export=schema.ExportConfig(at_end=False))
    return base.replace(task=task, trainer=trainer)


def do(model_dir, *sets):
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("exported_run"), experiment="exported_run", sets=sets)
    return run.run("exported_run", resolved, mode="train_and_eval", model_dir=str(model_dir), quiet=True)


def exports(model_dir):
    """Returns folder → what the export in it stands for."""
    found = {}
    for folder in ("steps", "often"):
        for name in files.list_dir(f"{model_dir}/export/{folder}"):
            found[f"{folder}/{name}"] = json.loads(files.read_text(f"{model_dir}/export/{folder}/{name}/export.json"))
    return found
