"""Model Garden's multi-task objects under our Trainer, against their own trainers and evaluator."""

import numpy as np
import pytest
import tensorflow as tf
from official.core import exp_factory
from official.modeling.multitask import evaluator, interleaving_trainer, multitask, task_sampler

from official_trainer.config import ConfigError
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.tasks import random_streams
from official_trainer.tasks.multi_task.garden import from_garden
from tests.support.garden.two_heads import module, resolved


@pytest.fixture
def config(monkeypatch):
    """The experiment with two heads; each validation set is one batch, of which theirs takes the mean."""
    resolved("two_heads")
    monkeypatch.setattr(module(), "BUFFER", 1)  # what is shuffled has an order of its own on each side
    found = exp_factory.get_exp_config("two_heads")
    found.override({"trainer": {"task_sampler": {"type": "uniform"}}})
    for routine in found.task.task_routines:
        routine.task_config.validation_data.global_batch_size = 101
        routine.eval_steps = None
    return found


def parts(config):
    """Returns tasks, model (the same each time) and optimizer."""
    keras.backend.clear_session()
    random_streams.enable(0)
    task = multitask.MultiTask.from_config(config.task)
    model = module().TwoHeads(config.task.model)
    return task, model, task.create_optimizer(config.trainer.optimizer_config, config.runtime)


def ours(config):
    task, model, optimizer = parts(config)
    task = from_garden(task, model)
    return Trainer(config, task, task.build_model(), optimizer)


def test_interleaved_training_gives_the_weights_of_model_gardens_trainer(config, monkeypatch):
    """T21, T1: their trainer, made to draw our sequence, computes what ours does."""
    trainer = ours(config)
    trainer.train(20)
    order = trainer.task._sampler.choose(tf.range(20, dtype=tf.int64), 0)
    assert 0 < int(tf.reduce_sum(order)) < 20
    task, model, optimizer = parts(config)
    sampler = task_sampler.get_task_sampler(config.trainer.task_sampler, task.task_weights)
    monkeypatch.setattr(
        sampler,
        "task_cumulative_distribution",
        lambda step: tf.stack([tf.cast(tf.equal(order[step], 0), tf.float32), 1.0]),
    )
    interleaving_trainer.MultiTaskInterleavingTrainer(task, model, optimizer, sampler).train(tf.constant(20))
    for left, right in zip(trainer.model.variables, model.variables, strict=True):
        np.testing.assert_allclose(left.numpy(), right.numpy(), rtol=1e-4, atol=1e-5, err_msg=left.name)


def test_evaluation_gives_the_results_of_model_gardens_evaluator(config, monkeypatch):
    """T21, T1: the same names and numbers; the model initializes itself once."""
    initialized = []
    monkeypatch.setattr(module().TwoHeads, "initialize", lambda self: initialized.append(self))
    task, model, _ = parts(config)
    expected = evaluator.MultiTaskEvaluator(list(task.tasks.values()), model).evaluate(tf.constant(-1))
    trainer = ours(config)
    found = trainer.evaluate(-1)
    assert found.keys() == expected.keys()
    for name, metrics in expected.items():
        assert found[name].keys() == metrics.keys()
        for metric, value in metrics.items():
            np.testing.assert_allclose(float(found[name][metric]), float(value), rtol=1e-5)
    assert initialized == []
    trainer.initialize()
    assert initialized == [trainer.model]


def test_model_gardens_tasks_are_checked_too(config):
    """T21: there, a weight below zero would make a task a task of losing."""
    task, model, _ = parts(config)
    with pytest.raises(ConfigError, match=r"task_routines\[0\].task_weight: must be greater than 0, got -1"):
        from_garden(multitask.MultiTask([task.tasks["points"]], task_weights={"points": -1.0}), model)
