"""The mean of the weights of the last checkpoints, evaluated and saved without changing the run.

Owns: which checkpoints are averaged, their mean, and restoring the run's own weights. Does not own: batch-norm
statistics (`batch_norm.py`), moving averages of every step (`tasks/optimization.py`).

The choice of checkpoints must not depend on restarts. When this is due, the checkpoint of that step is not saved yet,
so the model itself is used as the newest one. The others are those at the multiples of `trainer.checkpoint_interval`
before it; they may still be being written, and are waited for. Checkpoints at other steps, which exist because the run
was stopped or an action requested one, are not averaged. Those that are needed are kept regardless of
`trainer.max_to_keep`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.actions.action import Action, Run
from official_trainer.actions.batch_norm import BatchNormStatistics
from official_trainer.actions.export_saved_model import export_folder_problem
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.matching import Matching
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import ActionConfig, Positive, When
from official_trainer.config.folders import folder_problem
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.tasks import export
from official_trainer.tasks import keras as kerases

_logger = logging.getLogger(__name__)


class AverageError(UserError, ValueError):
    """Checkpoints of this run cannot be averaged."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageCheckpointsConfig(ActionConfig):
    """Averages the weights of the last checkpoints, evaluates the mean and saves it to `model_dir/<directory>`.

    The model at the step where this is due counts as the newest checkpoint; the others are those at multiples of
    `trainer.checkpoint_interval` before it, which are kept for this whatever `trainer.max_to_keep` says. If there are
    fewer yet, those are averaged. The run itself goes on as without.

    Attributes:
      last: how many checkpoints are averaged. With 1 the weights are the model's own, for `recalibrate_batch_norm`.
      recalibrate_batch_norm: number of training batches, from the first on, over which the statistics of batch-norm
        layers are computed for the averaged weights. Unset averages the statistics like the weights.
      evaluate: whether the mean is evaluated, as `trainer.validation_steps` says.
      export: whether it is also exported as a SavedModel, to `model_dir/export/<directory>/<step>`.
      directory: folder in `model_dir` for its checkpoints, and the split of its rows in `metrics.jsonl`.
      max_to_keep: how many of its checkpoints and exports are kept, newest first.
    """

    when: When | None = When(at_end=True)
    last: Positive = 5
    recalibrate_batch_norm: Positive | None = None
    evaluate: bool = True
    export: bool = False
    directory: str = "averaged"
    max_to_keep: Positive = 1

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := folder_problem(self.directory) or (self.export and export_folder_problem(self.directory)):
            yield "directory", problem
        if self.last == 1 and self.recalibrate_batch_norm is None:
            yield "last", "is 1, the model as it is; average more, or set recalibrate_batch_norm"

    def build(self) -> AverageCheckpoints:
        return AverageCheckpoints(self)


class AverageCheckpoints(Action):
    """Puts the mean into the model, evaluates and saves it as configured, and restores the model."""

    def __init__(self, config: AverageCheckpointsConfig) -> None:
        self._config = config
        self._statistics: BatchNormStatistics | None = None

    def needed_checkpoints(self, planned: Sequence[int]) -> Sequence[int]:
        return planned[-self._config.last :] if self._config.last > 1 else ()

    def on_start(self, run: Run) -> None:
        self._prepare(run.trainer)

    def _prepare(self, trainer: Any) -> None:
        """Refuses what is not possible; repeated when it is due, because an error at the start may not end the run."""
        if trainer.context.average is not None:
            raise AverageError(
                "trainer.optimizer_config.ema averages the weights already, and evaluation uses that average; "
                f"leave out one of the two, trainer.optimizer_config.ema or the action '{self.name}'"
            )
        if self._config.recalibrate_batch_norm is not None and self._statistics is None:
            self._statistics = BatchNormStatistics(trainer.model, trainer.strategy, trainer.context.streams)

    def on_step(self, run: Run) -> None:
        trainer, config = run.trainer, self._config
        self._prepare(trainer)
        with trainer.checkpoint_state.preserved():
            steps = self._put_in_mean(run)
            if (statistics := self._statistics) is not None and (wanted := config.recalibrate_batch_norm) is not None:
                with trainer.checkpoint_state.preserved():  # layers may change more in training than these statistics
                    first = itertools.islice(trainer.train_iterator.first_batches(), wanted)
                    count = statistics.measure(first, run.step)
                statistics.assign()
                if count < wanted:
                    _logger.warning("%s: the training data holds %d batches, not %d", self.name, count, wanted)
            num_steps = trainer.config.trainer.validation_steps
            logs = trainer.evaluation.run_without_effects(num_steps) if config.evaluate else {}
            self._save(run, steps)
            if config.export:
                folder = files.join(run.model_dir, "export", config.directory)
                numbers = {name: float(value) for name, value in logs.items() if not isinstance(value, Mapping)}
                task, model, kept = trainer.task, trainer.model, config.max_to_keep
                export.save_version(folder, task, model, step=run.step, metrics=numbers, max_to_keep=kept)
        run.tracker.log(config.directory, run.step, {**logs, "averaged_checkpoints": len(steps)})

    def _put_in_mean(self, run: Run) -> list[int]:
        """Assigns the mean to the model; returns the steps that it averages."""
        interval = run.trainer.config.trainer.checkpoint_interval
        earlier = range(run.step - (run.step % interval or interval), 0, -interval)
        wanted = list(itertools.islice(earlier, self._config.last - 1))
        saved = set(run.saved_steps()) if wanted else set()
        mean, steps = _Mean(run.trainer.model), [run.step]
        for step in wanted:
            if step in saved and mean.add(run.model_dir, step):
                steps.append(step)
        mean.put_in()
        if len(steps) < self._config.last:
            _logger.warning(
                "%s: averaging %d checkpoints instead of %d at step %d: %s",
                self.name, len(steps), self._config.last, run.step, ", ".join(map(str, sorted(steps))),
            )  # fmt: skip
        return sorted(steps)

    def _save(self, run: Run, steps: Sequence[int]) -> None:
        directory = files.join(run.model_dir, self._config.directory)
        checkpoint = tf.train.Checkpoint(global_step=run.trainer.global_step, model=run.trainer.checkpoint.model)
        newest = max(run.saved_steps(), default=None)
        facts = None if newest is None else manifest.read(run.model_dir, newest).run
        store = CheckpointStore(directory, checkpoint, max_to_keep=self._config.max_to_keep, run=facts)
        for step in store.steps():
            if step > run.step:  # the run went back; otherwise an older one would be deleted instead of these
                store.delete(step)
        store.save(run.step, extra={"averaged_steps": list(steps)}, overwrite=True)


class _Mean:
    """The mean of a model's floating variables, in float64; the others stay as the model has them."""

    def __init__(self, model: Any) -> None:
        """Begins with the current weights."""
        self._model = kerases.of(model).trackable(model)
        self._variables = [variable for variable in kerases.of(model).variables(model) if variable.dtype.is_floating]
        self._sums = [variable.numpy().astype("float64") for variable in self._variables]
        self._count = 1

    def add(self, directory: str, step: int) -> bool:
        """Adds a checkpoint; returns whether it is complete and of this model."""
        if damage := manifest.damage(directory, step):
            _logger.warning("ckpt-%d is damaged and left out: %s", step, damage)
            return False
        matching = Matching(manifest.prefix(directory, step), {"model": self._model})
        matching.report(items_only=True)
        key_of = {id(live): key for live, key in matching.pairs}
        if lacking := [variable.name for variable in self._variables if id(variable) not in key_of]:
            _logger.warning("ckpt-%d is left out: it holds no %s", step, lacking[0])
            return False
        reader = tf.train.load_checkpoint(matching.prefix)
        for index, variable in enumerate(self._variables):
            self._sums[index] += reader.get_tensor(key_of[id(variable)]).astype("float64")
        self._count += 1
        return True

    def put_in(self) -> None:
        for variable, total in zip(self._variables, self._sums, strict=True):
            variable.assign(tf.cast(total / self._count, variable.dtype))
