"""The modes that train: the loop with everything around it that a run directory needs.

Owns: what a training run writes beside checkpoints, what it says on the console, and that its end is recorded whatever
way it ends. Does not own: the order of events (`loop.py`), the parts (`build.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer import config as configuration
from official_trainer import files, registry
from official_trainer.build import build, export_best, export_last, store_of
from official_trainer.errors import ExitCode, UserError
from official_trainer.job import Job
from official_trainer.lazy import tf
from official_trainer.loop import Hooks, Loop, LoopState
from official_trainer.modes import TRAINING_MODES
from official_trainer.record import Launch, RunRecord, claim
from official_trainer.stopping import StopRequest
from official_trainer.tracking import Trackers, flatten
from official_trainer.tracking.console import Console, format_number
from official_trainer.tracking.jsonl import JsonlTracker, read_rows
from official_trainer.tracking.tensorboard import TensorBoardTracker
from official_trainer.trainer import Trainer


def train(job: Job) -> dict[str, float]:
    """Trains, in the modes that do, from where the run directory stands to the end."""
    claim(job.model_dir, job.experiment)
    workspace = registry.find_workspace()
    launch = Launch(
        experiment=job.experiment,
        mode=job.mode,
        argv=job.argv,
        config_digest=configuration.digest(job.config),
        workspace=None if workspace is None else str(workspace),
    )
    session = _Session(job, RunRecord(job.model_dir, launch))
    with StopRequest() as stop, session.outcome_recorded():
        session.run(stop)
    return session.metrics


class _Session:
    """One process's part in a run: the loop, and what the loop's events mean for the run directory."""

    def __init__(self, job: Job, record: RunRecord) -> None:
        self._job = job
        self._record = record
        settings = job.config.trainer
        self._console = Console(sys.stdout, end_step=settings.train_steps or None, quiet=job.quiet)
        self._board = TensorBoardTracker(job.model_dir, folders={"validation": settings.validation_summary_subdir})
        self._rows = JsonlTracker(job.path("metrics.jsonl"))
        # The row in metrics.jsonl comes last: it says that everything about an evaluation is done.
        self._trackers = Trackers([self._board, self._console, self._rows])
        self._heartbeat = Heartbeat(HEARTBEAT_SECONDS)
        self._has_started = False
        self.metrics: dict[str, float] = {}

    @contextlib.contextmanager
    def outcome_recorded(self) -> Iterator[None]:
        """Writes how the process began and how it ended, whatever way it ended."""
        self._record.start()
        try:
            yield
        except BaseException as error:
            exit_code = error.exit_code if isinstance(error, UserError) else ExitCode.FAILED
            self._record.finish(exit_code) if self._has_started else self._record.refuse(exit_code)
            raise
        self._record.finish(ExitCode.DONE, self.metrics)

    def run(self, stop: StopRequest) -> None:
        """Builds the parts and runs the loop."""
        job = self._job
        if not files.exists(job.path("params.yaml")):
            write_params(job)  # a restart replaces them once it has restored
        self._record.phase("build")
        evaluates = TRAINING_MODES[job.mode]
        trainer = build(job, trains=True, keeps_best=evaluates != "never")
        if evaluates != "never":
            trainer.check_monitored_metric()
        with contextlib.closing(self._trackers):
            store = store_of(job, trainer)
            loop = Loop(trainer, store, self._trackers, evaluate=evaluates, hooks=self._hooks(trainer), stop=stop)
            logs = loop.run()
        self._console.message(self._closing_line(loop.state.step))
        self.metrics = flatten(logs) or _last_row(self._rows.path)

    def _hooks(self, trainer: Trainer) -> Hooks:
        if trainer.checkpoint_exporter is not None:
            trainer.checkpoint_exporter.on_new_best = functools.partial(self._on_new_best, trainer)
        return Hooks(
            on_start=functools.partial(self._on_start, trainer),
            on_phase=self._record.phase,
            on_window=self._on_window,
            before_save=lambda step: self._trackers.flush(),
            on_save=self._record.checkpoint,
            has_evaluation=lambda step: self._rows.has_row(step, "validation"),
            export=functools.partial(self._on_end, trainer),
        )

    def _on_start(self, trainer: Trainer, state: LoopState) -> None:
        self._has_started = True
        write_params(self._job)
        self._board.text("config", _as_markdown(configuration.dump(self._job.resolved)))
        devices = [device.name for device in tf.config.list_logical_devices()]
        self._record.describe(devices=devices, start_step=state.start_step, end_step=state.end_step)
        self._console.message(self._opening_line(trainer, state.start_step))

    def _on_window(self, state: LoopState, num_steps: int, seconds: float, loss: float) -> None:
        examples = num_steps * self._job.config.task.train_data.global_batch_size
        self._console.end_step = state.end_step
        self._console.progress(state.step, loss=loss, examples_per_second=examples / max(seconds, 1e-9))
        if self._heartbeat.is_due(time.monotonic()):
            self._record.phase("train", state.step)

    def _on_new_best(self, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
        best = trainer.checkpoint_exporter
        self._record.set_best(best.metric, best.value, step)
        if self._job.config.trainer.export.best:
            export_best(self._job, trainer, step, logs)

    def _on_end(self, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
        if self._job.config.trainer.export.at_end:
            # A restart that finds everything else done has no results of its own.
            export_last(self._job, trainer, step, logs or _last_row(self._rows.path))

    def _opening_line(self, trainer: Trainer, start_step: int) -> str:
        """Says what runs on what, and from where."""
        count = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
        replicas = trainer.strategy.num_replicas_in_sync
        where = f"{replicas} replicas" if replicas > 1 else "one device"
        start = f"continuing from step {start_step}" if start_step else "starting"
        return f"{self._job.experiment}: {count:,} parameters on {where}, {start} in {self._job.model_dir}"

    def _closing_line(self, step: int) -> str:
        """Says what came of the run and where it lies."""
        parts = [f"finished at step {step}"]
        if (best := self._record.best) is not None:
            parts.append(f"best {best['metric']} {format_number(float(best['value']))} at step {best['step']}")
        return f"{', '.join(parts)}: {self._job.model_dir}"


HEARTBEAT_SECONDS = 1.0
"""How often `status.json` is brought up to date while training."""


@dataclasses.dataclass
class Heartbeat:
    """Due when `interval_seconds` have passed since it was last due."""

    interval_seconds: float
    last_seconds: float = float("-inf")

    def is_due(self, now_seconds: float) -> bool:
        """Whether it is time again at `now_seconds`; if so, counts from there."""
        if now_seconds - self.last_seconds < self.interval_seconds:
            return False
        self.last_seconds = now_seconds
        return True


def write_params(job: Job) -> None:
    """Writes `params.yaml`; what an earlier start with another config wrote there is kept as `params.<n>.yaml`."""
    path = job.path("params.yaml")
    files.remove_temporaries(path)
    text = configuration.dump(job.resolved, origins=True)
    before = files.read_text(path) if files.exists(path) else text
    if before != text:
        number = next(n for n in itertools.count(1) if not files.exists(job.path(f"params.{n}.yaml")))
        files.write_text_atomically(job.path(f"params.{number}.yaml"), before)
    files.write_text_atomically(path, text)


def _as_markdown(yaml: str) -> str:
    return "".join(f"    {line}\n" for line in yaml.splitlines())


def _last_row(path: str) -> dict[str, float]:
    """Returns the numbers of the newest row, an evaluation's before training's, for a run with nothing left to do."""
    rows = read_rows(path) if files.exists(path) else []
    if not rows:
        return {}
    newest = max(rows, key=lambda row: (row["step"], row["split"] == "validation"))
    return {name: value for name, value in newest.items() if name not in ("step", "split", "time")}
