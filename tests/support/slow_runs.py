"""Runs whose data, or whose steps, take long."""

import dataclasses
import json
import time

import tensorflow as tf

from official_trainer import files
from official_trainer.config import schema
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy


@dataclasses.dataclass(frozen=True, kw_only=True)
class SleepyConfig(schema.TaskConfig):
    """Where the time is to be spent, in each step."""

    input_seconds: float = 0.0
    step_seconds: float = 0.0


def _sleep(seconds, batch):
    """Takes that long once the batch is there."""
    return tf.numpy_function(lambda _: time.sleep(seconds), [batch[0]], [], stateful=True)


@registry.register_task_cls(SleepyConfig)
class SleepyTask(toy.ToyTask):
    """The toy task with data, or steps, that take long."""

    def build_inputs(self, params, input_context=None):
        def slow(*batch):
            with tf.control_dependencies([_sleep(self.task_config.input_seconds, batch)]):
                return tf.nest.map_structure(tf.identity, batch)

        dataset = super().build_inputs(params, input_context)
        return dataset.map(slow) if params.is_training and self.task_config.input_seconds else dataset

    def train_step(self, inputs, model, optimizer, metrics=None):
        if self.task_config.step_seconds:
            _sleep(self.task_config.step_seconds, inputs)
        return super().train_step(inputs, model, optimizer, metrics)


do = toy.runs_of(
    "sleepy", None, SleepyConfig, train_steps=80, summary_interval=20, checkpoint_interval=20, validation_interval=40
)


def recorded(model_dir):
    return json.loads(files.read_text(f"{model_dir}/run.json"))


def time_rows(model_dir):
    return [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "time"]
