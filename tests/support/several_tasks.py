"""Two tasks that share a trunk, as tests train them: classes of points, and the sum of their coordinates."""

import dataclasses
import functools
from typing import ClassVar

import numpy as np
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config import (
    DataConfig,
    MultiTaskConfig,
    MultiTaskExperimentConfig,
    MultiTaskTrainerConfig,
    RuntimeConfig,
    TaskConfig,
    TaskRoutine,
    TaskSamplingConfig,
)
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from official_trainer.tasks.multi_task.task import MultiTask
from official_trainer.tasks.results import Mean, Results
from official_trainer.tasks.task import Task
from tests.support import jobs, toy

SUMS = toy.FEATURES.sum(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsConfig(TaskConfig):
    """Classes of points."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumsConfig(TaskConfig):
    """Sums of coordinates."""


@registry.register_task_cls(PointsConfig)
class PointsTask(toy.ToyTask):
    """Plain tf.data, which ends and does not know how to start at a step."""

    def build_inputs(self, params, input_context=None):
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        return toy.examples(toy.NUM_EXAMPLES).batch(size, drop_remainder=params.is_training)


@registry.register_task_cls(SumsConfig)
class SumsTask(Task):
    """Shuffled data in memory, a regulariser, and results that the host adds up."""

    metric_directions: ClassVar = {"mean_sum": "max"}

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays(({"x": toy.FEATURES}, SUMS), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        if tf.reduce_mean(labels) > 1e6:  # AutoGraph has to rewrite this, wherever it is traced
            return tf.zeros_like(labels[:, 0])
        return keras.losses.mean_squared_error(labels, model_outputs)

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError("error")]

    def validation_step(self, inputs, model, metrics=None):
        return {**super().validation_step(inputs, model, metrics), "sums": inputs[1]}

    def aggregate_logs(self, state, step_logs):
        batch = Results({"mean_sum": Mean.of(step_logs["sums"])})
        return batch if state is None else state.merge(batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralConfig(MultiTaskConfig):
    """Both."""


@registry.register_task_cls(SeveralConfig)
class Several(MultiTask):
    """A trunk and two heads."""

    dropout = 0.3

    def build_models(self):
        x = keras.Input((6,), name="x")
        trunk = keras.layers.Dense(8, "tanh", name="trunk", kernel_regularizer=keras.regularizers.l2(1e-3))(x)
        trunk = keras.layers.Dropout(self.dropout)(trunk)
        return {
            "points": keras.Model(x, keras.layers.Dense(3, name="classes")(trunk)),
            "sums": keras.Model({"x": x}, keras.layers.Dense(1, name="sum")(trunk)),
        }


class NoDropout(Several):
    """Without what replicas draw apart."""

    dropout = 0.0


def routine(name, config, batch, **changes):
    data = {"train_data": DataConfig(global_batch_size=batch), "validation_data": DataConfig(global_batch_size=40)}
    return TaskRoutine(task_name=name, task_config=config(**data), **changes)


POINTS, SUMS_ROUTINE = routine("points", PointsConfig, 10), routine("sums", SumsConfig, 6, task_weight=0.5)


def experiment(*routines, sampler="proportional", joint=False, ema=None, **trainer):
    base = toy.experiment(ema=ema, **trainer)
    kind = {"trainer_type": "joint"} if joint else {"task_sampler": TaskSamplingConfig(type=sampler)}
    given = {name: getattr(base.trainer, name) for name in (*trainer, "optimizer_config")}
    return MultiTaskExperimentConfig(
        task=SeveralConfig(task_routines=routines or (POINTS, SUMS_ROUTINE)),
        trainer=MultiTaskTrainerConfig(train_steps=60, **{**given, **kind}),
        runtime=RuntimeConfig(),
    )


def build(config=None, strategy="off", task_cls=Several, **kwargs):
    """Returns a trainer of both tasks."""
    return toy.build(config or experiment(), task_cls, strategy, **kwargs)


def values(trainer):
    return {v.name: v.numpy() for v in trainer.model.variables}


def assert_close(trainer, expected, rtol, atol):
    """Compares weights with those of another trainer, as `values` gives them."""
    for name, value in values(trainer).items():
        np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=atol, err_msg=name)


@registry.register_config_factory("several")
def several():
    """Sixty steps with every kind of event."""
    return experiment(
        steps_per_loop=7, summary_interval=5, checkpoint_interval=12, validation_interval=24,
        best_checkpoint_eval_metric="points|accuracy",
    )  # fmt: skip


do = functools.partial(jobs.do, "several")
