"""A program's run of the engine's loop: as a run with a directory, or in memory.

Owns: both ways for a call of `Program.fit` or `Loop`. Does not own: the loop (`engine/loop.py`), or what a run with a
directory keeps (`runs/train.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.store import NoStore
from official_trainer.engine import loop as engine_loop
from official_trainer.engine.events import DueSteps
from official_trainer.runs import train
from official_trainer.runs.job import Job
from official_trainer.stopping import StopRequest
from official_trainer.tracking import Tracker


def run_in_directory(job: Job) -> dict[str, float]:
    """Trains from the newest checkpoint of the run directory on; returns the last metrics."""
    with StopRequest.of(job.config.runtime) as stop:
        return train.train(job, stop, is_whole_command=False)


def run_in_memory(trainer: Any, due: DueSteps, actions: Schedule, extra: Mapping[str, Any] | None = None) -> Any:
    """Trains from the step of the trainer on, and writes nothing; returns the metrics of the last step.

    The caller keeps handling signals: there is nothing to save, and the process may be a notebook's. A run in a
    temporary directory would take half as long again for a call of a few steps.

    Args:
      trainer: of the model.
      due: when what is due.
      actions: in the order in which they are called.
      extra: what they are restored from; None for nothing.
    """
    stop = StopRequest()
    trainer.process_group.use_stop(stop)
    return engine_loop.Loop(
        trainer=trainer,
        store=NoStore(),
        metric_writer=Tracker(),
        due=due,
        actions=actions,
        stop=stop,
        extra=extra or {},
    ).run()
