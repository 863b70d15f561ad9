"""orbit's own actions, and Model Garden's, as they are: in a task, and on a trainer."""

import json

import numpy as np
import orbit
import pytest
import tensorflow as tf
from official.core import actions as garden_actions
from official.core import config_definitions

from official_trainer import config as configuration
from official_trainer import files, inputs
from official_trainer.actions.action import Callback
from official_trainer.actions.learning_rate import LearningRateConfig
from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.config import schema
from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.loop import Loop
from official_trainer.engine.loop_parts import DueSteps, LoopParts
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking import Trackers
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


def test_an_export_file_manager_counts_on_after_a_restart(model_dir):
    """G1: orbit's default names; appended to a trainer."""
    for expected in (["model-0"], ["model-0", "model-1"]):
        trainer = toy.build()
        manager = orbit.actions.ExportFileManager(f"{model_dir}/model", max_to_keep=5)
        trainer.actions.append(
            orbit.actions.ExportSavedModel(trainer.model, manager, trainer.task.build_signatures(trainer.model))
        )
        run_loop(model_dir, trainer)
        assert sorted(files.list_dir(model_dir)) == expected


class NoStore:
    """Keeps nothing: each run begins anew."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None if name in ("restore", "latest_step") else []


def run_loop(model_dir, trainer):
    config = trainer.config.trainer.replace(train_steps=4, summary_interval=2)
    trainer.use_config(trainer.config.replace(trainer=config))
    parts = LoopParts(
        trainer=trainer,
        store=NoStore(),
        metric_writer=Trackers([]),
        due=DueSteps(config, "end"),
        actions=Schedule(trainer.actions),
        model_dir=model_dir,
    )
    Loop(parts).run()


def test_train_actions_see_each_summary(model_dir):
    """G1, G8: Model Garden's condition on a loss that has grown, with the numbers that it takes from the output."""
    trainer, outputs = toy.build(), []
    condition = garden_actions.RecoveryCondition(trainer.global_step, loss_upper_bound=1e-6, recovery_max_trials=1)
    trainer.actions.append(Callback(orbit.actions.ConditionalAction(condition, outputs.append), on="train"))
    with pytest.raises(
        ActionError, match="'ConditionalAction' failed in on_step at step 4: RuntimeError: The loss val"
    ):
        run_loop(model_dir, trainer)
    assert [set(output) >= {"training_loss", "learning_rate"} for output in outputs] == [True]


def test_model_gardens_own_choice_of_actions(model_dir):
    """G1: what its driver would add to an evaluation is nothing here: the engine averages and saves that itself."""
    trainer = toy.build(toy.experiment(ema=EMAConfig(average_decay=0.9)))
    params = config_definitions.ExperimentConfig()
    assert garden_actions.get_eval_actions(params, trainer, model_dir) == []
    with pytest.raises(ValueError, match="Optimizer has to be instance of"):
        garden_actions.EMACheckpointing(model_dir, trainer.optimizer, trainer.checkpoint)


def test_callables_of_one_name_are_told_apart():
    """G1: in messages and in checkpoints."""
    conditional = [orbit.actions.ConditionalAction(bool, print) for _ in range(3)]
    mine = Callback(print)
    mine.name = "mine"
    schedule = Schedule([conditional[0], len, mine, conditional[1], Callback(conditional[2], on="train")])
    names = [action.name for action in schedule.actions]
    assert names == ["ConditionalAction", "len", "mine", "ConditionalAction-2", "ConditionalAction-3"]
    with pytest.raises(ValueError, match="two actions are named 'len-2'"):
        Schedule([len, len, _named("len-2")])


def _named(name):
    action = LearningRateConfig(name=name).build()
    action.name = name
    return action
