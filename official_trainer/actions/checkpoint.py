"""Checkpoints of evaluated models, under configurable names: the best by a metric, or the newest.

Owns: the section, and saving a checkpoint after an evaluation. Does not own: which are kept (`checkpoints/kept.py`),
names (`checkpoints/name_template.py`), the checkpoints from which a run continues (`checkpoints/store.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

from official_trainer import files
from official_trainer.actions.action import KEEPERS, Action, Run
from official_trainer.checkpoints.kept import KeptCheckpoints
from official_trainer.checkpoints.name_template import NameTemplate
from official_trainer.checkpoints.retention import Retention
from official_trainer.config import ActionConfig, ConfigError, Positive, Problem, When
from official_trainer.config.folders import folder_problem
from official_trainer.lazy import tf
from official_trainer.tracking.monitored import Direction, required_value


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig(ActionConfig):
    """Saves what was evaluated (the model, with averaged weights if there are any) after an evaluation, by a name.

    Each lies in a folder of its name, an ordinary checkpoint that `task.init_checkpoint` takes. If two steps have one
    name, the better one has it, or else the newer one. Saved after evaluations only; `when` says after which.

    Attributes:
      directory: folder in `model_dir` where they are; for this action alone.
      template: how they are named. `{epoch:02d}`, `{batch}` and `{step:08d}` count from 1, and any metric of the
        evaluation can be named, such as `{validation_loss:.2f}` or `{dev|accuracy:.3f}`.
      monitor: metric of the evaluation by which the best are kept; `a|b` names `b` inside `a`. Empty keeps the newest.
      mode: whether its higher (`max`) or lower (`min`) values are better; `auto` takes what the metric declares.
      max_to_keep: how many are kept; unset keeps all that were saved.
      save_best_only: whether only what is strictly better than all before is saved.
      initial_value_threshold: only better values of the metric than this are saved.
    """

    directory: str = "checkpoints"
    template: str = "{step:08d}"
    monitor: str = ""
    mode: Literal["auto", "min", "max"] = "auto"
    max_to_keep: Positive | None = 1
    save_best_only: bool = False
    initial_value_threshold: float | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := folder_problem(self.directory):
            yield "directory", problem
        try:
            NameTemplate(self.template)
        except ValueError as error:
            yield "template", str(error)
        if not self.monitor:
            if self.mode != "auto":
                yield "mode", "has no effect without monitor"
            if self.save_best_only:
                yield "save_best_only", "needs monitor: the metric that says what is best"
            if self.initial_value_threshold is not None:
                yield "initial_value_threshold", "has no effect without monitor"

    def build(self) -> Checkpoint:
        return Checkpoint(self)


class Checkpoint(Action):
    """Keeps named checkpoints. Their manifests are the only record, so there is no state to save."""

    when = When(after_eval=True)

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._template = NameTemplate(config.template)
        self._checkpoints: KeptCheckpoints | None = None

    def monitored(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self._config.monitor, *self._template.metrics) if name))

    def on_start(self, run: Run) -> None:
        config = self._config
        if self._template.needs_epochs and run.trainer.train_iterator.place(run.step) is None:
            what = f"template {config.template!r} has the epoch or the batch in it, and the data does not say how long"
            raise ConfigError([Problem(f"{what} an epoch is", "trainer.actions", fix="use {step} instead")])
        direction: Direction = "max"
        if config.monitor:
            limit = config.initial_value_threshold
            chosen = run.trainer.evaluation.chosen_direction
            direction = chosen(config.monitor, config.mode, initial_value_threshold=limit)
        directory = files.join(run.model_dir, config.directory)
        keepers = run.state.shared.setdefault(KEEPERS, [])
        if directory in [getattr(other, "directory", None) for other in (*keepers, run.trainer.checkpoint_exporter)]:
            what = f"{directory} is where other checkpoints are kept too, and each would delete the other's"
            raise ConfigError([Problem(what, "trainer.actions", fix="set another directory")])
        policy = Retention(
            monitor=config.monitor,
            direction=direction,
            max_to_keep=config.max_to_keep,
            save_best_only=config.save_best_only,
            threshold=config.initial_value_threshold,
        )
        self._checkpoints = KeptCheckpoints(directory, policy, template=config.template)
        self._checkpoints.tidy()
        keepers.append(self._checkpoints)

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        assert self._checkpoints is not None, "on_start was not called"
        for name in self._template.metrics:
            required_value(logs, name)
        if self._config.monitor:
            required_value(logs, self._config.monitor, self._checkpoints.policy.direction)
        trainer, checkpoints = run.trainer, self._checkpoints
        epoch_and_batch = trainer.train_iterator.place(run.step) if self._template.needs_epochs else None
        new = checkpoints.candidate(self._template.format(run.step, epoch_and_batch, logs), run.step, logs)
        if not checkpoints.takes(new):
            return
        with trainer.weights_averaged():
            model = trainer.checkpoint.model
            checkpoints.save(new, tf.train.Checkpoint(global_step=trainer.global_step, model=model))
