"""An experiment as a Program: its Task, model, optimizer and data, and the config of what was tried.

Owns: building them as a run does, its numbers under Keras's names, and `to_config`. Does not own: running calls
(`compiled_model.py`), or the meaning of the experiment's config.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer import config as configuration
from official_trainer.config.optimization import ConstantLrConfig, LrConfig, WarmupConfig
from official_trainer.garden.to_garden import with_garden_objects
from official_trainer.inputs import DataError
from official_trainer.lazy import keras
from official_trainer.program.compiled_model import CompiledModel
from official_trainer.program.data import ArgumentError, CallData, Own, Source
from official_trainer.program.settings import Settings
from official_trainer.program.trainer import BESIDE_METRICS, ProgramTrainer
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import registry, returned
from official_trainer.tasks.task import split_inputs
from official_trainer.tracking import points

_LOSSES = {"training_loss": "loss", "validation_loss": "loss"}


class TaskNumbers:
    """The numbers of an experiment's Task that callbacks and the history get, with Keras's name for the loss."""

    def __init__(self, trainer: Any) -> None:
        """Takes the Task's trainer."""
        self._trainer = trainer

    def reported(self, logs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        """Returns the entries of flat logs for callbacks and the history, the loss first."""
        losses = {_LOSSES[name]: value for name, value in logs.items() if name in _LOSSES}
        others = {name: value for name, value in logs.items() if name not in (*_LOSSES, *BESIDE_METRICS)}
        return losses | {name: value for name, value in others.items() if not name.startswith("best_")}

    def evaluated(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the same for the logs that an evaluation has returned, with its media."""
        return self.reported(points(logs), training=False)

    def current(self, *, training: bool) -> dict[str, Any]:
        """Returns the current results of the metrics."""
        trainer = self._trainer
        loss, metrics = trainer.validation_loss, trainer.validation_metrics
        found = [trainer.train_loss, *trainer.train_metrics] if training else [loss, *metrics]
        return self.reported({metric.name: np.asarray(metric.result()).tolist() for metric in found}, training=training)

    def of_own_step(self, *, training: bool) -> dict[str, Any]:
        """Returns nothing: the metrics of a Task have all its numbers."""
        return {}

    def reset_training(self) -> None:
        """Resets the metrics of training."""
        self._trainer.train_loop_end()


class ExperimentModel(CompiledModel):
    """The model of an experiment.

    Size: what a call has to know of the calls before it.
    """

    def __init__(
        self, name: str, config_file: str | Sequence[str], params_override: str | Sequence[str], model_dir: str
    ) -> None:
        """Builds the parts of an experiment in the order of a run; its config is resolved as by `train.py`.

        Raises:
          ArgumentError: it has several tasks.
          ConfigError: there is no such experiment, or its config has a problem.
          DeviceError: the devices are not there.
        """
        base = registry.get_config(name, registry.find_workspace())
        files = [config_file] if isinstance(config_file, str) and config_file else config_file
        overrides = [params_override] if isinstance(params_override, str) and params_override else params_override
        resolved = configuration.resolve(base, experiment=name, config_files=files, params_overrides=overrides)
        if hasattr(resolved.config.task, "task_routines"):
            raise ArgumentError(f"{name} has several tasks, but a Program has one; run it with train.py")
        base = resolved.config
        if base.trainer.train_epochs is not None:  # each of its epochs ends with the data; `fit` may go on
            base = base.replace(trainer=base.trainer.replace(on_data_end="repeat"))
        settings = Settings(base=base, model_dir=model_dir, experiment=name)
        data: CallData = {True: None, False: None}

        def build() -> tuple[keras.Model, Any]:
            config = with_garden_objects(settings.base)
            task = returned.task_of(registry.get_task_cls(settings.base.task), config.task, settings.model_dir)
            model = returned.model_of(task)
            # The model has its optimizer, where callbacks look for it, hidden from Keras's tracking: checkpoints must
            # equal those of a run, which contain the optimizer once.
            object.__setattr__(model, "optimizer", returned.optimizer_of(task, config, model))
            return model, task

        model, task = settings.build(build)
        self._build_inputs = task.build_inputs
        own = Own(None, task.build_inputs)

        def build_inputs(params: Any, input_context: Any = None) -> Any:  # of the call that runs
            return (data[params.is_training] or own).build_inputs(params, input_context)

        task.build_inputs = build_inputs
        super().__init__(model, settings, task, data)
        self._changes = _Changes(model)

    def _build_trainer(self, data: Source) -> ProgramTrainer:
        parts = (with_garden_objects(self.settings.config(self.model)), self._task, self.model, self.model.optimizer)
        return ProgramTrainer(*parts, keeps_record=bool(self.settings.model_dir), numbers=TaskNumbers)

    def _infer(self, batch: Any) -> Any:
        features = batch[0] if len(batch) == 1 else split_inputs(batch)[0]
        return self._task.inference_step(features, self.model)

    def _check_batches(self, data: Source) -> None:
        """Refuses batches that replicas, or micro-batches, cannot share; the mean over replicas weighs them equally."""
        super()._check_batches(data)
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        for what, size in data.batch_sizes().items():
            if size % replicas:
                raise ArgumentError(f"{replicas} replicas cannot share the {size} examples of {what} equally")

    # Data.

    def own_training(self, steps_per_epoch: int | None) -> Source:
        """Returns the experiment's own training data.

        Args:
          steps_per_epoch: batches of an epoch; None for those of a pass over the data.

        Raises:
          ArgumentError: the length of an epoch is unknown.
        """
        own = Own(self._section("train_data"), self._build_inputs, steps_per_epoch)
        if steps_per_epoch is None:
            self._data[True] = own
            try:
                steps = self._prepare_trainer(own).train_iterator.steps_per_epoch()
            except DataError:
                steps = None
            if steps is None:
                raise ArgumentError("the length of an epoch of the data is unknown; give fit(steps_per_epoch=…)")
            own.cut(math.ceil(steps), epochs=1)
        return own

    def own_validation(self) -> Source | None:
        """Returns the experiment's own validation data; None if it has none."""
        section = self._section("validation_data")
        steps = self.settings.base.trainer.validation_steps
        return None if section is None else Own(section, self._build_inputs, steps if steps > 0 else None)

    def _section(self, name: str) -> Any:
        return getattr(with_garden_objects(self.settings.base).task, name, None)

    # What was tried.

    def _record_training(self, data: Source) -> None:
        self._changes.record(data)

    def to_config(self) -> Any:
        """Returns the experiment's config with what was changed in the notebook.

        Raises:
          ArgumentError: no config can describe what was tried.
        """
        steps = 0 if self._trainer is None else int(self._trainer.global_step.numpy())
        config = self.settings.base
        return self.settings.resolved(config.replace(trainer=self._changes.apply(config.trainer, steps))).config


_RATE_CHANGED = "its learning rate was changed during training; set trainer.optimizer_config.learning_rate instead"


class _Changes:
    """What a notebook has changed of an experiment, and whether a config can describe it."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._at_start = [variable.numpy() for variable in kerases.of(model).variables(model)]
        self._configured_rate = self._tried_rate = _rate(model.optimizer)
        self._has_begun = False
        self._problem = ""  # why no config can describe what was tried

    def record(self, data: Source) -> None:
        """Records the data, the learning rate and the weights with which a call trains."""
        if not isinstance(data, Own):
            self._problem = "it was trained on data passed to a call; build that data in build_inputs of the Task"
        rate = _rate(self._model.optimizer)
        if self._has_begun:
            self._problem = self._problem or (_RATE_CHANGED if rate != self._tried_rate else "")
            return
        self._has_begun, self._tried_rate = True, rate
        values = zip(self._at_start, kerases.of(self._model).variables(self._model), strict=False)
        if any((before != variable.numpy()).any() for before, variable in values):
            self._problem = "its weights were set in the notebook; name their checkpoint by task.init_checkpoint"

    def apply(self, trainer: Any, steps: int) -> Any:
        """Returns the section `trainer` with the number of steps and the learning rate that were tried.

        Raises:
          ArgumentError: no config can describe what was tried.
        """
        rate = _rate(self._model.optimizer)
        if self._problem or (self._has_begun and rate != self._tried_rate):
            raise ArgumentError(f"to_config: no config can describe what was tried: {self._problem or _RATE_CHANGED}")
        if steps:
            trainer = trainer.replace(train_steps=steps, train_epochs=None)
        if rate is not None and rate != self._configured_rate:
            constant = LrConfig(type="constant", constant=ConstantLrConfig(learning_rate=rate))
            optimizer_config = trainer.optimizer_config.replace(learning_rate=constant, warmup=WarmupConfig())
            trainer = trainer.replace(optimizer_config=optimizer_config)
        return trainer


def _rate(optimizer: Any) -> float | None:
    """Returns the learning rate, in the fewest digits that give the same float32; None if it follows a schedule."""
    rate = kerases.of(optimizer).rate(optimizer)
    if "LearningRateSchedule" in kerases.kinds(rate):
        return None
    return float(str(np.float32(rate.numpy() if hasattr(rate, "numpy") else rate)))
