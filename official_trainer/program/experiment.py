"""An experiment as a Program: its Task, model, optimizer and data in a notebook, and the config of what was tried.

Owns: building them as a run does, its numbers under Keras's names, and `to_config`. Does not own: the calls themselves
(`engine.py`), or what the experiment's config means.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer import config as configuration
from official_trainer.config.optimization import ConstantLrConfig, LrConfig, WarmupConfig
from official_trainer.garden.live import as_read
from official_trainer.inputs import DataError, InputContext
from official_trainer.lazy import keras
from official_trainer.program.callbacks import Epochs
from official_trainer.program.data import ArgumentError, Own, Source
from official_trainer.program.engine import Engine
from official_trainer.program.parts import divided
from official_trainer.program.settings import Settings
from official_trainer.program.task import BESIDE_METRICS
from official_trainer.program.trainer import KerasNumbers, ProgramTrainer
from official_trainer.tasks import registry
from official_trainer.tasks.task import split_inputs
from official_trainer.tracking import flatten

_LOSSES = {"training_loss": "loss", "validation_loss": "loss"}


class TaskNumbers(KerasNumbers):
    """The numbers of an experiment's Task, with Keras's name for the loss."""

    has_task_steps = True  # as in a run: the mean of a Task's losses over no examples is not a number

    def reported(self, logs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        losses = {_LOSSES[name]: value for name, value in logs.items() if name in _LOSSES}
        others = {name: value for name, value in logs.items() if name not in (*_LOSSES, *BESIDE_METRICS)}
        return losses | {name: value for name, value in others.items() if not name.startswith("best_")}

    def evaluated(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        return self.reported(flatten(logs), training=False)

    def current(self, *, training: bool) -> dict[str, Any]:
        trainer = self._trainer
        loss, metrics = trainer.validation_loss, trainer.validation_metrics
        found = [trainer.train_loss, *trainer.train_metrics] if training else [loss, *metrics]
        return self.reported({metric.name: np.asarray(metric.result()).tolist() for metric in found}, training=training)

    def of_own_step(self, *, training: bool) -> dict[str, Any]:
        return {}

    def reset_training(self) -> None:
        self._trainer.train_loop_end()


class _Data:
    """The data of a call: what the caller has given, or what the Task builds."""

    training: Source | None = None
    validation: Source | None = None

    def __init__(self, task: Any) -> None:
        """Takes the task, whose `build_inputs` asks here from now on."""
        self._build = task.build_inputs
        task.build_inputs = self.build_inputs

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns batches of what the caller has given for this call, or the Task's own."""
        source = self.training if params.is_training else self.validation
        if source is None or isinstance(source, Own):
            return self.build_own(params, input_context)
        context = InputContext.adopt(input_context)
        batches = source.batches(context.start_step) if params.is_training else source.one_pass()
        return divided(batches, context.elements_per_step)

    def build_own(self, params: Any, input_context: Any = None) -> Any:
        """Returns what the Task builds, which may leave out `input_context`."""
        takes_context = "input_context" in inspect.signature(self._build).parameters
        return self._build(params, input_context=input_context) if takes_context else self._build(params)


class ExperimentEngine(Engine):
    """Trains and evaluates the model of an experiment."""

    _data: _Data

    def __init__(self, settings: Settings) -> None:
        """Builds the parts of an experiment, in the order of a run.

        Raises:
          DeviceError: the devices are not there.
        """
        self.name = settings.experiment
        self.model, self._task = settings.build(lambda: _parts(settings))
        super().__init__(self.model, settings, _Data(self._task))
        self._at_start = [variable.numpy() for variable in self.model.variables]
        self._configured_rate = self._tried_rate = _rate(self.model.optimizer)
        self._has_begun = False
        self._untold = ""  # what no config can say of what was tried

    def _build_trainer(self, data: Source, *, keeps_record: bool) -> ProgramTrainer:
        parts = (as_read(self._config()), self._task, self._model, self._model.optimizer)
        return ProgramTrainer(*parts, keeps_record=keeps_record, numbers=TaskNumbers)

    def _infer(self, batch: Any) -> Any:
        features = batch[0] if len(batch) == 1 else split_inputs(batch)[0]
        return self._task.inference_step(features, self._model)

    # Data.

    def own_training(self, steps_per_epoch: int | None) -> Own:
        """Returns the experiment's training data, with as many batches as make an epoch.

        Raises:
          ArgumentError: nobody says how many.
        """
        own = Own(self._section("train_data"), self._data.build_own, steps_per_epoch)
        if steps_per_epoch is None:
            self._data.training = own
            try:
                steps = self._ready(own).train_iterator.steps_per_epoch()
            except DataError:
                steps = None
            if steps is None:
                raise ArgumentError("the data does not say how long an epoch is; give fit(steps_per_epoch=…)")
            own.batches_per_epoch = math.ceil(steps)
        return own

    def own_validation(self) -> Own | None:
        """Returns the experiment's validation data; None if it has none."""
        section = self._section("validation_data")
        steps = self._settings.trainer.validation_steps
        return None if section is None else Own(section, self._data.build_own, steps if steps > 0 else None)

    @staticmethod
    def check_arguments(**given: Any) -> None:
        """Refuses arguments about arrays beside the experiment's own data.

        Raises:
          ArgumentError: names the first that is not None.
        """
        if name := next((name for name, value in given.items() if value is not None), None):
            raise ArgumentError(
                f"{name} is for data that the call gives; the experiment's own is as its config says: leave it out, or "
                "use from_experiment(params_override='task.train_data…')"
            )

    def _section(self, name: str) -> Any:
        return getattr(as_read(self._settings.base).task, name, None)

    def _check_batches(self, data: Source) -> None:
        """Refuses batches that replicas, or micro-batches, cannot share; the mean over replicas weighs them alike."""
        super()._check_batches(data)
        replicas = self._model.distribute_strategy.num_replicas_in_sync
        for what, size in data.batch_sizes().items():
            if size % replicas:
                raise ArgumentError(f"{replicas} replicas cannot share the {size} examples of {what} equally")

    # What was tried.

    def fit(
        self, data: Source, validation: Source | None, epochs: Epochs, callbacks: Any, validation_steps: int | None
    ) -> None:
        self._note(data)
        super().fit(data, validation, epochs, callbacks, validation_steps)

    def train_batch(self, batch: Source, *, reset_metrics: bool) -> dict[str, Any]:
        self._note(batch)
        return super().train_batch(batch, reset_metrics=reset_metrics)

    def _note(self, data: Source) -> None:
        """Takes note of what a call trains with."""
        if not isinstance(data, Own):
            self._untold = "it was trained on data that the call gave; have build_inputs of the Task give it"
        rate = _rate(self._model.optimizer)
        if self._has_begun:
            self._untold = self._untold or (_RATE_CHANGED if rate != self._tried_rate else "")
            return
        self._has_begun, self._tried_rate = True, rate
        values = zip(self._at_start, self._model.variables, strict=False)
        if any((before != variable.numpy()).any() for before, variable in values):
            self._untold = "its weights were set from outside; say with task.init_checkpoint where they are from"

    def to_config(self) -> Any:
        """Returns the experiment's config with what was changed in the notebook.

        Raises:
          ArgumentError: no config can say what was tried.
        """
        rate = _rate(self._model.optimizer)
        if self._untold or (self._has_begun and rate != self._tried_rate):
            raise ArgumentError(f"to_config: no config can say what was tried, for {self._untold or _RATE_CHANGED}")
        config = self._settings.base
        trainer, steps = config.trainer, 0 if self._trainer is None else int(self._trainer.global_step.numpy())
        if steps:
            trainer = trainer.replace(train_steps=steps, train_epochs=None)
        if rate is not None and rate != self._configured_rate:
            constant = LrConfig(type="constant", constant=ConstantLrConfig(learning_rate=rate))
            optimizer_config = trainer.optimizer_config.replace(learning_rate=constant, warmup=WarmupConfig())
            trainer = trainer.replace(optimizer_config=optimizer_config)
        config = config.replace(trainer=trainer)
        return self._settings.resolved(config).config


_RATE_CHANGED = (
    "its learning rate was changed while it was trained; say how it changes by trainer.optimizer_config.learning_rate"
)


def open_experiment(
    name: str, config_file: str | Sequence[str], params_override: str | Sequence[str], model_dir: str
) -> ExperimentEngine:
    """Returns the engine of an experiment, whose config is resolved as `train.py` does it.

    Raises:
      ArgumentError: it is for several tasks.
      ConfigError: there is no such experiment, or its config has a problem.
    """
    base = registry.get_config(name, registry.find_workspace())
    files = [config_file] if isinstance(config_file, str) and config_file else config_file
    overrides = [params_override] if isinstance(params_override, str) and params_override else params_override
    resolved = configuration.resolve(base, experiment=name, config_files=files, params_overrides=overrides)
    if hasattr(resolved.config.task, "task_routines"):
        raise ArgumentError(f"{name} has several tasks, and a Program is for one; run it with train.py")
    base = resolved.config
    if base.trainer.train_epochs is not None:  # its data ends with each of them, and not where `fit` does
        base = base.replace(trainer=base.trainer.replace(on_data_end="repeat"))
    return ExperimentEngine(Settings(base=base, model_dir=model_dir, experiment=name))


def _parts(settings: Settings) -> tuple[keras.Model, Any]:
    """Returns model and task; the optimizer is put on the model, where callbacks look for it."""
    config = as_read(settings.base)
    task = registry.get_task_cls(settings.base.task)(config.task, logging_dir=settings.model_dir)
    model = task.build_model()
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    # Not for Keras to track: a checkpoint is to be that of a run, which has the optimizer once.
    object.__setattr__(model, "optimizer", optimizer)
    return model, task


def _rate(optimizer: Any) -> float | None:
    """Returns the learning rate, in the fewest digits that give these bits; None if it follows a schedule."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    is_legacy = isinstance(optimizer, keras.optimizers.legacy.Optimizer)
    rate = optimizer._hyper["learning_rate"] if is_legacy else optimizer._learning_rate  # in public, a schedule's value
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return None
    return float(str(np.float32(keras.backend.get_value(rate))))
