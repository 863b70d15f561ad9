"""orbit's own actions in a task, in a whole run."""

import json

import numpy as np
import orbit
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import files, inputs
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy

SEEN = []


class OrbitConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(OrbitConfig)
class OrbitTask(toy.ToyTask):
    """Exports the best model, and the model of every other evaluation, with nothing but orbit's classes."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)

    def build_actions(self, trainer):
        def exporter(name):
            manager = orbit.actions.ExportFileManager(
                f"{self.logging_dir}/{name}/model", max_to_keep=2, next_id_fn=trainer.global_step.numpy
            )
            return orbit.actions.ExportSavedModel(trainer.model, manager, self.build_signatures(trainer.model))

        self.best = orbit.actions.NewBestMetric("accuracy", filename=f"{self.logging_dir}/best_metric.json")
        return [
            orbit.actions.ConditionalAction(condition=self.best, action=exporter("best_models")),
            orbit.actions.ConditionalAction(
                condition=lambda output: trainer.global_step.numpy() % 10 == 0,
                action=[exporter("tenth_models"), SEEN.append],
            ),
        ]


@registry.register_config_factory("orbit_run")
def orbit_run():
    """Twenty steps with an evaluation every five."""
    base = toy.experiment(steps_per_loop=4, summary_interval=10, checkpoint_interval=10, validation_interval=5)
    data = [schema.DataConfig(global_batch_size=size) for size in (10, 32)]
    task = OrbitConfig(train_data=data[0], validation_data=data[1])
    trainer = base.trainer.replace(train_steps=20, export=schema.ExportConfig(at_end=False))
    return base.replace(task=task, trainer=trainer)


def do(model_dir, *sets):
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("orbit_run"), experiment="orbit_run", sets=sets)
    return run.run("orbit_run", resolved, mode="train_and_eval", model_dir=model_dir, quiet=True)


def test_a_new_best_metric_exports_a_model(model_dir):
    """G1: two conditional actions of a task, in a whole run; a restart keeps the best value, and exports nothing."""
    SEEN.clear()
    do(model_dir)
    rows = [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "validation"]
    best, exported = -1.0, []
    for row in rows:
        if row["accuracy"] > best:
            best, exported = row["accuracy"], [*exported, f"model-{row['step']}"]
    assert json.loads(files.read_text(f"{model_dir}/best_metric.json")) == best
    assert sorted(files.list_dir(f"{model_dir}/best_models")) == sorted(exported[-2:])
    assert files.list_dir(f"{model_dir}/tenth_models") == ["model-10", "model-20"]
    assert [type(output) for output in SEEN] == [dict, dict]
    assert [{name: float(value) for name, value in output.items()} for output in SEEN] == [
        {name: row[name] for name in output} for output, row in zip(SEEN, rows[1::2], strict=True)
    ]
    serve = tf.saved_model.load(f"{model_dir}/best_models/{exported[-1]}").signatures["serving_default"]
    found = serve(features=tf.constant(toy.FEATURES))["logits"].numpy().argmax(1) == toy.LABELS
    np.testing.assert_allclose(found.mean(), best, rtol=1e-6)
    files.remove(f"{model_dir}/best_models")
    do(model_dir)
    assert files.list_dir(f"{model_dir}/best_models") == []
