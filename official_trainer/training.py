"""The modes that train: the loop with everything around it that a run directory needs.

Owns: what a training run writes beside checkpoints, what it says on the console, and that its end is recorded whatever
way it ends. Does not own: the order of events (`loop.py`), the parts (`build.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer import config as configuration
from official_trainer import files, registry
from official_trainer.build import build, export_best, export_last, store_of
from official_trainer.errors import ExitCode, UserError
from official_trainer.job import TRAINING_MODES, Job
from official_trainer.lazy import tf
from official_trainer.loop import Hooks, Loop, LoopState
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
    record = RunRecord(job.model_dir, launch)
    record.start()
    with StopRequest() as stop, _outcome_recorded(record) as outcome:
        _write_params(job)
        record.phase("build")
        trainer = build(job, keeps_best=TRAINING_MODES[job.mode] != "never")
        outcome.metrics = _run_loop(job, trainer, record, stop)
    return outcome.metrics


def _run_loop(job: Job, trainer: Trainer, record: RunRecord, stop: StopRequest) -> dict[str, float]:
    settings = job.config.trainer
    evaluates = TRAINING_MODES[job.mode]
    console = Console(sys.stdout, end_step=settings.train_steps or None, quiet=job.quiet)
    board = TensorBoardTracker(job.model_dir, folders={"validation": settings.validation_summary_subdir})
    rows = JsonlTracker(job.path("metrics.jsonl"))
    # The row in metrics.jsonl comes last: it says that everything about an evaluation is done.
    trackers = Trackers([board, console, rows])
    with contextlib.closing(trackers):
        board.text("config", _as_markdown(configuration.dump(job.resolved)))
        if evaluates != "never":
            trainer.check_monitored_metric()
        hooks = _hooks(job, trainer, record, console, trackers, rows)
        loop = Loop(trainer, store_of(job, trainer), trackers, evaluate=evaluates, hooks=hooks, stop=stop)
        logs = loop.run()
    console.message(_closing_line(job, record, loop.state.step))
    return flatten(logs) or _last_row(rows.path)


def _opening_line(job: Job, trainer: Trainer, start_step: int) -> str:
    """Says what runs on what, and from where."""
    count = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
    replicas = trainer.strategy.num_replicas_in_sync
    where = f"{replicas} replicas" if replicas > 1 else "one device"
    start = f"continuing from step {start_step}" if start_step else "starting"
    return f"{job.experiment}: {count:,} parameters on {where}, {start} in {job.model_dir}"


def _closing_line(job: Job, record: RunRecord, step: int) -> str:
    """Says what came of the run and where it lies."""
    parts = [f"finished at step {step}"]
    if record.best is not None:
        parts.append(f"best {record.best['metric']} {format_number(float(record.best['value']))}")
        parts[-1] += f" at step {record.best['step']}"
    return ", ".join(parts) + f": {job.model_dir}"


def _hooks(
    job: Job, trainer: Trainer, record: RunRecord, console: Console, trackers: Trackers, rows: JsonlTracker
) -> Hooks:
    batch_size = job.config.task.train_data.global_batch_size
    heartbeat = Heartbeat(HEARTBEAT_SECONDS)

    def on_start(state: LoopState) -> None:
        devices = [device.name for device in tf.config.list_logical_devices()]
        record.describe(devices=devices, start_step=state.start_step, end_step=state.end_step)
        console.message(_opening_line(job, trainer, state.start_step))

    def on_window(state: LoopState, num_steps: int, seconds: float, loss: float) -> None:
        console.end_step = state.end_step
        console.progress(state.step, loss=loss, examples_per_second=num_steps * batch_size / max(seconds, 1e-9))
        if heartbeat.is_due(time.monotonic()):
            record.phase("train", state.step)

    def on_save(step: int) -> None:
        record.checkpoint(step)

    def on_new_best(step: int, logs: Mapping[str, Any]) -> None:
        best = trainer.checkpoint_exporter
        record.set_best(best.metric, best.value, step)
        if job.config.trainer.export.best:
            export_best(job, trainer, step, logs)

    if trainer.checkpoint_exporter is not None:
        trainer.checkpoint_exporter.on_new_best = on_new_best
    return Hooks(
        on_start=on_start,
        on_phase=record.phase,
        on_window=on_window,
        before_save=lambda step: trackers.flush(),
        on_save=on_save,
        has_evaluation=lambda step: rows.has_row(step, "validation"),
        export=lambda step, logs: export_last(job, trainer, step, logs) if job.config.trainer.export.at_end else None,
    )


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


@dataclasses.dataclass
class _Outcome:
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def _outcome_recorded(record: RunRecord) -> Iterator[_Outcome]:
    """Writes how the run ended, whatever way it ended."""
    outcome = _Outcome()
    try:
        yield outcome
    except BaseException as error:
        record.finish(error.exit_code if isinstance(error, UserError) else ExitCode.FAILED)
        raise
    record.finish(ExitCode.DONE, outcome.metrics)


def _write_params(job: Job) -> None:
    """Writes `params.yaml`; what an earlier start with another config wrote there is kept as `params.<n>.yaml`."""
    path = job.path("params.yaml")
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
