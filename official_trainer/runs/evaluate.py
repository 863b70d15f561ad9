"""The modes that read the checkpoints of another process: evaluate one, continuous eval, fine-tune from each.

Owns: waiting for the next checkpoint, when to give up waiting, where the results of a continuous evaluator go, and its
phases for the watchdog. Does not own: evaluating (`engine/evaluation.py`), training (`train.py`), which checkpoint a
word means (`chosen_checkpoint.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.schedule import as_action
from official_trainer.checkpoints import garden, manifest
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.config import ConfigError
from official_trainer.runs.build import (
    RunTrackers,
    best_of,
    build,
    export_best,
    schedule_of,
    store_of,
    trackers_of,
    trackers_of_evaluation,
)
from official_trainer.runs.chosen_checkpoint import find_checkpoint, load_weights, warn_of_gin
from official_trainer.runs.health.watchdog import Watchdog
from official_trainer.runs.job import Job
from official_trainer.runs.lease import EvaluatorLease
from official_trainer.runs.resume.config_changes import OperativeConfig, changes_since, saved_config
from official_trainer.runs.train import check_monitored, train
from official_trainer.stopping import NOTHING_LOST, PreemptedError, StopRequest
from official_trainer.tracking import Point, Tracker, closing, numbers_in, points
from official_trainer.tracking.console import working
from official_trainer.tracking.record import read_run

if TYPE_CHECKING:
    from official_trainer.engine.trainer import Trainer

_logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Pause between two looks for a new checkpoint."""

_OF_RETENTION = ("trainer.max_to_keep", "trainer.keep_checkpoint", "trainer.checkpoint_interval", "trainer.actions")
"""How the fields begin that decide which checkpoints a run keeps."""


def evaluate(job: Job, checkpoint: str) -> dict[str, float]:
    """Evaluates one checkpoint of the run directory, changes nothing there, and returns the metrics.

    It adds to it only the report of a stall, and where the task returns images and such, the folder `eval` with them.
    Without a checkpoint it evaluates the weights of `task.init_checkpoint`, and for a caller that has built the parts
    of the run also first weights.

    Args:
      job: the run.
      checkpoint: `latest`, `best` or a step.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    chosen = None if _takes_first_weights(job, checkpoint) else find_checkpoint(job, checkpoint)
    with Watchdog(job.config.runtime, job.model_dir) as watchdog:
        watchdog.enter("build")
        with working("building the model", quiet=job.quiet):
            trainer = build(job)
        watchdog.observe(trainer)
        with trainer.process_group.leading():
            watchdog.enter("restore", None if chosen is None else chosen[1])
            if chosen is None:
                weights = _first_weights(job, trainer)
                _logger.warning("%s holds no checkpoint; the weights that are evaluated are %s", job.model_dir, weights)
                step = trainer.context.step
            else:
                step = chosen[1]
                load_weights(job, trainer, *chosen)
            watchdog.enter("evaluate", step)
            with working(f"evaluating step {step}", quiet=job.quiet):
                eval_points = _evaluate(job, trainer, step)
    numbers = numbers_in(eval_points)
    trackers = trackers_of_evaluation(job, has_media=len(numbers) < len(eval_points))
    with closing(trackers) as outcome:
        outcome.step, outcome.metrics = step, numbers
        trackers.log("validation", step, eval_points)
    return numbers


def _takes_first_weights(job: Job, checkpoint: str) -> bool:
    """Whether there is no checkpoint, and the job says which weights take its place."""
    has_others = job.prebuilt is not None or bool(getattr(job.config.task, "init_checkpoint", ""))
    if checkpoint != "latest" or not has_others:
        return False
    names = files.list_dir(job.model_dir)  # checkpoints, whole or not, also of another tool
    return not any(name.endswith((".index", ".manifest.json")) for name in names)


def _first_weights(job: Job, trainer: Trainer) -> str:
    """Makes sure that the trainer has its first weights; returns which these are."""
    if trainer.context.step:
        return f"those that its program has trained for {trainer.context.step} steps"
    trainer.initialize()
    init_checkpoint = getattr(job.config.task, "init_checkpoint", "")
    weights = "first weights, which no run has trained"
    if init_checkpoint:
        weights = f"those of task.init_checkpoint={init_checkpoint}"
    return "; ".join([weights, *map(str, trainer.restored)])


def continuous_eval(job: Job, stop: StopRequest) -> dict[str, float]:
    """Evaluates every checkpoint that appears in the run directory, each once, until training has ended.

    Its own rows go to `continuous_eval/metrics.jsonl`, because the training process rewrites the one in the run
    directory when it restarts; TensorBoard files and the best checkpoint go where a training run puts them. The rows
    are also the record of what is evaluated: a checkpoint with a row is done, also after a restart. A lease makes the
    trainer keep the checkpoints that are not. Waiting for a checkpoint is not a stall.
    """
    files.remove_temporaries(job.path("continuous_eval"), "metrics.jsonl")
    trackers = trackers_of(job, beside="continuous_eval")
    with (
        Watchdog(job.config.runtime, job.model_dir) as watchdog,
        EvaluatorLease(job.model_dir, done=trackers.rows.steps("validation")) as lease,
    ):
        watchdog.enter("build")
        trainer = build(job, keeps_best=True, stop=stop)
        watchdog.observe(trainer)
        with trainer.process_group.leading():
            check_monitored(job, trainer)
            stop.listen(lambda: NOTHING_LOST)
            best = best_of(trainer)
            if best is not None:
                exports = functools.partial(export_best, job, trainer) if job.config.trainer.export.best else None
                best.observe(exports, rule=trainer.evaluation.rule_of(best.metric))
                best.tidy()
            return _evaluate_all(job, trainer, trackers, lease, stop, watchdog)


def _evaluate_all(
    job: Job, trainer: Trainer, trackers: RunTrackers, lease: EvaluatorLease, stop: StopRequest, watchdog: Watchdog
) -> dict[str, float]:
    settings, rows = job.config.trainer, trackers.rows
    damaged: set[tuple[int, str]] = set()
    results: dict[str, float] = {}

    def is_done(step: int) -> bool:
        return rows.has_row(step, "validation") or (bool(damaged) and _version(job.model_dir, step) in damaged)

    lock = job.lock(job.model_dir, name="continuous_eval")
    operative = OperativeConfig(job.model_dir, job.mode, job.gin)
    timeout, enter = settings.continuous_eval_timeout, watchdog.enter
    steps = new_checkpoints(job.model_dir, timeout, stop, is_done=is_done, enter=enter)
    with closing(trackers.all) as outcome, contextlib.ExitStack() as stack:
        for number, step in enumerate(steps):
            if number == 0:  # not earlier: the trainer creates the run directory
                stack.enter_context(lock)
                files.make_dirs(job.path("continuous_eval"))
                operative.replace()
                stack.callback(operative.save)
            version = _version(job.model_dir, step)
            try:
                trainer.checkpoint_state.load_weights(job.model_dir, step)
            except (CheckpointError, manifest.UnreadableManifestError, OSError):  # it may have been deleted
                if not (damage := manifest.damage(job.model_dir, step)):
                    raise
                _logger.warning("checkpoint %d cannot be evaluated: %s", step, damage)
                damaged.add(version)  # if it is written again, it is evaluated
                continue
            if not results:  # the first since the start: an earlier process may have died before its row
                trackers.all.describe(job.experiment, configuration.flat(job.config))
                trackers.all.resume("validation", step)
                warn_of_gin(job, job.model_dir, step)
            eval_points = _evaluate(job, trainer, step)
            results = numbers_in(eval_points)
            lock.check_held()
            trackers.all.log("validation", step, eval_points)
            outcome.step, outcome.metrics = step, results
            lease.done(step)
            operative.save()
            end = (read_run(job.model_dir) or {}).get("steps", {}).get("end")  # training may have another config
            if step == (end or settings.train_steps or None):
                break
    if results and not damaged:  # else an older checkpoint may be the newest that is whole
        _delete_kept(job, trainer)
    return results


def _delete_kept(job: Job, trainer: Trainer) -> None:
    """Deletes what the trainer kept for this evaluator; one that lives, or has other settings, does it itself."""
    with contextlib.suppress(ConfigError, LookupError), contextlib.ExitStack() as stack:  # without config or checkpoint
        newest = committed_steps(job.model_dir)[-1]
        if garden.wrote(manifest.find(job.model_dir, newest)):  # another program keeps and deletes them
            return
        changes = changes_since(saved_config(job.model_dir, newest), job.resolved)
        lock = job.lock(job.model_dir)
        if not any(change.path.startswith(_OF_RETENTION) for change in changes) and lock.try_acquire():
            stack.callback(lock.release)
            store_of(job, trainer, schedule_of(job, trainer)).retain()


def _evaluate(job: Job, trainer: Trainer, step: int) -> dict[str, Point]:
    """Evaluates the loaded weights, and calls the actions that were put on the trainer; others belong to training."""
    run = Run(state=LoopState(step=step, start_step=step), trainer=trainer, model_dir=job.model_dir, tracker=Tracker())
    run.outputs = trainer.evaluate(job.config.trainer.validation_steps)
    eval_points = points(run.outputs)
    for action in map(as_action, [*trainer.actions, *(job.prebuilt.actions if job.prebuilt is not None else ())]):
        action.on_eval(run, numbers_in(eval_points))
    return eval_points


def _version(directory: str, step: int) -> tuple[int, str]:
    """Returns the version of a checkpoint: another one of the same step that replaces it has another."""
    try:
        return step, manifest.read(directory, step).created
    except manifest.UnreadableManifestError:
        return step, ""


def new_checkpoints(
    directory: str,
    timeout_seconds: float,
    stop: StopRequest,
    *,
    is_done: Callable[[int], bool],
    enter: Callable[..., object] = lambda phase, step=None: None,
    clock: Any = time,
) -> Iterator[int]:
    """Yields the committed steps of `directory` that are not done, oldest first, as they appear.

    A step that was yielded has to be done, or deleted, when the next one is requested. Ends when the run there is
    finished and everything is done, or when nothing new came for `timeout_seconds`. Logs once that it waits.

    Args:
      directory: a run directory; it may not be there yet.
      timeout_seconds: longest wait for the next checkpoint.
      stop: looked at between checkpoints and while waiting.
      is_done: whether a step has been dealt with.
      enter: called with each phase: `follow` at each look, so that to wait for days is no stall; `evaluate` and a step.
      clock: has `monotonic` and `sleep`, as the module `time`.
    """
    waiting_since = clock.monotonic()
    has_logged = False
    while True:
        enter("follow")
        if stop.reason is not None:
            raise PreemptedError(f"{stop.reason}; the same command continues with the next checkpoint")
        finished = (read_run(directory) or {}).get("status") == "done"  # read before the steps, so that none is missed
        new = [step for step in committed_steps(directory) if not is_done(step)]
        for step in new[:1]:
            enter("evaluate", step)
            yield step
            waiting_since = clock.monotonic()
        if new:
            continue
        if finished:
            return
        if clock.monotonic() - waiting_since > timeout_seconds:
            _logger.warning("no new checkpoint in %s for %g seconds: giving up", directory, timeout_seconds)
            return
        if not has_logged:
            _logger.warning("waiting for a checkpoint in %s, for up to %g seconds", directory, timeout_seconds)
            has_logged = True
        clock.sleep(POLL_SECONDS)


def continuous_train_and_eval(job: Job, stop: StopRequest) -> dict[str, float]:
    """Trains and evaluates from every checkpoint that appears in `task.init_checkpoint`, each in a run of its own.

    The run for checkpoint `N` is `model_dir/from-N`; `model_dir/continuous_train_and_eval.json` collects the results.
    """
    source = os.path.expanduser(job.config.task.init_checkpoint)
    results_path = job.path("continuous_train_and_eval.json")
    files.make_dirs(job.model_dir)
    results: dict[str, Any] = files.read_json(results_path) if files.exists(results_path) else {}
    timeout = job.config.trainer.continuous_eval_timeout
    for step in new_checkpoints(source, timeout, stop, is_done=lambda step: str(step) in results):
        task = job.config.task.replace(init_checkpoint=manifest.prefix(source, step))
        resolved = dataclasses.replace(job.resolved, config=job.config.replace(task=task))
        one = dataclasses.replace(job, resolved=resolved, mode="train_and_eval", model_dir=job.path(f"from-{step}"))
        results[str(step)] = train(one, stop, is_whole_command=False)
        files.write_text_atomically(results_path, json.dumps(results, indent=1) + "\n")
    return results[max(results, key=int)] if results else {}
