"""The dry run: everything a run will do, done once with the real config, so that a long run does not fail late.

Owns: the list of steps that `check` takes and how each reports. Does not own: any of the parts it tries.

Nothing is left in `model_dir`: files go to a temporary folder. Several processes may check at the same time, and a run
may begin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.actions.action import LoopState, Run
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.matching import format_bytes
from official_trainer.config.modes import TRAINING_MODES
from official_trainer.engine import non_finite
from official_trainer.engine.first_trace import flops_of_train_step
from official_trainer.engine.recovery import LossBound, NonFiniteError
from official_trainer.errors import UserError
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.runs.build import beside_of, build, schedule_of, store_of, trackers_of
from official_trainer.runs.health.watchdog import Watchdog
from official_trainer.runs.job import Job, check_ready, say_place, warn
from official_trainer.runs.train import check_monitored
from official_trainer.tasks import export, variables
from official_trainer.tasks.contract import length_of
from official_trainer.tracking import Tracker, flatten
from official_trainer.tracking.record import prepare_model_dir


@dataclasses.dataclass(frozen=True)
class CheckStep:
    """The result of one step: a short outcome, or the error that ended the check."""

    name: str
    outcome: str
    seconds: float
    error: BaseException | None = None


def check(job: Job, metrics: Sequence[str] = ()) -> Iterator[CheckStep]:
    """Yields each step as it is done; the first that fails is the last.

    Args:
      job: what is tried.
      metrics: what evaluations have to produce, beside what the config names.
    """
    # A stall, such as of data that never comes, leaves its report beside the other temporary files.
    with contextlib.ExitStack() as held, Watchdog(job.config.runtime, tempfile.gettempdir()) as watchdog:
        for name, step in _DryRun(job, metrics, held, watchdog).steps():
            watchdog.enter(name)
            start = time.monotonic()
            try:
                outcome = step()
            except Exception as error:
                say_place(error, job)
                yield CheckStep(name, "", time.monotonic() - start, error)
                return
            yield CheckStep(name, outcome, time.monotonic() - start)


class _DryRun:
    """The parts of a run, each built by the step that tries it; what is written goes when `held` is closed."""

    def __init__(self, job: Job, metrics: Sequence[str], held: contextlib.ExitStack, watchdog: Watchdog) -> None:
        self._job, self._metrics, self._held, self._watchdog = job, metrics, held, watchdog
        self._scratch = job  # in a temporary folder, once `model_dir` is known to be usable
        self._evaluates = TRAINING_MODES.get(job.mode, "interval") != "never"

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Returns the steps in order."""
        return [
            ("config", self._config),
            ("model_dir", self._model_dir),
            ("build", self._build),
            ("train", self._train),
            *([("evaluate", self._evaluate)] if self._evaluates else []),
            ("monitored metric", self._monitored_metric),
            ("actions", self._actions),
            ("save", self._save),
            ("restore", self._restore),
            ("export", self._export),
        ]

    def _config(self) -> str:
        check_ready(self._job)
        warn(self._job)
        return f"{self._job.experiment}, mode {self._job.mode}"

    def _model_dir(self) -> str:
        folder = self._job.model_dir
        if prepare_model_dir(folder, self._job.experiment, is_shared=self._job.shares_directory) is None:
            self._held.callback(files.remove_if_empty, folder)
        # It is there before the build: tasks write to their logging_dir, Mask R-CNN its annotations.
        scratch = self._held.enter_context(tempfile.TemporaryDirectory(prefix="official-trainer-check-"))
        self._scratch = dataclasses.replace(self._job, model_dir=scratch)
        if self._job.mode in TRAINING_MODES:
            self._job.check_changes()
        free = "unknown space" if files.is_url(folder) else f"{shutil.disk_usage(folder).free / 1e9:.0f} GB"
        return f"{folder} is writable, {free} free"

    def _build(self) -> str:
        self.trainer = build(self._scratch, trains=True, keeps_best=self._evaluates)
        self._watchdog.observe(self.trainer)
        self.schedule = schedule_of(self._job, self.trainer)
        trackers_of(self._scratch)  # which open nothing yet
        count = variables.count(self.trainer.model).trainable
        replicas = self.trainer.strategy.num_replicas_in_sync
        return f"{count:,} trainable parameters on {replicas} replica{'s' if replicas > 1 else ''}"

    def _train(self) -> str:
        self.trainer.initialize()
        logs = self.trainer.train(1)
        loss = float(logs["training_loss"])
        if problem := LossBound.of(self._job.config.trainer).problem(loss, 1):
            lines = non_finite.explain(self.trainer, 1, non_finite.batch_of_step(self.trainer, 1))
            raise NonFiniteError("\n  ".join([problem, *lines]))
        settings, builder = self._job.config.trainer, self.trainer.train_iterator.builder
        dataset, may_end = builder.of_pipeline, settings.train_epochs is not None or settings.on_data_end != "error"
        length = length_of(dataset)
        if not may_end and length is not None and length < math.inf and builder.context is not None:
            last_step = int(length) // builder.context.elements_per_step
            if last_step < settings.train_steps:
                raise DataError(
                    f"{builder.source}: the training data ends at step {last_step}, and trainer.train_steps="
                    f"{settings.train_steps} asks for more; set trainer.on_data_end to repeat (next epoch) or stop "
                    "(end the run there), or repeat the dataset"
                )
        if any(action.publishes for action in self.schedule.actions):
            self.trainer.run_steps(1, publish=True)
        flops = flops_of_train_step(self.trainer)
        counted = [] if flops is None else [f"{flops:.3g} FLOPs"]
        step = "; ".join([", ".join([f"one step, loss {loss:.4g}", *counted]), *map(str, self.trainer.restored)])
        return "\n".join([step, *self._not_finite(builder, self.trainer.train_iterator.batches(0))])

    def _not_finite(self, builder: Any, batches: Iterator[Any]) -> Iterator[str]:
        """Yields the lines about values of the first batch that are not finite, which the loss does not show."""
        for batch in itertools.islice(batches, 1):
            replica_batches = self.trainer.strategy.experimental_local_results(batch)
            filled = getattr(getattr(builder.params, "source", None), "fill_null", {})
            allowed = [name for name, value in filled.items() if value != value]  # NaN
            allowed += getattr(builder.params, "allow_non_finite", ())
            if lines := non_finite.in_batch(replica_batches, allowed=allowed):
                yield from (f"not finite: {line}" for line in lines)
                if hasattr(builder.params, "allow_non_finite"):
                    yield f"if the model handles them, name them in {builder.section}.allow_non_finite"

    def _evaluate(self) -> str:
        self.trainer.evaluation.build_data(self._job.config.trainer.validation_steps)
        logs = flatten(self.trainer.evaluation.run_without_effects(1, own_steps=False))
        bad = [name for name, value in logs.items() if not math.isfinite(value)]
        lines = [f"not finite: {', '.join(bad)}"] if bad else []
        for eval_set in self.trainer.evaluation.sets:
            lines += self._not_finite(eval_set.builder, iter(eval_set.dataset))
        return "\n".join(["one step, " + ", ".join(sorted(logs)), *lines])

    def _monitored_metric(self) -> str:
        wanted = check_monitored(self._job, self.trainer, self.schedule)
        others = {name: "--metric" for name in self._metrics if name not in wanted}
        self.trainer.evaluation.check_monitored(others)
        return ", ".join([*wanted, *others]) or "none is set"

    def _actions(self) -> str:
        state = LoopState(end_step=self._job.config.trainer.train_steps or None)
        run = Run(
            state=state, trainer=self.trainer, model_dir=self._scratch.model_dir, tracker=Tracker(), is_dry_run=True
        )
        self.schedule.start(run)
        return ", ".join(action.name for action in self.schedule.actions)

    def _save(self) -> str:
        store = store_of(self._scratch, self.trainer)
        self.trainer.checkpoint_state.before_save()
        store.save(1)
        store.close()
        size = sum(file["size_bytes"] for file in manifest.read(store.path, 1).files.values())
        return f"{format_bytes(size)} a checkpoint"

    def _restore(self) -> str:
        state = self.trainer.checkpoint_state
        before = _values(state.saved_copies())
        for variable in state.saved_copies().values():
            if variable.dtype.is_floating or variable.dtype.is_integer:
                variable.assign(tf.ones_like(variable))
        report = store_of(self._scratch, self.trainer).restore()
        assert report is not None
        state.after_restore(report)
        changed = [name for name, value in _values(state.saved_copies()).items() if before[name] != value]
        if changed:
            raise CheckError(f"these variables came back with other values: {', '.join(changed[:5])}")
        return "\n".join([f"{len(before)} variables, every bit", *self._other_data()])

    def _other_data(self) -> Iterator[str]:
        """Yields a line if data that starts at a step by itself has another batch there than data that is read over."""
        data, step = self.trainer.train_iterator, 2
        if data.builder.started_at_step:
            whole = itertools.islice(data.batches(0), step, step + 1)
            continued = itertools.islice(data.batches(step), 1)
            if [*map(self._bits, whole)] != [*map(self._bits, continued)]:
                what = f"not exact: a run that continues at step {step} reads another batch than an unbroken one"
                fix = "draw in transform_fn, and shuffle, filter and zip before there are batches"
                yield f"{what}; in build_inputs, {fix}"

    def _bits(self, batch: Any) -> list[Any]:
        tensors = tf.nest.flatten(self.trainer.strategy.experimental_local_results(batch), expand_composites=True)
        return [t.numpy().tolist() if t.dtype == tf.string else t.numpy().tobytes() for t in tensors]

    def _export(self) -> str:
        directory = self._scratch.path("saved_model")
        try:
            with self.trainer.weights_averaged():
                beside = beside_of(self._scratch, self.trainer)
                signatures = export.save(directory, self.trainer.task, self.trainer.model, step=1, beside=beside)
        except export.NoSignaturesError as error:
            if hasattr(self.trainer.task, "build_signatures"):  # Model Garden's tasks have none
                raise
            return f"nothing, as at the end of a run: {error}"
        saved_model = "SavedModel with " + (", ".join(signatures) or "no signature")
        return ", ".join([saved_model, *self._job.config.trainer.export.formats])


class CheckError(UserError, RuntimeError):
    """A restored checkpoint differs from what was saved."""


def _values(variables: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: tf.io.serialize_tensor(variable).numpy() for name, variable in variables.items()}
