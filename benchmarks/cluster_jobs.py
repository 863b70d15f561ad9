"""One process of a training job on some strategy, ours or Model Garden's; `clusters.py` starts them.

Owns: the experiment, in our words and in theirs, and what a process of either side does from its fork to its end. Both
have the same models, `tf.data` pipeline, optimizer (`adam`), steps per loop and summaries, and note the time after
each loop in a file. Does not own: which processes there are (`clusters.py`).

Ours is `run.run`, what `official-trainer train` calls: run directory, record, trackers, watchdog and all. Theirs is
`train_lib.run_experiment` with a strategy of `distribute_utils.get_distribution_strategy`, as in their `train.py`. Two
things are missing there and written here the way TensorFlow documents them: the processes that only serve
(`tf.distribute.Server`), and MirroredStrategy over logical CPUs, of which theirs takes the first only.

Imported by the fork server, which must not start TensorFlow's runtime.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

import tensorflow as tf
import tf_keras as keras
from official.common import distribute_utils
from official.core import base_task, task_factory, train_lib
from official.core import config_definitions as cfg
from official.modeling import optimization
from tensorflow.python.data.experimental.ops import testing

from benchmarks import steps
from official_trainer import config as configuration
from official_trainer.actions.action import Action
from official_trainer.config import optimization as opt
from official_trainer.config import schema
from official_trainer.inputs import without_tuning
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tasks.task import Task
from official_trainer.triggers import Every

for _name in ("sklearn.datasets", "official_trainer.runs.train", "official_trainer.runs.worker"):
    importlib.import_module(_name)

MIRRORED_2 = "mirrored over two logical CPUs"
LEARNING_RATE = 1e-3
ACCELERATOR_MICROSECONDS = 12_500  # twice in a step: the end of the data takes as long as its only element
BATCH = steps.BATCH
EXPERIMENT = "benchmark_of_strategies"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one process is to do.

    Attributes:
      side: `ours` or `garden`.
      strategy: one of the names in `runtime.distribution_strategy`, or `MIRRORED_2`.
      model: one of `MODELS`.
      window_steps: steps per loop.
      num_windows: loops; training ends after them.
      windows_per_summary: loops from one summary to the next.
      folder: for the run directory and the times.
      tf_config: the cluster and this process's place in it; None for a process alone.
      core: the only one that it may use; None for all.
    """

    side: str
    strategy: str
    model: str
    window_steps: int
    num_windows: int
    windows_per_summary: int
    folder: str
    tf_config: dict[str, Any] | None = None
    core: int | None = None

    @property
    def train_steps(self) -> int:
        return self.window_steps * self.num_windows

    @property
    def model_dir(self) -> str:
        return str(Path(self.folder, "run"))

    @property
    def serves(self) -> bool:
        """Whether this process runs TensorFlow's server and nothing else."""
        role = self.tf_config["task"]["type"] if self.tf_config else ""
        return self.strategy == "parameter_server" and role != "chief"

    def note_time(self, step: int) -> None:
        """Keeps when a loop ended, if this process speaks for all."""
        if self.tf_config and self.tf_config["task"] not in SPEAKERS:
            return
        with Path(self.folder, "times.jsonl").open("a") as file:
            file.write(json.dumps([step, time.perf_counter()]) + "\n")


SPEAKERS = ({"type": "chief", "index": 0}, {"type": "worker", "index": 0})


# What both sides share.


def medium_model() -> keras.Model:
    """Six convolutions on 16 × 16 pixels: few weights to send around, and a step of tens of milliseconds."""
    layers = keras.layers
    pixels = keras.Input([64])
    x = layers.UpSampling2D(2)(layers.Reshape([8, 8, 1])(pixels))
    for _ in range(6):
        x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    return keras.Model(pixels, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def accelerated_model() -> keras.Model:
    """The small model, on an accelerator of the worker's own: it takes 25 ms more, and no time of any processor."""
    pixels = keras.Input([64])
    return keras.Model(pixels, steps.build_model()(Accelerator()(pixels)))


class Accelerator(keras.layers.Layer):
    """Waits without computing, on whichever process runs it."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        beat = without_tuning(tf.data.Dataset.range(1).apply(testing.sleep(ACCELERATOR_MICROSECONDS)))
        with tf.control_dependencies([beat.reduce(tf.constant(0, tf.int64), lambda count, one: count + one)]):
            return tf.identity(inputs)


MODELS: dict[str, Callable[[], keras.Model]] = {
    "small": steps.build_model,
    "medium": medium_model,
    "accelerated": accelerated_model,
}


def pipeline(params: Any, input_context: Any = None) -> tf.data.Dataset:
    """What everybody writes who reads the guide to distributed input: each pipeline its part of the examples."""
    images, labels = steps.digits()
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    batch_size = params.global_batch_size
    if input_context is not None:
        batch_size = input_context.get_per_replica_batch_size(batch_size)
        examples = examples.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    examples = examples.cache().shuffle(len(labels)).repeat()
    return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


# Ours.


@dataclasses.dataclass(frozen=True, kw_only=True)
class OurConfig(schema.TaskConfig):
    """Digits."""


@registry.register_task_cls(OurConfig)
class OurTask(Task):
    """Says which digit an image shows, and notes the time after each loop."""

    assignment: Assignment

    def build_model(self) -> keras.Model:
        return MODELS[self.assignment.model]()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return pipeline(params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return steps.cross_entropy(labels, model_outputs)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def build_actions(self, trainer: Any) -> list[Action]:
        return [Clock(self.assignment)]


class Clock(Action):
    """Notes the time after each loop."""

    def __init__(self, assignment: Assignment) -> None:
        self.when = Every(assignment.window_steps)
        self._assignment = assignment

    def on_step(self, run: Any) -> None:
        self._assignment.note_time(run.step)


def our_config(assignment: Assignment) -> schema.ExperimentConfig:
    last = assignment.train_steps
    mirrored_2 = assignment.strategy == MIRRORED_2
    adam = opt.OptimizerConfig(type="adam")
    constant = opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=LEARNING_RATE))
    return schema.ExperimentConfig(
        task=OurConfig(train_data=schema.DataConfig(global_batch_size=BATCH, is_training=True)),
        trainer=schema.TrainerConfig(
            train_steps=last,
            steps_per_loop=assignment.window_steps,
            summary_interval=assignment.windows_per_summary * assignment.window_steps,
            checkpoint_interval=last,
            export=schema.ExportConfig(at_end=False),
            optimizer_config=schema.OptimizationConfig(optimizer=adam, learning_rate=constant),
        ),
        runtime=schema.RuntimeConfig(
            distribution_strategy="mirrored" if mirrored_2 else assignment.strategy,  # type: ignore[arg-type]
            num_logical_cpus=2 if mirrored_2 else None,
        ),
    )


def ours(assignment: Assignment) -> None:
    OurTask.assignment = assignment
    resolved = configuration.resolve(our_config(assignment), experiment=EXPERIMENT)
    run.run(EXPERIMENT, resolved, mode="train", model_dir=assignment.model_dir, quiet=True)


# Model Garden's.


@dataclasses.dataclass
class GardenConfig(cfg.TaskConfig):
    """Digits."""

    train_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=True, global_batch_size=BATCH)
    )


@task_factory.register_task_cls(GardenConfig)
class GardenTask(base_task.Task):
    """Says which digit an image shows."""

    assignment: Assignment

    def build_model(self) -> keras.Model:
        return MODELS[self.assignment.model]()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return pipeline(params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(steps.cross_entropy(labels, model_outputs))

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def garden_config(assignment: Assignment) -> cfg.ExperimentConfig:
    last = assignment.train_steps
    return cfg.ExperimentConfig(
        task=GardenConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=last,
            steps_per_loop=assignment.window_steps,
            summary_interval=assignment.windows_per_summary * assignment.window_steps,
            checkpoint_interval=last,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": LEARNING_RATE}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(
            distribution_strategy="mirrored" if assignment.strategy == MIRRORED_2 else assignment.strategy
        ),
    )


def garden(assignment: Assignment) -> None:
    if assignment.serves:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        task = resolver.task_type, resolver.task_id
        tf.distribute.Server(resolver.cluster_spec(), *task, protocol="grpc", start=True).join()
    GardenTask.assignment = assignment
    params = garden_config(assignment)
    strategy = garden_strategy(assignment)
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=assignment.model_dir)
    counted = iter(range(assignment.window_steps, assignment.train_steps + 1, assignment.window_steps))
    train_lib.run_experiment(
        distribution_strategy=strategy,
        task=task,
        mode="train",
        params=params,
        model_dir=assignment.model_dir,
        train_actions=[lambda output: assignment.note_time(next(counted))],
    )


def garden_strategy(assignment: Assignment) -> tf.distribute.Strategy:
    if assignment.strategy != MIRRORED_2:
        return distribute_utils.get_distribution_strategy(assignment.strategy, num_gpus=0)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


SIDES: dict[str, Callable[[Assignment], None]] = {"ours": ours, "garden": garden}


def main(assignment: Assignment, output: str) -> None:
    """Does what is assigned, in a process of its own, with what it says in a file."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if assignment.core is not None:
        os.sched_setaffinity(0, {assignment.core})
        os.environ["TF_NUM_INTEROP_THREADS"] = "2"  # with one, which a core would mean, a coordinator's worker hangs
    os.environ.pop("TF_CONFIG", None)
    if assignment.tf_config is not None:
        os.environ["TF_CONFIG"] = json.dumps(assignment.tf_config)
    os.chdir(assignment.folder)
    SIDES[assignment.side](assignment)


gc.freeze()  # children need not look through all of TensorFlow for garbage
