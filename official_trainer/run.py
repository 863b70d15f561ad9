"""The composition root: builds every part of a run from its config, in order, and hands over to the loop.

Owns: the modes, what each of them builds, what a run directory holds, and which exit code a failure means.
Does not own: anything that happens in between; this is the only module that knows every part.

Importing it does not import TensorFlow, so everything that can be refused without it is refused first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer import files, registry
from official_trainer.config import ConfigError, Problem, Resolved
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import load
from official_trainer.record import Launch, RunRecord, claim
from official_trainer.stopping import StopRequest
from official_trainer.tracking import Trackers, flatten
from official_trainer.tracking.console import Console, format_number
from official_trainer.tracking.jsonl import JsonlTracker, read_rows
from official_trainer.tracking.tensorboard import TensorBoardTracker

if TYPE_CHECKING:
    from official_trainer.best import BestCheckpoint
    from official_trainer.checkpoints import CheckpointStore
    from official_trainer.loop import Evaluates, Hooks
    from official_trainer.preflight import CheckStep
    from official_trainer.trainer import Trainer

_logger = logging.getLogger(__name__)

TRAINING_MODES: Mapping[str, Evaluates] = {"train": "never", "train_and_eval": "interval", "train_and_post_eval": "end"}
"""Modes that train, and when each evaluates."""

MODES = (*TRAINING_MODES, "eval", "continuous_eval", "continuous_train_and_eval")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: an experiment, its config, and where it leaves what it makes."""

    experiment: str
    resolved: Resolved
    model_dir: str
    mode: str
    quiet: bool = False
    argv: Sequence[str] = ()

    @property
    def config(self) -> Any:
        """The resolved config."""
        return self.resolved.config

    @property
    def metadata(self) -> dict[str, Any]:
        """What every checkpoint's manifest says about the run."""
        return {"experiment": self.experiment, "config_digest": configuration.digest(self.config)}

    def path(self, *names: str) -> str:
        """Returns a path inside the run directory."""
        return files.join(self.model_dir, *names)


def run(
    experiment: str,
    resolved: Resolved,
    *,
    mode: str,
    model_dir: str,
    quiet: bool = False,
    checkpoint: str | None = None,
    argv: Sequence[str] = (),
) -> dict[str, float]:
    """Does what `mode` says and returns the metrics.

    Args:
      experiment: registered name.
      resolved: its config.
      mode: one of `MODES`.
      model_dir: the run directory.
      quiet: whether nothing is printed while it runs.
      checkpoint: for `eval`: `latest`, `best` or a step; default `latest`.
      argv: the command line, for the record.

    Raises:
      UserError: with the exit code that says what kind of failure it was.
    """
    job = Job(experiment=experiment, resolved=resolved, model_dir=model_dir, mode=mode, quiet=quiet, argv=tuple(argv))
    check_ready(job)
    if mode in TRAINING_MODES:
        return train(job)
    from official_trainer import following

    if mode == "eval":
        return following.evaluate(job, checkpoint or "latest")
    return following.continuous_eval(job) if mode == "continuous_eval" else following.continuous_train_and_eval(job)


def check_ready(job: Job) -> None:
    """Refuses, before TensorFlow is imported, what could only fail later.

    Raises:
      UserError: the mode is unknown, or the config lacks what the mode needs.
    """
    if job.mode not in MODES:
        near = configuration.nearest(job.mode, MODES)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ModeError(f"--mode: there is no mode {job.mode!r}; modes are {', '.join(MODES)}{hint}")
    registry.get_task_cls(job.config.task)
    if job.mode not in ("eval", "continuous_eval") and (problems := list(_training_problems(job))):
        raise ConfigError(problems)


class ModeError(UserError, ValueError):
    """There is no such mode."""

    exit_code = ExitCode.CONFIG


def _training_problems(job: Job) -> Iterator[Problem]:
    trainer = job.config.trainer

    def problem(path: str, what: str, fix: str) -> Problem:
        return Problem(what=what, path=path, fix=fix, origin=job.resolved.origin(path))

    if not trainer.train_steps and trainer.train_epochs is None:
        yield problem("trainer.train_steps", "is 0, so there is nothing to train", "set it, or trainer.train_epochs")
    if job.mode == "continuous_train_and_eval" and not job.config.task.init_checkpoint:
        yield problem("task.init_checkpoint", "is not set", f"{job.mode} starts from the checkpoints of that directory")
    optimization = trainer.optimizer_config
    for section in ("optimizer", "learning_rate"):
        if getattr(optimization, section).type is None:
            path = f"trainer.optimizer_config.{section}.type"
            yield problem(path, "is not set, and training needs one", f"for example {path}={_EXAMPLES[section]}")


_EXAMPLES = {"optimizer": "adam", "learning_rate": "constant"}


# Building. From here on TensorFlow is needed.


def build(job: Job, *, keeps_best: bool = False) -> Trainer:
    """Returns the trainer of a job: strategy, task, model, optimizer, and the keeper of its best checkpoint.

    Args:
      job: what to build.
      keeps_best: whether evaluations may replace the best checkpoint.
    """
    load("tensorflow")  # before anything else imports it, so that it comes without Keras 3
    from official_trainer import distribute
    from official_trainer.trainer import Trainer

    config = job.config
    distribute.configure_process(config.runtime)
    strategy = distribute.build_strategy(config.runtime)
    _check_batch_sizes(config, strategy.num_replicas_in_sync)
    with strategy.scope():
        task = registry.get_task_cls(config.task)(config.task, logging_dir=job.model_dir)
        model = task.build_model()
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        best = _best_checkpoint(job) if keeps_best else None
        return Trainer(config, task, model, optimizer, checkpoint_exporter=best)


def store_of(job: Job, trainer: Trainer) -> CheckpointStore:
    """Returns the store of the run directory."""
    from official_trainer.checkpoints import CheckpointStore

    return CheckpointStore(
        job.model_dir, trainer.checkpoint, max_to_keep=job.config.trainer.max_to_keep, metadata=job.metadata
    )


def _best_checkpoint(job: Job) -> BestCheckpoint | None:
    from official_trainer.best import BestCheckpoint

    trainer = job.config.trainer
    if not trainer.best_checkpoint_eval_metric:
        return None
    return BestCheckpoint(
        job.path(trainer.best_checkpoint_export_subdir),
        metric=trainer.best_checkpoint_eval_metric,
        comp=trainer.best_checkpoint_metric_comp,
        metadata=job.metadata,
    )


def _check_batch_sizes(config: Any, num_replicas: int) -> None:
    """Refuses batches that do not divide over the replicas before a model is built."""
    from official_trainer.inputs import InputContext

    context = InputContext(num_replicas_in_sync=num_replicas)
    for data in (config.task.train_data, config.task.validation_data):
        context.get_per_replica_batch_size(data.global_batch_size)


def export_best(job: Job, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
    """Exports the weights that are in the model now, as those of a new best checkpoint."""
    from official_trainer import export

    directory = job.path("export", "best")
    export.save(files.join(directory, str(step)), trainer.task, trainer.model, step=step, metrics=logs)
    export.keep_newest(directory, job.config.trainer.export.max_to_keep)


def export_last(job: Job, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
    """Exports the model, with averaged weights if the run averages, unless this step is exported already."""
    from official_trainer import export, tracking

    directory = job.path("export", "saved_model")
    if export.exported_step(directory) == step:
        return
    with trainer.weights_averaged():
        export.save(directory, trainer.task, trainer.model, step=step, metrics=tracking.flatten(logs))


# Training modes.


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
    from official_trainer.loop import Loop

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
    from official_trainer.lazy import tf
    from official_trainer.loop import Hooks, LoopState

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


# Export.


def export(
    experiment: str,
    resolved: Resolved,
    *,
    model_dir: str,
    checkpoint: str = "latest",
    output_dir: str | None = None,
) -> str:
    """Exports a checkpoint of a run as a SavedModel and returns where it is.

    Args:
      experiment: registered name.
      resolved: its config.
      model_dir: the run directory.
      checkpoint: `latest`, `best` or a step.
      output_dir: where to; default `model_dir/export/saved_model`.
    """
    job = Job(experiment=experiment, resolved=resolved, model_dir=model_dir, mode="export", quiet=True)
    registry.get_task_cls(job.config.task)
    from official_trainer import export as exports
    from official_trainer import following

    prefix = following.find_checkpoint(job, checkpoint)
    trainer = build(job)
    following.load_weights(trainer, prefix)
    directory = output_dir or job.path("export", "saved_model")
    with trainer.weights_averaged():
        exports.save(directory, trainer.task, trainer.model, step=int(trainer.global_step.numpy()))
    return directory


# Check.


def check(experiment: str, resolved: Resolved, *, mode: str, model_dir: str) -> Iterator[CheckStep]:
    """Tries everything the run would do and yields each step as it is done; the first that fails is the last."""
    from official_trainer import preflight

    return preflight.check(Job(experiment=experiment, resolved=resolved, model_dir=model_dir, mode=mode))
