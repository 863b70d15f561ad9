"""`Program`: compile, fit, evaluate and predict on the engine that runs experiments.

Owns: Keras's methods that go over data, and what each of their arguments means for the loop. Does not own: what
`compile` says (`compiled.py`), a loop of its own (there is `engine/loop.py`, run by `engine.py`), data (`data.py`),
when callbacks are called (`callbacks.py`).

    program = Program(model, model_dir="/runs/digits")
    program.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = program.fit(x, y, epochs=5, validation_split=0.2)

With a run directory a call of `fit` goes on exactly where an earlier one was killed; `epochs` is then the number at
which the run ends. Without one nothing is written, and each call trains `epochs - initial_epoch` more, as in Keras.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.config import RuntimeConfig, TrainerConfig
from official_trainer.lazy import keras, tf
from official_trainer.program import loading
from official_trainer.program.callbacks import UNKNOWN_STEPS, Epochs, callback_list
from official_trainer.program.compiled import Compiled
from official_trainer.program.data import (
    ArgumentError,
    Arrays,
    Own,
    Source,
    Weighted,
    one_batch,
    source_of,
    validation_of,
)
from official_trainer.program.engine import Engine
from official_trainer.program.settings import Settings
from official_trainer.program.turns import Turns


class Program(Compiled):
    """A model with what trains it.

    Attributes:
      model: the Keras model; callbacks get it as theirs.
      model_dir: the run directory; empty for none.
    """

    def __init__(
        self,
        model: keras.Model | Callable[[], keras.Model],
        model_dir: str | None = None,
        *,
        seed: int = 0,
        trainer: TrainerConfig | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        """Takes the model, built under a strategy's scope if it is to train under one.

        Args:
          model: a Keras model, compiled or not; or a function that builds it, called in the scope of the strategy and
            with the precision that `runtime` says.
          model_dir: where checkpoints and records go; None keeps nothing.
          seed: decides the order of examples, and the weights that a function gives a model.
          trainer: the section of an experiment's config: what is kept, accumulated, averaged, recovered from.
          runtime: the section of an experiment's config: devices, precision, compiler, limits.

        Raises:
          ArgumentError: a section says what an argument of Keras says, or needs what is not there.
          ConfigError: a section holds a wrong value.
          DeviceError: `runtime` asks for devices that are not there.
        """
        is_built = isinstance(model, keras.Model)
        self.model_dir = model_dir or ""
        self._settings = Settings.of(trainer, runtime, seed=seed, model_dir=self.model_dir, builds=not is_built)
        self.model: Any = model if is_built else self._settings.build(model)
        self._engine = Engine(self.model, self._settings)
        self._turns = Turns(self._engine.ask_to_stop)

    @classmethod
    def from_experiment(
        cls,
        experiment: str,
        model_dir: str | None = None,
        *,
        config_file: str | Sequence[str] = (),
        params_override: str | Sequence[str] = (),
    ) -> Program:
        """Returns an experiment as a Program: its model, optimizer, losses and metrics are there, and its data.

        `fit`, `evaluate` and `predict` take the experiment's own data if they are given no other.

        Args:
          experiment: its name, in the workspace around the current directory or of code that is imported.
          model_dir: where checkpoints and records go; None keeps nothing, and leaves out actions and trackers.
          config_file: files with changes, as `train.py` takes them.
          params_override: changes, as `train.py` takes them.

        Raises:
          ArgumentError: the experiment has several tasks.
          ConfigError: there is no such experiment, or its config has a problem.
          DeviceError: the devices are not there.
        """
        from official_trainer.program.experiment import open_experiment

        program = cls.__new__(cls)
        program.model_dir = model_dir or ""
        engine = open_experiment(experiment, config_file, params_override, program.model_dir)
        program._experiment = program._engine = engine
        program.model = engine.model
        program._turns = Turns(engine.ask_to_stop)
        return program

    def to_config(self) -> Any:
        """Returns the config with which `train.py` trains as this Program was trained by `fit`, with its own data.

        Raises:
          ArgumentError: the Program is not of an experiment, or no config can say what was tried.
        """
        if self._experiment is None:
            raise ArgumentError(
                "to_config: a config names an experiment, and this Program was made from a model; put what builds the "
                "model and its data into a Task, register it in experiments/, and use Program.from_experiment"
            )
        return self._experiment.to_config()

    def save_config(self, path: str) -> None:
        """Writes what `to_config` returns as YAML, for `train.py --config_file`."""
        config = self.to_config()
        assert self._experiment is not None
        files.write_text_atomically(path, f"# experiment: {self._experiment.name}\n{configuration.dump(config)}")

    # Training and evaluating.

    def fit(  # noqa: PLR0913 - the signature is Keras's
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> keras.callbacks.History:
        """Trains; see `keras.Model.fit`, whose arguments these are.

        Returns:
          The history: lists of numbers by name in `history`, one for each epoch.

        Raises:
          ArgumentError: arguments contradict each other.
          DataError: the data cannot be used.
          NotCompiledError: `compile` was not called.
          UserError: as an experiment would end with.
        """
        self._check_compiled("fit")
        self._check_directory(initial_epoch, callbacks or ())
        others = {"class_weight": class_weight, "validation_split": validation_split or None}
        settings = {"batch_size": batch_size, "shuffle": shuffle}
        source = self._read_training((x, y, sample_weight), steps_per_epoch, settings, others)
        batch_size = validation_batch_size or batch_size
        of_validation = self._read_validation(validation_data, source, batch_size)
        if validation_split and validation_data is None:
            if not isinstance(source, Arrays):
                raise ArgumentError(f"validation_split={validation_split} is for arrays; give validation_data")
            source, of_validation = source.split(validation_split, batch_size)
        steps = _steps_per_epoch(source, steps_per_epoch, epochs - initial_epoch)
        source = Weighted(source, class_weight) if class_weight else source
        validated = 0 if of_validation is None else validation_freq
        plan = Epochs(first_step=0, steps=steps or UNKNOWN_STEPS, first=initial_epoch, end=epochs, validated=validated)
        found = callback_list(self.model, callbacks, verbose, epochs, steps)
        self._engine.fit(source, of_validation, plan, found, validation_steps)
        return self.model.history

    def _check_directory(self, initial_epoch: int, callbacks: Sequence[Any]) -> None:
        """Refuses what would contradict a run directory."""
        if self.model_dir and initial_epoch:
            what = f"initial_epoch={initial_epoch}: {self.model_dir} says where training goes on; leave it out"
            raise ArgumentError(what)
        if self.model_dir and any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks):
            raise ArgumentError(f"BackupAndRestore: {self.model_dir} keeps what is needed to go on; leave it out")

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Evaluates; see `keras.Model.evaluate`, whose arguments and results these are."""
        self._check_compiled("evaluate")
        source = self._read((x, y, sample_weight), batch_size, steps)
        found = callback_list(self.model, callbacks, verbose, 1, steps or source.batches_per_epoch, trains=False)
        return _results(self._engine.evaluate(source, steps, found), return_dict)

    def predict(
        self,
        x: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> Any:
        """Returns the model's outputs for each example, in order, as NumPy arrays; see `keras.Model.predict`.

        With averaged weights, if the model was trained with `trainer.optimizer_config.ema`.

        Raises:
          ArgumentError: the data has no end.
          DataError: the data cannot be used.
          OutputError: an output has no row for each example.
        """
        source = self._read((x, None, None), batch_size, steps)
        found = callback_list(self.model, callbacks, verbose, 1, steps or source.batches_per_epoch, trains=False)
        return self._engine.predict(source, steps, found)

    # From an event loop.

    async def fit_async(self, *arguments: Any, **keywords: Any) -> keras.callbacks.History:
        """Trains as `fit` does, whose arguments these are, in a thread: several programs may train in one event loop.

        Calls of one program wait for each other. If the task that awaits this is cancelled, training ends with the
        window that runs, a run directory keeps where it stood, and only then the task goes on. Signals are the event
        loop's; `asyncio.run` makes a cancellation of the first Ctrl-C.
        """
        return await self._turns.take(functools.partial(self.fit, *arguments, **keywords))

    async def evaluate_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluates as `evaluate` does; see `fit_async`. It is not left early."""
        return await self._turns.take(functools.partial(self.evaluate, *arguments, **keywords))

    async def predict_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Predicts as `predict` does; see `fit_async`. It is not left early."""
        return await self._turns.take(functools.partial(self.predict, *arguments, **keywords))

    # Checkpoints.

    def load(self, filepath: str | os.PathLike[str]) -> None:
        """Takes the model, the optimizer and the global step of a checkpoint; `fit` goes on from there.

        For a program without a run directory, which says itself where training stands.

        Args:
          filepath: a checkpoint's folder or prefix; a run directory; or what a `ProgramCheckpoint` was given. Of
            several the newest is taken, by its step.

        Raises:
          ArgumentError: there is a run directory.
          CheckpointError: there is none that is whole, or it is of another program. Nothing was changed.
          NotCompiledError: there is no optimizer yet.
        """
        self._check_compiled("load")
        if self.model_dir:
            raise ArgumentError(
                f"load: {self.model_dir} says where training stands. Use load_weights() for what a run begins with, or "
                "a Program without model_dir"
            )
        with self._engine.scope():
            self._engine.begin_at(loading.read_program(self.model, filepath))

    def load_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Takes the model's variables of a checkpoint and nothing else; see `load`."""
        with self._engine.scope():
            loading.read_weights(self.model, filepath)

    # One batch.

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Runs one step of training on a batch; see `keras.Model.train_on_batch`."""
        self._check_compiled("train_on_batch")
        source: Source = one_batch(x, y, sample_weight)
        source = Weighted(source, class_weight) if class_weight else source
        return _results(self._engine.train_batch(source, reset_metrics=reset_metrics), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, reset_metrics: bool = True, return_dict: bool = False
    ) -> Any:
        """Evaluates one batch; see `keras.Model.test_on_batch`."""
        self._check_compiled("test_on_batch")
        logs = self._engine.evaluate(one_batch(x, y, sample_weight), 1, reset_metrics=reset_metrics)
        return _results(logs, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the model's outputs for a batch, as NumPy arrays, with averaged weights if there are any."""
        with self._engine.weights_averaged():
            return self.model.predict_on_batch(x)

    def _read_training(
        self, data: Any, steps_per_epoch: int | None, settings: Mapping[str, Any], others: Mapping[str, Any]
    ) -> Source:
        """Returns the data of `fit`; an experiment's own if the call gives none."""
        if data[0] is not None or self._experiment is None:
            return source_of(data, seed=self._engine.seed, **settings)
        given = {"y": data[1], "sample_weight": data[2], **settings, **others}
        if given["shuffle"] is True:
            del given["shuffle"]  # nobody has said so
        self._experiment.check_arguments(**given)
        return self._experiment.own_training(steps_per_epoch)

    def _read_validation(self, data: Any, training: Source, batch_size: int | None) -> Any:
        """Returns the data to validate on; an experiment's own if it trains on its own, or None."""
        if data is not None:
            return validation_of(data, batch_size)
        if self._experiment is None or not isinstance(training, Own):
            return None
        return self._experiment.own_validation()

    def _read(self, data: Any, batch_size: int | None, steps: int | None) -> Source:
        """Returns the data of a call that goes over it once; an experiment's own if the call gives none."""
        if data[0] is None and self._experiment is not None:
            self._experiment.check_arguments(y=data[1], sample_weight=data[2], batch_size=batch_size)
            own = self._experiment.own_validation()
            if own is None:
                raise ArgumentError("the experiment has no validation data of its own (task.validation_data); give x")
            return own
        source = source_of(data, batch_size=batch_size)
        if steps is None and int(source.one_pass().cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise ArgumentError("the data has no end; say with steps how many batches are wanted")
        return source


def _steps_per_epoch(source: Source, given: int | None, num_epochs: int) -> int | None:
    """Returns the steps of an epoch, after cutting the data as it is given; None if they show with its end."""
    if given:
        source.cut(given, num_epochs)
        return given
    if num_epochs > 1:
        source.count()
    if source.batches_per_epoch is None and source.is_endless:
        raise ArgumentError("the data has no end; say with steps_per_epoch how many batches make an epoch")
    return source.batches_per_epoch


def _results(logs: dict[str, Any], return_dict: bool) -> Any:
    """Returns numbers as Keras does: a dictionary, or a list, or the only one."""
    if return_dict:
        return logs
    values = list(logs.values())
    return values[0] if len(values) == 1 else values
