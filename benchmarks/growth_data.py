"""What there is more and more of in `growth.py`: checkpoints, rows, experiments, fields, runs, files of examples.

Owns: writing each of them once into a folder, as cheaply as that is possible, and in the form that the engine writes.
Does not own: what is measured on them.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import pages, processes
from official_trainer import files
from official_trainer.config import Config, ExperimentConfig, TaskConfig

_STARTED = 1_790_000_000
AFTER_ALL = 10**9
"""A step after all rows."""


def import_all() -> None:
    """Imports what is measured, and executes nothing: this process is forked."""
    for name in (
        *("tensorflow", "tf_keras", "official_trainer.checkpoints.store", "official_trainer.engine.loop"),
        *("official_trainer.inputs.arrays", "official_trainer.inputs.records", "official_trainer.reports.opened"),
        "official_trainer.runs.health.time_account",
        *("official_trainer.engine.consistency", "official_trainer.tracking.tensorboard"),
        *("official_trainer.config.dump", "official_trainer.config.compare", "official_trainer.config.explain"),
        *("tensorboard.plugins.hparams.summary_v2", "tensorboard.plugins.scalar.summary_v2"),
        *("tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"),
    ):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection of a fork copies the pages of all that is imported


def _made(folder: Path) -> bool:
    """Whether a folder is there, with all that belongs into it; creates it otherwise."""
    if folder.exists():
        return True
    folder.mkdir(parents=True)
    return False


# Checkpoints.


def checkpoints(folder: Path, count: int) -> tuple[str, Any]:
    """Returns a directory with so many checkpoints, and what they are of: a small model with Adam's slots."""
    from official_trainer.checkpoints import manifest
    from official_trainer.checkpoints.store import CheckpointStore
    from official_trainer.lazy import keras, tf

    layers = [keras.layers.Dense(64) for _ in range(4)]
    model = keras.Sequential([keras.Input([64]), *layers])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    directory = folder / f"{count}"
    if not _made(directory):
        (directory / files.PARAMS_FILE).write_text("# experiment: digits\ntrainer:\n  train_steps: 5\n")
        store = CheckpointStore(str(directory), checkpoint, max_to_keep=None)
        store.save(1)
        first = manifest.read(str(directory), 1)
        for step in range(2, count + 1):
            named = {}
            for name, described in first.files.items():
                other = name.replace("ckpt-1.", f"ckpt-{step}.")
                shutil.copy(directory / name, directory / other)
                named[other] = described
            text = dataclasses.replace(first, step=step, files=named).to_json()
            (directory / manifest.name(step)).write_text(text)
    return str(directory), checkpoint


# Rows.


def _rows(count: int) -> Iterator[dict[str, Any]]:
    """Yields rows as a run writes them: two of training, and after every tenth an evaluation."""
    for number in range(count):
        step, kind = number // 21 * 100 + (number % 21 + 1) // 2 * 10, number % 21
        about = {"step": step, "split": ("train", "time")[kind % 2], "time": _STARTED + step / 100}
        value = 1 / (step + 1)
        if kind == 20:
            yield {**about, "split": "validation", "accuracy": 1 - value, "validation_loss": value}
        elif kind % 2 == 0:
            losses = dict.fromkeys(("training_loss", "batch_loss", "smoothed_loss", "learning_rate"), value)
            yield {**about, "step": step + 10, "accuracy": 1 - value, **losses}
        else:
            yield {**about, "examples_per_second": 8e4 * value, "wall_seconds": 1.0}


def rows(folder: Path, count: int) -> Path:
    """Returns a run directory with so many rows of metrics."""
    directory = folder / f"{count}"
    if not _made(directory):
        pages.write_record(directory, "1", end=count)
        with (directory / "metrics.jsonl").open("w") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in _rows(count))
    return directory


def events(folder: Path, count: int) -> str:
    """Returns a run directory with so many rows of metrics in TensorBoard's files."""
    from official_trainer.tracking.tensorboard import TensorBoardTracker

    directory = folder / f"events-{count}"
    if not _made(directory):
        tracker = TensorBoardTracker(str(directory))
        for step in range(1, count + 1):
            tracker.log("train", step, {"training_loss": 1 / step})
        tracker.close()
    return str(directory)


# Experiments.

_EXPERIMENT = '''\
"""Experiment {number}."""

import dataclasses

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config{number}(TaskConfig):
    """What is learned.

    Attributes:
      units: of the hidden layer.
    """

    units: int = 64


@register_task_cls(Config{number})
class Task{number}(Task):
    """A classifier."""

    def build_model(self):
        image = keras.Input([64], name="image")
        hidden = keras.layers.Dense(self.task_config.units, activation="relu")(image)
        return keras.Model(image, keras.layers.Dense(10)(hidden))

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((tf.zeros([100, 64]), tf.zeros([100], tf.int32)), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)


@register_config_factory("experiment_{number}")
def experiment():
    """A classifier of digits, number {number}."""
    data = DataConfig(global_batch_size=64, is_training=True)
    return ExperimentConfig(task=Config{number}(train_data=data), trainer=TrainerConfig(train_steps=1000))
'''


def workspace(folder: Path, count: int) -> Path:
    """Returns a workspace with so many experiments, each in a file of its own."""
    directory = folder / f"{count}"
    if not _made(directory / "experiments"):
        for number in range(count):
            (directory / "experiments" / f"number_{number}.py").write_text(_EXPERIMENT.format(number=number))
    return directory


# Fields.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer(Config):
    """A layer.

    Attributes:
      units: how many.
      rate: of dropout.
    """

    units: int = 8
    rate: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideConfig(TaskConfig):
    """A task with as many fields as a file gives it.

    Attributes:
      layers: sections of two fields each.
      weights: numbers by name.
    """

    layers: tuple[Layer, ...] = ()
    weights: dict[str, float] = dataclasses.field(default_factory=dict)


def wide_config() -> ExperimentConfig:
    """Returns the config that a file gives its fields."""
    return ExperimentConfig(task=WideConfig())


def fields_file(folder: Path, count: int) -> Path:
    """Returns a file with so many fields: half of them in sections, half in a mapping."""
    path = folder / f"{count}.yaml"
    if not path.exists():
        layers = [f"  - units: {number + 1}\n    rate: 0.5\n" for number in range(count // 4)]
        weights = [f"    name_{number}: 0.5\n" for number in range(count // 2)]
        path.write_text("".join(["task:\n  layers:\n", *layers, "  weights:\n", *weights]))
    return path


# Runs.


def runs(folder: Path, count: int) -> Path:
    """Returns a folder of so many runs."""
    directory = folder / f"{count}"
    if not directory.exists():
        pages.write_runs(directory, count, num_summaries=10)
    return directory


# Files of examples.


def record_files(folder: Path, count: int) -> str:
    """Returns the pattern of so many files of two records each."""
    directory = folder / f"{count}"
    if not _made(directory):
        from official_trainer.lazy import tf

        first = directory / "first"
        with tf.io.TFRecordWriter(str(first)) as writer:
            writer.write(b"one")
            writer.write(b"two")
        content = first.read_bytes()
        for number in range(count):
            descriptor = os.open(directory / f"{number:06}.tfrecord", os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, content)
            os.close(descriptor)
    return f"{directory}/*.tfrecord"


# Workers.


def accept_all(server: socket.socket) -> None:
    """Accepts connections in a thread, until the process ends."""

    def accept() -> None:
        while True:
            server.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()


def profile(folder: Path, count: int) -> Path:
    """Returns the profile of this repository for Slurm with so many workers, a node for each."""
    path = folder / f"slurm-{count}.yaml"
    changed = {"workers": count, "nodes": count}
    lines = (processes.ROOT / "launch" / "slurm.yaml").read_text().splitlines()
    kept = [line for line in lines if line.partition(":")[0] not in changed]
    path.write_text("\n".join([*kept, *(f"{name}: {value}" for name, value in changed.items()), ""]))
    return path
