"""What a checkpoint costs training: the call, the steps beside it, its bytes on a local disk, and saving often.

All ways save the state of one Trainer, of 463 MB: three dense layers of 3,584 units with both slots of Adam. They keep
two checkpoints and delete the oldest. Before each save the disk is left to finish what it has.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks import harness, jobs, processes
from benchmarks.harness import Promise
from official_trainer import Task
from official_trainer.checkpoints.store import CheckpointStore, StoreOptions
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig
from official_trainer.engine.trainer import Trainer

UNITS, LAYERS, BATCH, KEPT = 3584, 3, 16, 2
STEPS_BEFORE, STEPS_AFTER = 6, 4  # undisturbed steps to compare with; so many at least follow a save
RUN_STEPS = 1200

SYNC, ASYNC, MANAGER = "CheckpointStore, synchronous", "CheckpointStore, asynchronous", "tf.train.CheckpointManager"
CALL, CALL_AND_STEPS, BYTES = "the call (s)", "the call, and what it slows the steps beside it (s)", "files (MB)"
RUN, SAVING, NOT_SAVING = "1,000 steps of digits_cnn (s)", "a save every 200 steps", "none before the end"

ROUNDS = 15
PROMISES = (
    Promise(CALL, ASYNC, SYNC, 0.25),
    Promise(CALL_AND_STEPS, ASYNC, SYNC, 0.35),
    Promise(BYTES, ASYNC, MANAGER, 1.01),
    Promise(RUN, SAVING, NOT_SAVING, 1.03),
)


class DenseTask(Task):
    """Dense layers of many weights, with little to compute."""

    def __init__(self, params: Any, units: int) -> None:
        super().__init__(params)
        self._units = units

    def build_model(self) -> tf_keras.Model:
        x = inputs = tf_keras.Input([self._units])
        for _ in range(LAYERS):
            x = tf_keras.layers.Dense(self._units, activation="relu")(x)
        return tf_keras.Model(inputs, x)

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        batch = np.random.default_rng(0).random((BATCH, self._units), dtype=np.float32)
        return tf.data.Dataset.from_tensors((batch, batch)).repeat()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(labels - model_outputs))


def build_trainer(units: int) -> Trainer:
    data = DataConfig(global_batch_size=BATCH, is_training=True)
    config = ExperimentConfig(task=TaskConfig(train_data=data), trainer=TrainerConfig(steps_per_loop=1))
    task = DenseTask(config.task, units)
    return Trainer(config, task, task.build_model(), tf_keras.optimizers.legacy.Adam(1e-4), evaluate=False)


class Saver(Protocol):
    """One way to save."""

    def save(self, step: int) -> None:
        """Returns when training may go on."""

    def is_done(self, step: int) -> bool:
        """Whether the save is over."""


class Ours:
    """The store of the engine."""

    def __init__(self, directory: str, trainer: Trainer, *, asynchronous: bool) -> None:
        options = StoreOptions(is_asynchronous=asynchronous)
        self._store = CheckpointStore(directory, trainer.checkpoint, max_to_keep=KEPT, options=options)

    def save(self, step: int) -> None:
        self._store.save(step)

    def is_done(self, step: int) -> bool:
        return step in self._store.poll()


class Manager:
    """TensorFlow's manager, as orbit's Controller calls it."""

    def __init__(self, directory: str, trainer: Trainer) -> None:
        checkpoint = tf.train.Checkpoint(model=trainer.model, optimizer=trainer.optimizer)
        self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=KEPT)

    def save(self, step: int) -> None:
        self._manager.save(checkpoint_number=step)

    def is_done(self, step: int) -> bool:
        return True


def stall(trainer: Trainer, saver: Saver, directory: str, numbers: Iterator[int]) -> dict[str, float]:
    """Saves between steps; returns how long `save` keeps training, what it costs with the steps it slows, and bytes.

    Steps follow until the save is over; what they take beyond undisturbed ones is the save's.
    """
    os.sync()
    undisturbed = statistics.median(_seconds_of_step(trainer) for _ in range(STEPS_BEFORE))
    step = next(numbers)
    start = time.perf_counter()
    saver.save(step)
    called = time.perf_counter()
    num_steps, is_done = 0, saver.is_done(step)
    while not is_done or num_steps < STEPS_AFTER:
        trainer.train(tf.constant(1))
        num_steps += 1
        is_done = is_done or saver.is_done(step)
    end = time.perf_counter()
    num_bytes = sum(path.stat().st_size for path in Path(directory).glob(f"ckpt-{step}.*"))
    return {CALL: called - start, CALL_AND_STEPS: end - start - num_steps * undisturbed, BYTES: num_bytes / 1e6}


def _seconds_of_step(trainer: Trainer) -> float:
    start = time.perf_counter()
    trainer.train(tf.constant(1))
    return time.perf_counter() - start


def run(interval: int, num_steps: int) -> dict[str, float]:
    """Trains `digits_cnn`, saving at an interval; returns how long all but the first 200 steps took."""
    steps = {"train_steps": num_steps, "checkpoint_interval": interval, "summary_interval": 100}
    with tempfile.TemporaryDirectory() as folder:
        words = jobs.words_of(jobs.OURS, f"{folder}/run", "digits_cnn", "train", **steps)
        with processes.watched(words) as command:
            command.wait()
            return {RUN: command.wait_for(num_steps) - command.wait_for(200)}


def measure(num_rounds: int, quick: bool) -> harness.Values:
    numbers = itertools.count(1)
    num_steps = 400 if quick else RUN_STEPS
    with tempfile.TemporaryDirectory() as root:
        trainer = build_trainer(8 if quick else UNITS)
        trainer.train(tf.constant(STEPS_BEFORE))
        savers = {
            SYNC: Ours(f"{root}/{SYNC}", trainer, asynchronous=False),
            ASYNC: Ours(f"{root}/{ASYNC}", trainer, asynchronous=True),
            MANAGER: Manager(f"{root}/{MANAGER}", trainer),
        }
        stalls = {
            name: functools.partial(stall, trainer, saver, f"{root}/{name}", numbers) for name, saver in savers.items()
        }
        harness.in_turns(stalls, 2)  # buffers are allocated
        values = harness.in_turns(stalls, num_rounds)
    runs = {SAVING: functools.partial(run, 200, num_steps), NOT_SAVING: functools.partial(run, num_steps, num_steps)}
    return {**values, **harness.in_turns(runs, num_rounds)}
