"""Model Garden's own config, task and optimizer under our Trainer."""

import math

import numpy as np
import orbit
import tensorflow as tf
from official.modeling import optimization as garden_optimization

from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.tasks import random_streams
from tests.support import toy
from tests.support.garden.toy import GardenTask, garden_config


def build(config):
    keras.backend.clear_session()
    random_streams.enable(0)
    task = GardenTask(config.task)
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    return Trainer(config, task, task.build_model(), optimizer)


def test_gardens_config_and_task_train_and_evaluate():
    """T1: the constructor takes Model Garden's ExperimentConfig and Task; evaluation is exact all the same."""
    trainer = build(garden_config())
    logits = trainer.model(toy.FEATURES).numpy()
    loss = keras.losses.sparse_categorical_crossentropy(toy.LABELS, logits, from_logits=True).numpy().mean()
    before = trainer.evaluate(tf.constant(-1))
    assert math.isclose(float(before["validation_loss"]), loss, rel_tol=1e-5)
    trainer.train(tf.constant(60))
    assert float(trainer.evaluate(-1)["validation_loss"]) < loss


def test_gardens_averaging_is_done_by_ours():
    """T13: Model Garden's EMA wrapper is taken off; averages start from the weights, without a strategy."""
    trainer = build(garden_config(ema={"average_decay": 0.5, "dynamic_decay": False}))
    kernel = trainer.model.layers[1].kernel
    start = kernel.numpy()
    trainer.train(1)
    with trainer.weights_averaged():
        np.testing.assert_allclose(kernel.numpy(), start, atol=0.011)
    assert not isinstance(trainer.optimizer, garden_optimization.ExponentialMovingAverage)


def test_orbits_controller_drives_our_trainer(tmp_path):
    """T2, T3: the same object is orbit's trainer and evaluator."""
    trainer = build(garden_config())
    manager = tf.train.CheckpointManager(
        trainer.checkpoint, str(tmp_path), max_to_keep=1, step_counter=trainer.global_step, checkpoint_interval=10
    )
    controller = orbit.Controller(
        trainer=trainer, evaluator=trainer, global_step=trainer.global_step, steps_per_loop=10,
        checkpoint_manager=manager, summary_dir=str(tmp_path), summary_interval=10,
    )  # fmt: skip
    logs = controller.train_and_evaluate(train_steps=20, eval_steps=-1, eval_interval=10)
    assert int(trainer.global_step.numpy()) == 20
    assert "validation_loss" in logs
