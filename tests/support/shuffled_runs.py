"""Runs of 80 steps with every kind of event, with shuffled in-memory data, dropout and averages."""

import functools

from official_trainer.config.optimization import EMAConfig
from tests.support import jobs, toy


class ShuffledTask(toy.InMemory):
    """Of its own, so that a test can change it."""


resolve = functools.partial(jobs.resolved, "toy_run")
do = toy.runs_of(
    "toy_run", ShuffledTask, train_steps=80, steps_per_loop=10, summary_interval=20, checkpoint_interval=20,
    validation_interval=40, best_checkpoint_eval_metric="accuracy", ema=EMAConfig(average_decay=0.9),
)  # fmt: skip
