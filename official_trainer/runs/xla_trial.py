"""The trial of `runtime.enable_xla: auto`: whether training steps are faster with XLA, found before the first of them.

Owns: when there is a trial, how it measures, what it concludes. Does not own: where the choice is kept
(`xla_choice.py`).

XLA rounds differently, so a run goes on as it began: a restart reads the choice, and tries nothing. The trial trains
trainers of its own, which are gone before that of the run is built from the same seeds.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import time

from official_trainer.config import resolve
from official_trainer.distributed.strategy import DeviceError, strategy_name
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras, tf
from official_trainer.runs import xla_choice
from official_trainer.runs.build import build
from official_trainer.runs.job import Job
from official_trainer.runs.recorded import step_time_text
from official_trainer.runs.xla_choice import XlaChoice

AT_MOST = 0.9
"""XLA is chosen if a step under it takes at most so much of the time of another one: less may be chance."""

_WINDOW_SECONDS, _TIMED_SECONDS, _MAX_WINDOWS = 0.2, 0.8, 4


def choose(job: Job) -> XlaChoice | None:
    """Returns the choice of a run that is about to train: as recorded, or from a trial; None without `auto`."""
    if job.prebuilt is not None or job.config.runtime.enable_xla != "auto":
        return None
    if job.cluster is not None and len(job.cluster.training) > 1:  # as each of them concludes by itself
        return XlaChoice(enables=False, found="several processes train, and it is tried in one alone")
    if strategy_name(job.config.runtime, job.cluster) == "tpu":
        return XlaChoice(enables=False, found="XLA compiles the steps of a TPU anyway")
    return xla_choice.of_run(job.model_dir) or _tried(job)


def _tried(job: Job) -> XlaChoice:
    try:
        plain = seconds_per_step(job, enable_xla=False)
        try:
            compiled = seconds_per_step(job, enable_xla=True)
        except (tf.errors.OpError, DeviceError) as error:
            reason = " ".join(str(error).split()).removeprefix("runtime.enable_xla: ")
            return XlaChoice(enables=False, found=f"XLA cannot compile the step ({reason[:200]})")
    finally:
        keras.backend.clear_session()  # layers of the run have the names that they would have had
        gc.collect()
    found = f"a step takes {step_time_text(compiled)} with XLA and {step_time_text(plain)} without, tried before step 1"
    return XlaChoice(enables=compiled <= AT_MOST * plain, found=found)


def seconds_per_step(job: Job, *, enable_xla: bool) -> float:
    """Returns how long a training step takes, traced and compiled before, with a trainer that is dropped.

    The fastest of a few windows counts, each as long as those of the run at most, and about a second in all.
    """
    resolved = resolve(job.config, experiment=job.experiment, sets=[f"runtime.enable_xla={str(enable_xla).lower()}"])
    with tempfile.TemporaryDirectory(prefix="official-trainer-") as folder:
        trainer = build(dataclasses.replace(job, resolved=resolved, model_dir=folder), trains=True)
        trainer.initialize()
        with trainer.train_iterator.on_end("repeat"):
            return _shortest(trainer, job.config.trainer.steps_per_loop)


def _shortest(trainer: Trainer, steps_per_loop: int) -> float:
    _seconds(trainer, 1)
    steps, times = 1, [_seconds(trainer, 1)]
    while times[-1] < _WINDOW_SECONDS and steps < steps_per_loop:
        steps = min(2 * steps, steps_per_loop)
        times = [_seconds(trainer, steps)]
    while sum(times) < _TIMED_SECONDS and len(times) < _MAX_WINDOWS:
        times.append(_seconds(trainer, steps))
    return min(times) / steps


def _seconds(trainer: Trainer, num_steps: int) -> float:
    began = time.perf_counter()
    trainer.run_steps(num_steps)
    return time.perf_counter() - began
