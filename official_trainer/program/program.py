"""`Program`: compile, fit, evaluate and predict on the engine that runs experiments.

Owns: Keras's methods, and the meaning of each of their arguments for the loop. Does not own: a loop of its own
(`compiled_model.py` runs `engine/loop.py`), data (`data.py`), rewards (`rewards.py`), when callbacks are called
(`callbacks.py`).

With a run directory, a call of `fit` continues exactly where an earlier one was killed; `epochs` is then the number of
epochs at which the run ends. Without one nothing is written, and each call trains `epochs - initial_epoch` epochs more,
as in Keras.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.config import RuntimeConfig, TrainerConfig
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, tf
from official_trainer.program import checkpoint, keras_fit, saving
from official_trainer.program.async_methods import AsyncMethods
from official_trainer.program.callbacks import callback_list
from official_trainer.program.compiled_model import CompiledModel
from official_trainer.program.data import (
    ArgumentError,
    Batches,
    CallData,
    batches_of,
    check_kerases,
    counts,
    one_batch,
    validation_batches,
)
from official_trainer.program.epochs import UNKNOWN_STEPS, Epochs
from official_trainer.program.rewards import reward_class, rewards_of, weighted_sum, with_rewards
from official_trainer.program.settings import TASK, Settings
from official_trainer.program.trainer import ProgramTask, in_training_step
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tracking import numbers_in


class NotCompiledError(UserError, RuntimeError):
    """A method needs what `compile` sets."""

    exit_code = ExitCode.CONFIG

    def __init__(self, method: str) -> None:
        super().__init__(f"{method}() needs an optimizer and a loss; call compile() first")


class Program(AsyncMethods):
    """A Keras model, with its optimizer, losses, metrics and rewards, on the engine.

    Its methods are those of `keras.Model`; whatever is not here is the model's: `program.optimizer`, `program.layers`.

    Attributes:
      model: the Keras model; callbacks get it as `self.model`.
      model_dir: the run directory; empty for none.

    Example:
      >>> import numpy as np
      >>> from official_trainer import Program
      >>> from official_trainer.lazy import keras
      >>> x = np.random.RandomState(0).randn(400, 4).astype("float32")
      >>> y = x.argmax(axis=1)
      >>> program = Program(keras.Sequential([keras.Input([4]), keras.layers.Dense(4)]), seed=7)
      >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
      >>> program.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
      >>> history = program.fit(x, y, epochs=5, validation_split=0.25, verbose=0)
      >>> history.history["val_accuracy"][-1] > 0.7
      True
      >>> program.predict(x[:2], verbose=0).shape
      (2, 4)
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
            with the precision of `runtime`.
          model_dir: where checkpoints and records are written; None writes nothing.
          seed: determines the order of examples, and the initial weights of a model that a function builds.
          trainer: this section of an experiment's config: retention, accumulation, averages, recovery.
          runtime: this section of an experiment's config: devices, precision, compiler, limits.

        Raises:
          ArgumentError: a section repeats an argument of Keras, or needs what is missing; or there is no model.
          ConfigError: a section has a wrong value.
          DeviceError: `runtime` needs devices that are not there.
        """
        if not callable(model):
            raise ArgumentError(f"Program: {model!r} is no Keras model, nor a function that builds one")
        is_built = "Model" in kerases.kinds(model)
        settings = Settings.of(trainer, runtime, seed=seed, model_dir=model_dir or "", builds=not is_built)
        built: keras.Model = model if is_built else settings.build(model)
        if "Model" not in kerases.kinds(built):
            what = "is no Keras model, nor a function that builds one"
            raise ArgumentError(f"Program: {model!r} {what}: it returned {built!r}")
        data = CallData()
        overrides = keras_fit.overrides(built, "compute_metrics") or self._overrides("compute_metrics")
        compute_metrics = self.compute_metrics if overrides else None
        task = ProgramTask(TASK, built, data, compute_loss=self.compute_loss, compute_metrics=compute_metrics)
        self._compiled = CompiledModel(built, settings, task, data)
        self.model, self.model_dir = built, settings.model_dir

    @classmethod
    def _overrides(cls, method: str) -> bool:
        return getattr(cls, method) is not getattr(Program, method)

    def __getattr__(self, name: str) -> Any:
        # Called for names that a Program does not have; private ones, and the model before it is set, are not there.
        if name.startswith("_") or name == "model":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        model = vars(self).get("model")
        is_of_program = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        if is_of_program or model is None or not hasattr(model, name):
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)

    def __call__(self, x: Any, training: bool = False) -> Any:
        """Returns the model's outputs for a batch as tensors, with its weights as they are.

        Args:
          x: features, `[batch, …]`.
          training: whether layers such as dropout work as in training.
        """
        return self.model(x, training=training)

    # Compiling.

    def compile(  # noqa: PLR0913 - the signature is Keras's, with rewards
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool | None = None,
        steps_per_execution: int | None = None,
        jit_compile: bool | None = None,
        reward: Any = None,
        reward_weights: Any = None,
    ) -> None:
        """Sets the optimizer, losses, metrics and rewards; see `keras.Model.compile`.

        A model with a `compile` of its own is compiled by that: `program.model.compile(…)`. A reward is a loss of the
        weight −w and a metric: training minimises the loss minus the weighted rewards, which is the log `loss`. Steps
        call `compute_loss`, `compute_reward` and `compute_metrics`, which a subclass may override.

        Args:
          optimizer: an optimizer, or its name.
          loss: a loss or its name, or one for each output.
          metrics: metrics or their names, or a list of them for each output.
          loss_weights: weights of the outputs' losses.
          weighted_metrics: metrics that use sample weights.
          run_eagerly: whether steps run in Python, not traced, so that layers and losses may look at values. The first
            call runs the model on the first batch once more, which makes its variables.
          steps_per_execution: steps from one call of callbacks for batches to the next; None for 1. The engine decides
            how many steps run at once.
          jit_compile: whether XLA compiles training steps, once for each batch size.
          reward: a function of (y_true, y_pred) that returns a number for each example and has a gradient; or one for
            each output, as a list or a dict by output name.
          reward_weights: weights of the outputs' rewards: a number, a list, or a dict by output name.

        Raises:
          ArgumentError: losses, weights, metrics or rewards do not fit the outputs of the model, or each other; or one
            of them is of another Keras.
        """
        settings = dict(locals())
        settings.pop("self")
        fit = keras_fit.of(self.model)
        for name in ("optimizer", "loss", "metrics", "weighted_metrics"):
            check_kerases(self.model, **{name: settings[name]})
        with self._compiled.scope():
            of_rewards = (settings.pop("reward"), settings.pop("reward_weights"))
            settings["weighted_metrics"] = with_rewards(self.model, weighted_metrics, *of_rewards)
            fit.compile(self.model, settings)

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles with the config that the model's `get_compile_config` has returned, with rewards."""
        reward_class(keras_fit.of(self.model).MODULE)  # so that it is registered
        with self._compiled.scope():
            self.model.compile_from_config(config)

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

        Args:
          x: features: arrays or tensors `[examples, …]`, a `tf.data.Dataset` of batches, or a generator of batches.
          y: targets, `[examples, …]`; None where `x` yields `(features, targets)`.
          batch_size: examples of a batch over all replicas, for arrays; None means 32, or as many as make
            `steps_per_epoch` batches of them.
          epochs: the number of epochs after which training ends; those before `initial_epoch` count.
          verbose: 0 prints nothing, 1 a progress bar, 2 a line for each epoch.
          callbacks: callbacks of Keras.
          validation_split: share of the arrays, taken from their end, that is for validation.
          validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset.
          shuffle: whether the order of the examples of arrays changes from epoch to epoch.
          class_weight: weights of the examples' losses by their classes.
          sample_weight: weights of the examples' losses, `[examples]`.
          initial_epoch: the first epoch, where there is no run directory.
          steps_per_epoch: batches of an epoch; None means a pass over the data.
          validation_steps: batches of a validation; None means all.
          validation_batch_size: as `batch_size` and `validation_steps`, for validation; None means `batch_size`.
          validation_freq: epochs from one validation to the next, or the epochs that have one.

        Returns:
          The history, whose attribute `history` has a list by name, with a number for each epoch.

        Raises:
          ArgumentError: arguments contradict each other.
          DataError: the data cannot be used.
          NotCompiledError: `compile` was not called.
          UserError: the error with which an experiment would end.
        """
        self._check_compiled("fit")
        sizes = {"batch_size": batch_size, "validation_batch_size": validation_batch_size}
        initial_epoch, batch_size, validation_batch_size = counts(initial_epoch=initial_epoch, **sizes)
        lengths = {"steps_per_epoch": steps_per_epoch, "validation_steps": validation_steps}
        epochs, steps_per_epoch, validation_steps = counts(epochs=epochs, **lengths)
        is_list = isinstance(validation_freq, Collection) and not isinstance(validation_freq, str)
        if not is_list and not (isinstance(validation_freq, int | np.integer) and validation_freq >= 1):
            raise ArgumentError(f"{validation_freq=}; allowed: a number of epochs from 1 on, or a list of epochs")
        refused = [f"initial_epoch={initial_epoch}"] if initial_epoch else []
        fit = keras_fit.of(self.model)
        backup = fit.MODULE.callbacks.BackupAndRestore
        refused += ["BackupAndRestore" for callback in tf.nest.flatten(callbacks or ()) if isinstance(callback, backup)]
        if self.model_dir and refused:
            raise ArgumentError(f"{refused[0]}: training continues at the checkpoint in {self.model_dir}; leave it out")
        seed = self._compiled.seed
        data = (x, y, sample_weight)
        batches = batches_of(data, batch_size=batch_size, steps=steps_per_epoch, shuffle=shuffle, seed=seed)
        validation: Batches | None = None
        batch_size = validation_batch_size or batch_size
        if validation_data is not None:
            validation = validation_batches(validation_data, batch_size, validation_steps)
        elif validation_split:
            batches, validation = batches.split(validation_split, batch_size, validation_steps)
        if validation is not None and validation_steps:
            validation_steps = fit.steps_in(validation.batches_per_epoch, validation_steps)
            validation.cut(validation_steps or 0, 1)
        steps_per_epoch = fit.steps_in(batches.batches_per_epoch, steps_per_epoch)
        steps = _steps_per_epoch(batches, steps_per_epoch, epochs - initial_epoch)
        if class_weight:
            batches.use_class_weight(class_weight)
        validated = 0 if validation is None else validation_freq
        end = max(epochs, initial_epoch)
        plan = Epochs(first_step=0, steps=steps or UNKNOWN_STEPS, first=initial_epoch, end=end, validated=validated)
        called = callback_list(self.model, callbacks, verbose, epochs, steps)
        self._compiled.fit(batches, validation, plan, called, validation_steps)
        return self.model.history

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
        """Evaluates; see `keras.Model.evaluate`, whose arguments these are.

        Args:
          x: features, as for `fit`.
          y: targets.
          batch_size: examples of a batch, for arrays; None means 32, or as many as make `steps` batches of them.
          verbose: as for `fit`.
          sample_weight: weights of the examples, `[examples]`.
          steps: batches; None means all.
          callbacks: callbacks of Keras.
          return_dict: whether the results are a dictionary by name.

        Returns:
          The loss and the metrics as a list in the order of `metrics_names`, or by name; the loss alone as a number.
        """
        self._check_compiled("evaluate")
        batches, steps = self._read((x, y, sample_weight), batch_size, steps)
        called = callback_list(self.model, callbacks, verbose, 1, steps or batches.batches_per_epoch, trains=False)
        return _results(self.model, self._compiled.evaluate(batches, steps, called), return_dict)

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

        Args:
          x: features, as for `fit`.
          batch_size: examples of a batch, for arrays; None means 32, or as many as make `steps` batches of them.
          verbose: as for `fit`.
          steps: batches; None means all.
          callbacks: callbacks of Keras.

        Raises:
          ArgumentError: the data has no end.
          DataError: the data cannot be used.
          OutputError: an output has no row for each example.
        """
        batches, steps = self._read((x, None, None), batch_size, steps)
        called = callback_list(self.model, callbacks, verbose, 1, steps or batches.batches_per_epoch, trains=False)
        return self._compiled.predict(batches, steps, called)

    # Checkpoints.

    def load(self, filepath: str | os.PathLike[str]) -> None:
        """Reads the model, the optimizer and the global step from a checkpoint; `fit` continues from there.

        For a program without a run directory: with one, training continues at its newest checkpoint.

        Args:
          filepath: a checkpoint's folder or prefix; a run directory; or the `filepath` of a `ProgramCheckpoint`. Of
            several checkpoints, the one with the largest step is read.

        Raises:
          ArgumentError: there is a run directory.
          CheckpointError: there is no complete checkpoint, or it is of another program. Nothing was changed.
          NotCompiledError: there is no optimizer yet.
        """
        self._check_compiled("load")
        if self.model_dir:
            raise ArgumentError(
                f"load: training continues at the checkpoint in {self.model_dir}. Use load_weights() for initial "
                "weights, or a Program without model_dir"
            )
        with self._compiled.loading():
            step = checkpoint.read_program(self.model, filepath)
        self._compiled.begin_at(step)

    def load_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Reads only the model's variables from a checkpoint, or from what Keras has saved.

        Args:
          filepath: as for `load`; or a `.keras` or `.h5` file, a SavedModel, or a checkpoint that TensorFlow or Keras
            has written. Of the last two the optimizer is restored too, if it is there, as in Keras.

        Raises:
          ArgumentError: the model has no variables yet.
          CheckpointError: there is no complete checkpoint, or it is of another model. Nothing was changed.
        """
        with self._compiled.loading():
            checkpoint.read_weights(self.model, filepath)

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
        """Runs one step of training on a batch; see `keras.Model.train_on_batch`.

        Args:
          x: features, `[batch, …]`.
          y: targets, `[batch, …]`.
          sample_weight: weights of the examples, `[batch]`.
          class_weight: weights of the examples' losses by their classes.
          reset_metrics: whether the results are those of this batch alone.
          return_dict: whether the results are a dictionary by name; otherwise they are as from `evaluate`.
        """
        self._check_compiled("train_on_batch")
        batch = one_batch(x, y, sample_weight)
        if class_weight:
            batch.use_class_weight(class_weight)
        return _results(self.model, self._compiled.train_batch(batch, reset_metrics=reset_metrics), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, reset_metrics: bool = True, return_dict: bool = False
    ) -> Any:
        """Evaluates one batch; see `keras.Model.test_on_batch`.

        Args:
          x: features, `[batch, …]`.
          y: targets, `[batch, …]`.
          sample_weight: weights of the examples, `[batch]`.
          reset_metrics: whether the results are those of this batch alone.
          return_dict: whether the results are a dictionary by name; otherwise they are as from `evaluate`.
        """
        self._check_compiled("test_on_batch")
        logs = self._compiled.evaluate(one_batch(x, y, sample_weight), 1, reset_metrics=reset_metrics)
        return _results(self.model, logs, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the model's outputs for a batch, as NumPy arrays, with averaged weights if there are any.

        Args:
          x: features, `[batch, …]`.
        """
        with self._compiled.weights_averaged():
            return self.model.predict_on_batch(x)

    # Computing losses, rewards and metrics of outputs.

    @do_not_convert
    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Returns the loss of outputs, minus their reward, a scalar; see `keras.Model.compute_loss`.

        Args:
          x: features.
          y: targets, `[batch, …]`.
          y_pred: outputs of the model, `[batch, …]`.
          sample_weight: weights of the examples, `[batch]`.
        """
        batch = tf.nest.map_structure(_as_tensor, (x, y, y_pred, sample_weight))
        model, fit = self.model, keras_fit.of(self.model)
        is_rewarded = bool(rewards_of(model)) or self._overrides("compute_reward")
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if is_rewarded and not model.loss and not keras_fit.overrides(model, "compute_loss"):
            loss = tf.add_n(model.losses) / replicas if model.losses else tf.constant(0.0)
        else:
            loss = fit.compute_loss(model, batch, training=in_training_step())
        if is_rewarded:
            reward = tf.cast(convert(self.compute_reward)(*batch), tf.float32)
            loss = tf.cast(loss, tf.float32) - reward / replicas
            fit.measure_reward(model, reward, loss, batch[2])
        return loss

    @do_not_convert
    def compute_reward(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Returns the weighted sum of the rewards of outputs, a scalar float32.

        Args:
          x: features, for a subclass that overrides this method; the rewards of `compile` do not use them.
          y: targets, `[batch, …]`.
          y_pred: outputs of the model, `[batch, …]`.
          sample_weight: weights of the examples, `[batch]`.

        Raises:
          ArgumentError: there are no targets, or a training step has a reward without a gradient.
        """
        y, y_pred, sample_weight = tf.nest.map_structure(_as_tensor, (y, y_pred, sample_weight))
        return weighted_sum(self.model, y, y_pred, sample_weight, training=in_training_step())

    @do_not_convert
    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates the metrics with outputs, and returns their results by name; see `keras.Model.compute_metrics`.

        Args:
          x: features.
          y: targets, `[batch, …]`.
          y_pred: outputs of the model, `[batch, …]`.
          sample_weight: weights of the examples, `[batch]`.
        """
        batch = tf.nest.map_structure(_as_tensor, (x, y, y_pred, sample_weight))
        return dict(convert(self.model.compute_metrics)(*batch))

    def _check_compiled(self, method: str) -> None:
        if getattr(self.model, "optimizer", None) is None:
            raise NotCompiledError(method)

    # Arguments.

    def _read(self, data: Any, batch_size: int | None, steps: int | None) -> tuple[Batches, int | None]:
        """Returns the data of a call that reads it once, and its steps."""
        batch_size, steps = counts(batch_size=batch_size, steps=steps)
        batches = batches_of(data, batch_size=batch_size, steps=steps)
        steps = keras_fit.of(self.model).steps_in(batches.batches_per_epoch, steps)
        if steps is None and not batches.has_end:
            raise ArgumentError("the data has no end; give steps, the number of batches")
        if steps is not None:
            batches.cut(steps, 1)
        return batches, steps


def load_program(
    filepath: str | os.PathLike[str],
    model_dir: str | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    seed: int = 0,
    trainer: TrainerConfig | None = None,
    runtime: RuntimeConfig | None = None,
) -> Program:
    """Returns the program of a file that `save` of a program or a model of Keras's has written.

    It needs no code that built the model. It is compiled as it was, with its rewards and its optimizer's state. The
    weights are as they were, not averaged, and the global step begins at 0: a `ProgramCheckpoint` has it.

    Args:
      filepath: of the `.keras` file.
      model_dir: as for `Program`.
      custom_objects: layers and functions of your own that are not registered, by name.
      seed: as for `Program`.
      trainer: as for `Program`.
      runtime: as for `Program`.

    Raises:
      ArgumentError: the file cannot be read.

    Example:
      >>> import numpy as np
      >>> from official_trainer.lazy import keras
      >>> from official_trainer.program import Program, load_program
      >>> program = Program(keras.Sequential([keras.Input([4]), keras.layers.Dense(2)]))
      >>> program.compile("adam", "mse")
      >>> program.save("program.keras")
      >>> x = np.ones([1, 4])
      >>> bool((load_program("program.keras").predict(x, verbose=0) == program.predict(x, verbose=0)).all())
      True
    """
    build = functools.partial(saving.read_model, os.fspath(filepath), custom_objects)
    return Program(build, model_dir, seed=seed, trainer=trainer, runtime=runtime)


def _steps_per_epoch(batches: Batches, steps: int | None, num_epochs: int) -> int | None:
    """Returns the steps of an epoch, and cuts the data to them; None if the end of the data will end the epoch."""
    if steps:
        batches.cut(steps, num_epochs)
        return steps
    if num_epochs > 1:
        batches.count()
    if not batches.has_end:
        raise ArgumentError("the data has no end; give steps_per_epoch, the number of batches of an epoch")
    return batches.batches_per_epoch


def _results(model: keras.Model, logs: dict[str, Any], return_dict: bool) -> Any:
    """Returns logs as Keras does: a dictionary, or a list, or a single number."""
    if return_dict:
        return dict(sorted(logs.items())) if kerases.is_3(model) else logs
    logs = numbers_in(logs)
    ordered = [name for name in keras_fit.names_in_order(model) if name in logs]
    values = [logs[name] for name in [*ordered, *sorted(set(logs) - set(ordered))]]  # Keras's order for several numbers
    return values[0] if len(values) == 1 else values


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic) else value
