"""A compiled model on the engine: its Task, the data of each call, and one Trainer for each `compile`.

Owns: building the Trainer and the variables that need data, and the model's outputs for a batch. Does not own: running
a call (`engine.py`), its config (`settings.py`), or the model of an experiment (`experiment.py`).
"""

from __future__ import annotations

import contextlib
from typing import Any

from official_trainer.lazy import keras, tf
from official_trainer.program.data import CallData, Source
from official_trainer.program.settings import Settings, task_config
from official_trainer.program.task import ProgramTask
from official_trainer.program.trainer import ProgramTrainer
from official_trainer.tasks.autograph import do_not_convert


class CompiledModel:
    """A model that is compiled, or will be.

    Attributes:
      model: the Keras model.
      settings: what all its calls have in common.
      data: the data of the call that runs.
    """

    def __init__(self, model: keras.Model, settings: Settings, task: Any = None) -> None:
        """Takes the model, and a Task for it; None for one with the steps of `compile`."""
        self.model, self.settings, self.data = model, settings, CallData()
        self._task = task or ProgramTask(task_config(), model, self.data)
        self._trainer: ProgramTrainer | None = None
        self._compiled_loss: Any = None  # the trainer is for this one; each `compile` makes another
        self._first_step = 0  # of a trainer that is not built yet

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope of the strategy that the model was built under."""
        scope: contextlib.AbstractContextManager[Any] = self.model.distribute_strategy.scope()
        return scope

    @property
    def every(self) -> int:
        """Steps from one call of callbacks for batches to the next."""
        steps = self.model._steps_per_execution  # of a model that is not compiled, None
        return 1 if steps is None else int(steps.numpy())

    @property
    def trainer(self) -> ProgramTrainer | None:
        """The last trainer; None before the first call that needs one."""
        return self._trainer

    def prepare_trainer(self, data: Source) -> ProgramTrainer:
        """Returns the trainer; the first call after `compile` builds it, and the model's variables from `data`."""
        if self._trainer is None or not self._is_current:
            self._compiled_loss = self.model.compiled_loss
            with self.scope():
                self._trainer = self._build_trainer(data, keeps_record=bool(self.settings.model_dir))
            self._trainer.global_step.assign(self._first_step)
            self._first_step = 0
        return self._trainer

    def begin_at(self, step: int) -> None:
        """Makes training begin at the global step of weights that were loaded."""
        if self._trainer is not None and self._is_current:
            self._trainer.begin_at(step)
        else:
            self._first_step = step

    def check_batches(self, data: Source) -> None:
        """Refuses batches that the parts of a step cannot share, as far as the sizes are known."""
        self.settings.check_micro_batches(self.model, data)

    def record_training(self, data: Source) -> None:
        """Called before training on `data`; an experiment records whether a config can describe it."""

    def infer(self, batch: Any) -> Any:
        """Returns the model's outputs for a batch; traced."""
        if type(self.model).predict_step is not keras.Model.predict_step:
            return self.model.predict_step(batch)
        return self.model(keras.utils.unpack_x_y_sample_weight(batch)[0], training=False)

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the model has its averaged weights, if it was trained with averages."""
        return self._trainer.weights_averaged() if self._trainer is not None else contextlib.nullcontext()

    @property
    def _is_current(self) -> bool:
        """Whether the trainer is for the last `compile`."""
        return self._compiled_loss is self.model.compiled_loss

    def _build_trainer(self, data: Source, *, keeps_record: bool) -> ProgramTrainer:
        self._create_metrics(data.one_pass().element_spec)
        parts = (self.settings.config(self.model), self._task, self.model, self.model.optimizer)
        return ProgramTrainer(*parts, keeps_record=keeps_record)

    def _create_metrics(self, spec: Any) -> None:
        """Creates weights and metrics that need a first call, by tracing a step that never runs."""
        strategy = tf.distribute.get_strategy()

        @do_not_convert
        def step(batch: Any) -> None:
            strategy.run(self._task.validation_step, args=(batch, self.model))

        tf.function(step).get_concrete_function(spec)
        self.model.reset_metrics()
