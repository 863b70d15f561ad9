"""Experiments as a user of Model Garden writes them: several tasks, one task with named sets, a task alone."""

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras
from official.core import base_task, config_definitions, exp_factory, task_factory
from official.modeling import hyperparams
from official.modeling.hyperparams import base_config
from official.modeling.multitask import base_model, configs, multitask

FEATURES = np.random.default_rng(0).normal(size=(101, 6)).astype("float32")
CLASSES = FEATURES[:, :3].argmax(axis=1)
SUMS = FEATURES.sum(axis=1, keepdims=True)
BUFFER = 50


@dataclasses.dataclass
class PointsConfig(config_definitions.TaskConfig):
    """Classes of points; `shift` moves them, in evaluations."""

    shift: float = 0.0


@dataclasses.dataclass
class SumsConfig(config_definitions.TaskConfig):
    """Sums of coordinates."""


@dataclasses.dataclass
class HeadConfig(hyperparams.Config):
    """What comes out for one task."""

    task_name: str = ""
    units: int = 1


@dataclasses.dataclass
class TwoHeadsConfig(hyperparams.Config):
    """A shared layer, and a head for each task."""

    hidden: int = 8
    dropout: float = 0.0
    heads: tuple[HeadConfig, ...] = ()


def batches(params, input_context, labels, shift=0.0):
    size = (
        input_context.get_per_replica_batch_size(params.global_batch_size)
        if input_context
        else params.global_batch_size
    )
    dataset = tf.data.Dataset.from_tensor_slices(({"x": FEATURES + shift}, labels))
    if params.is_training:
        dataset = dataset.repeat().shuffle(BUFFER)
    return dataset.batch(size, drop_remainder=params.drop_remainder)


@task_factory.register_task_cls(PointsConfig)
class PointsTask(base_task.Task):
    """Which coordinate is the largest."""

    def build_model(self):
        x = tf_keras.Input([6], name="x")
        return tf_keras.Model({"x": x}, tf_keras.layers.Dense(3)(x))

    def build_inputs(self, params, input_context=None):
        return batches(params, input_context, CLASSES, self.task_config.shift)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        each = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(each)

    def build_metrics(self, training=True):
        return [tf_keras.metrics.SparseCategoricalAccuracy("accuracy")]


@task_factory.register_task_cls(SumsConfig)
class SumsTask(base_task.Task):
    """What the coordinates add up to."""

    def build_inputs(self, params, input_context=None):
        return batches(params, input_context, SUMS)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf_keras.losses.mean_squared_error(labels, model_outputs))

    def build_metrics(self, training=True):
        return [tf_keras.metrics.MeanAbsoluteError("error")]


@base_config.bind(TwoHeadsConfig)
class TwoHeads(base_model.MultiTaskBaseModel):
    """Starts from the same weights each time, so that runs can be compared."""

    def __init__(self, config):
        self._config = config
        super().__init__()

    def _instantiate_sub_tasks(self):
        x = tf_keras.Input([6], name="x")
        shared = tf_keras.layers.Dense(self._config.hidden, "tanh", kernel_initializer=seeded(1))(x)
        shared = tf_keras.layers.Dropout(self._config.dropout)(shared)
        heads = {}
        for number, head in enumerate(self._config.heads):
            outputs = tf_keras.layers.Dense(head.units, kernel_initializer=seeded(2 + number))(shared)
            heads[head.task_name] = tf_keras.Model({"x": x}, outputs)
        return heads


def seeded(seed):
    return tf_keras.initializers.GlorotUniform(seed=seed)


def data(train_batch):
    return {
        "train_data": config_definitions.DataConfig(global_batch_size=train_batch, is_training=True),
        "validation_data": config_definitions.DataConfig(global_batch_size=40, is_training=False, drop_remainder=False),
    }


def trainer(cls, **fields):
    return cls(
        train_steps=30,
        steps_per_loop=7,
        summary_interval=5,
        checkpoint_interval=6,
        validation_interval=16,
        optimizer_config={
            "optimizer": {"type": "adam"},
            "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
        },
        **fields,
    )


@exp_factory.register_config_factory("two_heads")
def two_heads() -> configs.MultiTaskExperimentConfig:
    """Classes and sums of points, with a shared layer."""
    return configs.MultiTaskExperimentConfig(
        task=configs.MultiTaskConfig(
            model=TwoHeadsConfig(heads=(HeadConfig(task_name="points", units=3), HeadConfig(task_name="sums"))),
            task_routines=(
                configs.TaskRoutine(task_name="points", task_config=PointsConfig(**data(10)), task_weight=2.0),
                configs.TaskRoutine(task_config=SumsConfig(name="sums", **data(6)), task_weight=0.5, eval_steps=2),
            ),
        ),
        trainer=trainer(configs.MultiTaskTrainerConfig, best_checkpoint_eval_metric="points|accuracy"),
    )


@dataclasses.dataclass
class DoublingConfig(configs.MultiTaskConfig):
    """Tasks whose joint step is not Model Garden's."""


class Doubling(multitask.MultiTask):
    """Makes every joint step twice."""

    def joint_train_step(self, task_inputs, **options):
        super().joint_train_step(task_inputs, **options)
        return super().joint_train_step(task_inputs, **options)


@base_config.bind(DoublingConfig)
def build_doubling(config, logging_dir=None):
    return Doubling.from_config(config, logging_dir)


@exp_factory.register_config_factory("mine/doubling")
def doubling() -> configs.MultiTaskExperimentConfig:
    """The same, with a step of its own."""
    experiment = two_heads()
    task = DoublingConfig(model=experiment.task.model, task_routines=experiment.task.task_routines)
    return configs.MultiTaskExperimentConfig(task=task, trainer=experiment.trainer.replace(trainer_type="joint"))


@exp_factory.register_config_factory("points_on_sets")
def points_on_sets() -> configs.MultiEvalExperimentConfig:
    """Classes of points, evaluated where they are and where they are not."""
    sets = (("as_trained", 0.0, None), ("shifted", 1.0, 2))
    return configs.MultiEvalExperimentConfig(
        task=PointsConfig(train_data=data(10)["train_data"]),
        trainer=trainer(config_definitions.TrainerConfig, best_checkpoint_eval_metric="shifted|accuracy"),
        eval_tasks=tuple(
            configs.TaskRoutine(task_name=name, task_config=PointsConfig(shift=shift, **data(10)), eval_steps=steps)
            for name, shift, steps in sets
        ),
    )


@exp_factory.register_config_factory("points_alone")
def points_alone() -> config_definitions.ExperimentConfig:
    """Classes of points."""
    return config_definitions.ExperimentConfig(
        task=PointsConfig(**data(10)), trainer=trainer(config_definitions.TrainerConfig)
    )
