"""Model Garden's multi-task objects under our Trainer, against their own trainers and evaluator."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from official.core import base_task, config_definitions, task_factory
from official.modeling.multitask import (
    base_model,
    configs,
    evaluator,
    interleaving_trainer,
    multitask,
    task_sampler,
)

from official_trainer.config import ConfigError
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.tasks import random_streams
from official_trainer.tasks.multi_task.garden import from_garden
from tests.support import toy
from tests.support.several_tasks import SUMS


@dataclasses.dataclass
class GardenPointsConfig(config_definitions.TaskConfig):
    """Classes of points."""


@dataclasses.dataclass
class GardenSumsConfig(config_definitions.TaskConfig):
    """Sums of coordinates."""


def batches(labels, params, input_context):
    size = params.global_batch_size
    if input_context is not None:
        size = input_context.get_per_replica_batch_size(size)
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_tensor_slices(({"x": toy.FEATURES}, labels)).with_options(options)
    return dataset.repeat().batch(size) if params.is_training else dataset.batch(size)


@task_factory.register_task_cls(GardenPointsConfig)
class GardenPoints(base_task.Task):
    """A task written for Model Garden."""

    def build_inputs(self, params, input_context=None):
        return batches(toy.LABELS, params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True))

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy("accuracy")]


@task_factory.register_task_cls(GardenSumsConfig)
class GardenSums(base_task.Task):
    """Another one, whose inputs take no context."""

    def build_inputs(self, params):
        return batches(SUMS, params, None)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(keras.losses.mean_squared_error(labels, model_outputs))

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError("error")]


class Head(keras.Model):
    """A subclassed model, which has no variables until it is called."""

    def __init__(self, trunk, units):
        super().__init__()
        self.trunk, self.head = trunk, keras.layers.Dense(units)
        self.inputs = {"x": keras.Input((6,))}

    def call(self, inputs):
        return self.head(self.trunk(inputs["x"]))


class Heads(base_model.MultiTaskBaseModel):
    """Model Garden's kind of model, with a shared layer."""

    initialized = 0

    def _instantiate_sub_tasks(self):
        self.trunk = keras.layers.Dense(8, "tanh")
        return {"points": Head(self.trunk, 3), "sums": Head(self.trunk, 1)}

    def initialize(self):
        self.initialized += 1


def garden_config(trainer_type):
    def data(batch):
        return {
            "train_data": config_definitions.DataConfig(global_batch_size=batch, is_training=True),
            "validation_data": config_definitions.DataConfig(global_batch_size=101, is_training=False),
        }

    return configs.MultiTaskExperimentConfig(
        task=configs.MultiTaskConfig(
            task_routines=(
                configs.TaskRoutine(task_name="points", task_config=GardenPointsConfig(**data(10)), task_weight=2.0),
                configs.TaskRoutine(task_name="sums", task_config=GardenSumsConfig(**data(6)), task_weight=0.5),
            )
        ),
        trainer=configs.MultiTaskTrainerConfig(
            train_steps=20,
            trainer_type=trainer_type,
            task_sampler=configs.TaskSamplingConfig({"type": "uniform"}),
            optimizer_config={
                "optimizer": {"type": "adam"},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
            },
        ),
    )


def theirs(config):
    """Returns tasks, model (the same each time) and optimizer."""
    task, model, optimizer = parts(config)
    model.build()
    return task, model, optimizer


def parts(config):
    keras.backend.clear_session()
    random_streams.enable(0)
    task = multitask.MultiTask.from_config(config.task)
    return task, Heads(), task.create_optimizer(config.trainer.optimizer_config, config.runtime)


def ours(config):
    task, model, optimizer = parts(config)
    task = from_garden(task, model)
    assert all(part.built for part in model.sub_tasks.values())
    return Trainer(config, task, task.build_model(), optimizer)


def assert_close(left, right):
    for a, b in zip(left.variables, right.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5, err_msg=a.name)


def test_interleaved_training_gives_the_weights_of_model_gardens_trainer(monkeypatch):
    """T21, T1: their trainer, made to draw our sequence, computes what ours does."""
    config = garden_config("interleaving")
    trainer = ours(config)
    trainer.train(20)
    order = trainer.task._sampler.choose(tf.range(20, dtype=tf.int64), 0)
    assert 0 < int(tf.reduce_sum(order)) < 20
    task, model, optimizer = theirs(config)
    sampler = task_sampler.get_task_sampler(config.trainer.task_sampler, task.task_weights)
    monkeypatch.setattr(
        sampler,
        "task_cumulative_distribution",
        lambda step: tf.stack([tf.cast(tf.equal(order[step], 0), tf.float32), 1.0]),
    )
    interleaving_trainer.MultiTaskInterleavingTrainer(task, model, optimizer, sampler).train(tf.constant(20))
    assert_close(trainer.model, model)


def test_evaluation_gives_the_results_of_model_gardens_evaluator():
    """T21, T1: the same names and numbers."""
    config = garden_config("joint")
    task, model, _ = theirs(config)
    expected = evaluator.MultiTaskEvaluator(list(task.tasks.values()), model).evaluate(tf.constant(-1))
    trainer = ours(config)
    found = trainer.evaluate(-1)
    assert found.keys() == expected.keys()
    for name, metrics in expected.items():
        assert found[name].keys() == metrics.keys()
        for metric, value in metrics.items():
            np.testing.assert_allclose(float(found[name][metric]), float(value), rtol=1e-5)
    assert trainer.model.initialized == 0
    trainer.initialize()
    assert trainer.model.initialized == 1


def test_one_keras_model_for_all_of_model_gardens_tasks():
    """T21: interleaved, as theirs allows."""
    config = garden_config("interleaving")
    keras.backend.clear_session()
    random_streams.enable(0)
    x = keras.Input((6,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(3)(x))
    routines = config.task.task_routines[:1]
    task = from_garden(multitask.MultiTask.from_config(config.task.replace(task_routines=routines)), model)
    trainer = Trainer(config, task, model, task.create_optimizer(config.trainer.optimizer_config))
    before = float(trainer.evaluate(-1)["points"]["validation_loss"])
    trainer.train(40)
    assert float(trainer.evaluate(-1)["points"]["validation_loss"]) < before


def test_model_gardens_tasks_are_checked_too():
    """T21: there, a weight below zero would make a task a task of losing."""
    task = GardenPoints(GardenPointsConfig(), name="points")
    with pytest.raises(ConfigError, match=r"task_routines\[0\].task_weight: must be greater than 0, got -1"):
        from_garden(multitask.MultiTask([task], task_weights={"points": -1.0}), Heads())
