"""A model with batch norm: whole runs that average checkpoints, and trainers whose checkpoints are saved."""

import types

import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.actions.action import LoopState, Run
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy
from tests.support.cases import cases

INTERVAL = 4


class NormConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(NormConfig)
class NormTask(toy.ToyTask):
    """Two batch-norm layers, dropout between them, data shuffled in memory."""

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.BatchNormalization(name="first")(features)
        hidden = keras.layers.Dense(8, "tanh", name="dense")(hidden)
        hidden = keras.layers.Dropout(0.3)(hidden)
        hidden = keras.layers.BatchNormalization(name="second")(hidden)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@registry.register_config_factory("norm_run")
def norm_run():
    """Twenty-two steps; the last one is no multiple of the checkpoint interval."""
    base = toy.experiment(
        steps_per_loop=5, summary_interval=8, checkpoint_interval=INTERVAL, validation_interval=11, max_to_keep=1
    )
    data = [schema.DataConfig(global_batch_size=size) for size in (10, 32)]
    task = NormConfig(train_data=data[0], validation_data=data[1])
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=22))


def do(model_dir, *sets):
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("norm_run"), experiment="norm_run", sets=sets)
    return run.run("norm_run", resolved, mode="train_and_eval", model_dir=str(model_dir), quiet=True)


AVERAGE = "trainer.actions=[{type: average_checkpoints, last: 3, recalibrate_batch_norm: 4, export: true}]"


def trained(strategy, model_dir, task_cls=NormTask, steps=12, **options):
    """Returns a trainer after some steps, whose checkpoints at each interval are saved, and a view of its run."""
    config = toy.experiment(checkpoint_interval=INTERVAL, **options)
    trainer = toy.build(config, task_cls=task_cls, strategy=strategy)
    store = CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None)
    for step in range(INTERVAL, steps + 1, INTERVAL):
        trainer.train(INTERVAL)
        trainer.checkpoint_state.synchronize()
        trainer.checkpoint_state.before_save()
        store.save(step)
    return trainer, view(trainer, model_dir, store)


def view(trainer, model_dir, store):
    rows = []
    tracker = types.SimpleNamespace(log=lambda split, step, logs: rows.append((split, step, logs)), rows=rows)
    state = LoopState(step=int(trainer.global_step.numpy()))
    return Run(state=state, trainer=trainer, model_dir=model_dir, tracker=tracker, saved_steps=store.steps)


def parts(trainer):
    """Returns what every replica holds, of the model, the optimizer and the metrics of training."""
    metrics = [v for metric in [*trainer.train_metrics, trainer.train_loss] for v in metric.variables]
    variables = [*trainer.model.variables, *trainer.optimizer.variables(), *metrics]
    return [part.numpy() for variable in variables for part in getattr(variable, "values", (variable,))]


class PlainNormTask(NormTask):
    """The same in the order of the arrays, and without dropout, so that NumPy can follow."""

    build_inputs = toy.ToyTask.build_inputs

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.BatchNormalization(name="first")(features)
        hidden = keras.layers.Dense(8, "tanh", name="dense")(hidden)
        hidden = keras.layers.BatchNormalization(name="second")(hidden)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))


strategies = pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "mirrored2"))


def loaded(directory, step, task_cls=NormTask):
    """Returns the model's values in a checkpoint, in the order of its variables."""
    model = task_cls(NormConfig()).build_model()
    tf.train.Checkpoint(model=model).read(f"{directory}/ckpt-{step}").expect_partial()
    return [variable.numpy() for variable in model.variables]
