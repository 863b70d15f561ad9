"""Runs by `run_experiment` and by Model Garden's own driver."""

import pytest
import tensorflow as tf
from official.core import base_trainer, train_lib
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from official_trainer.tasks import random_streams
from tests.support.garden.toy import GardenTask, garden_config


@pytest.fixture(autouse=True)
def _untouched_process():
    """Seeds and eager mode are the process's; other tests have their own."""
    tf.random.set_seed(None)  # a program's seed counts
    yield
    tf.config.run_functions_eagerly(False)


def params_of(**trainer):
    params = garden_config()
    settings = {"train_steps": 20, "steps_per_loop": 5, "summary_interval": 5, "checkpoint_interval": 10}
    params.override({"trainer": {**settings, "validation_interval": 10, **trainer}})
    return params


def call(model_dir, mode="train_and_eval", params=None, task=None, strategy=None, **options):
    keras.backend.clear_session()
    params = params or params_of()
    return run_experiment(strategy, task or GardenTask(params.task), mode, params, str(model_dir), **options)


def weights_of(model):
    return [variable.numpy() for variable in model.variables]


def logged_steps(directory, tag):
    events = EventAccumulator(str(directory)).Reload()
    return [event.step for event in events.Tensors(tag)] if tag in events.Tags()["tensors"] else []


def trainer_of(cls, params, **options):
    random_streams.enable(0)
    task = GardenTask(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    return cls(params, task, task.build_model(), optimizer, **options)


def their_run(model_dir, params):
    keras.backend.clear_session()
    trainer = trainer_of(base_trainer.Trainer, params)
    strategy = tf.distribute.get_strategy()
    train_lib.run_experiment(strategy, trainer.task, "train", params, str(model_dir), trainer=trainer)
    return trainer
