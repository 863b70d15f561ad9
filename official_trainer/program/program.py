"""`Program`: compile, fit, evaluate and predict on the engine that runs experiments.

Owns: Keras's methods, and what each of their arguments means for the loop. Does not own: a loop of its own (there is
`loop.py`, run by `engine.py`), data (`data.py`), when callbacks are called (`callbacks.py`).

    program = Program(model, model_dir="/runs/digits")
    program.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = program.fit(x, y, epochs=5, validation_split=0.2)

With a run directory a call of `fit` goes on exactly where an earlier one was killed; `epochs` is then the number at
which the run ends. Without one nothing is written, and each call trains `epochs - initial_epoch` more, as in Keras.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, tf
from official_trainer.program import loading
from official_trainer.program.callbacks import UNKNOWN_STEPS, Epochs
from official_trainer.program.data import ArgumentError, Arrays, Source, Weighted, packed, source_of, validation_of
from official_trainer.program.engine import Engine
from official_trainer.program.estimators import RewardEstimator
from official_trainer.program.rewards import add_rewards, given_rewards, rewards_of
from official_trainer.program.turns import Turns


class NotCompiledError(UserError, RuntimeError):
    """A method needs what `compile` sets."""

    exit_code = ExitCode.CONFIG

    def __init__(self, method: str) -> None:
        super().__init__(f"{method}() needs an optimizer and a loss; call compile() first")


class Program:
    """A model with what trains it.

    Attributes:
      model: the Keras model; callbacks get it as theirs.
      model_dir: the run directory; empty for none.
    """

    def __init__(self, model: keras.Model, model_dir: str | None = None, *, seed: int = 0) -> None:
        """Takes the model, built under a strategy's scope if it is to train under one.

        Args:
          model: a Keras model, compiled or not.
          model_dir: where checkpoints and records go; None keeps nothing.
          seed: decides the order of examples.
        """
        self.model = model
        self.model_dir = model_dir or ""
        self._engine = Engine(model, self.model_dir, seed)
        self._turns = Turns(self._engine.ask_to_stop)

    # Compiling.

    def compile(  # noqa: PLR0913 - the signature is Keras's, with rewards
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        reward: Any = None,
        reward_weights: Any = None,
        reward_estimator: RewardEstimator | None = None,
    ) -> None:
        """Says what trains the model, in Keras's words; see `keras.Model.compile`.

        A reward is maximised: what is minimised, and told as `loss`, is the loss minus the reward.

        Args:
          optimizer: an optimizer, or its name or config.
          loss: a loss or its name, or one for each output.
          metrics: metrics or their names, or some for each output.
          loss_weights: weights of the outputs' losses.
          weighted_metrics: metrics that sample weights count in.
          run_eagerly: whether steps are run in Python, not traced.
          steps_per_execution: steps from one call of callbacks for batches to the next. How many steps run at once
            is the engine's own business.
          reward: a function of (y_true, y_pred) that returns a number for each example, a `PythonReward`, an
            `async def` or a name; or one for each output, as a list or a dict by output name.
          reward_weights: weights of the outputs' rewards: a number, a list, or a dict by output name.
          reward_estimator: `ScoreFunction` or `EvolutionStrategies`, for rewards that have no gradient.

        Raises:
          ArgumentError: rewards do not fit the model, or each other.
          RewardError: a reward of Python has no estimator.
        """
        settings = dict(locals())
        settings.pop("self")
        of_rewards = {name: settings.pop(name) for name in ("reward", "reward_weights", "reward_estimator")}
        with self._engine.scope():
            rewards = given_rewards(self.model, **of_rewards)
            self.model.compile(**settings)
            if rewards is not None:
                add_rewards(self.model, rewards)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what was compiled as JSON takes it, for `compile_from_config`."""
        of_rewards = {} if (rewards := rewards_of(self.model)) is None else rewards.given
        serialized = {name: keras.saving.serialize_keras_object(value) for name, value in of_rewards.items()}
        return {**self.model.get_compile_config(), **serialized}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles with what `get_compile_config` has returned.

        Raises:
          ArgumentError: it asks for `jit_compile`.
        """
        known = {key: keras.saving.deserialize_keras_object(value) for key, value in config.items()}
        _refuse_jit(known.pop("jit_compile", None))
        self.compile(**known)

    @property
    def metrics(self) -> list[Any]:
        """The model's metrics, losses included."""
        return list(self.model.metrics)

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`."""
        return list(self.model.metrics_names)

    @property
    def stop_training(self) -> bool:
        """Whether somebody has asked that `fit` ends."""
        return bool(self.model.stop_training)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self.model.stop_training = value

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
        settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "seed": self._engine.seed}
        source = source_of((x, y, sample_weight), is_counted=bool(steps_per_epoch), **settings)
        batch_size = validation_batch_size or batch_size
        of_validation: Source | None = None
        if validation_data is not None:
            of_validation = validation_of(validation_data, batch_size, is_counted=bool(validation_steps))
        elif validation_split:
            if not isinstance(source, Arrays):
                raise ArgumentError(f"validation_split={validation_split} is for arrays; give validation_data")
            source, of_validation = source.split(validation_split, batch_size)
        steps = _steps_per_epoch(source, steps_per_epoch, epochs - initial_epoch)
        source = Weighted(source, class_weight) if class_weight else source
        validated = 0 if of_validation is None else validation_freq
        plan = Epochs(first_step=0, steps=steps or UNKNOWN_STEPS, first=initial_epoch, end=epochs, validated=validated)
        found = _callback_list(self.model, callbacks, verbose, epochs, steps)
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
        source = source_of((x, y, sample_weight), batch_size=batch_size, is_counted=bool(steps))
        found = _callback_list(self.model, callbacks, verbose, 1, steps or source.batches_per_epoch, trains=False)
        return _results(self._engine.evaluate(source, steps, found), return_dict)

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: str | int = "auto", steps: int | None = None
    ) -> Any:
        """Returns the model's outputs for each example, in order, as NumPy arrays; see `keras.Model.predict`."""
        return self.model.predict(x, batch_size=batch_size, verbose=verbose, steps=steps)

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
        source: Source = _one_batch(x, y, sample_weight)
        source = Weighted(source, class_weight) if class_weight else source
        return _results(self._engine.train_batch(source, reset_metrics=reset_metrics), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, reset_metrics: bool = True, return_dict: bool = False
    ) -> Any:
        """Evaluates one batch; see `keras.Model.test_on_batch`."""
        self._check_compiled("test_on_batch")
        logs = self._engine.evaluate(_one_batch(x, y, sample_weight), 1, reset_metrics=reset_metrics)
        return _results(logs, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the model's outputs for a batch, as NumPy arrays."""
        return self.model.predict_on_batch(x)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Returns the loss of outputs, minus their reward, and adds it up; see `keras.Model.compute_loss`."""
        loss = self.model.compute_loss(x, y, y_pred, sample_weight)
        rewards = rewards_of(self.model)
        return loss if rewards is None else rewards.evaluated(loss, (x, y, sample_weight), y_pred, self.model)

    def compute_reward(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Returns the weighted sum of the rewards of outputs, a scalar float32, as an evaluation computes it.

        Args:
          x: features; no reward looks at them.
          y: targets; None if rewards need none.
          y_pred: outputs of the model.
          sample_weight: weights of the examples.

        Raises:
          ArgumentError: `compile` was given no reward.
        """
        if (rewards := rewards_of(self.model)) is None:
            raise ArgumentError("compute_reward: the program has no reward; give compile one by reward=")
        with self._engine.scope():
            return rewards.value(*tf.nest.map_structure(_as_tensor, (y, y_pred, sample_weight)))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Adds outputs to the metrics, and returns what these say then; see `keras.Model.compute_metrics`."""
        return dict(self.model.compute_metrics(x, y, y_pred, sample_weight))

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns what the metrics say now, by name."""
        return dict(self.model.get_metrics_result())

    def _check_compiled(self, method: str) -> None:
        if getattr(self.model, "optimizer", None) is None:
            raise NotCompiledError(method)
        _refuse_jit(self.model.jit_compile)


def _steps_per_epoch(source: Source, given: int | None, num_epochs: int) -> int | None:
    """Returns the steps of an epoch, after cutting the data as it is given; None if they show with its end."""
    if given:
        source.cut(given, num_epochs)
    elif source.batches_per_epoch is None and source.is_endless:
        raise ArgumentError("the data has no end; say with steps_per_epoch how many batches make an epoch")
    return given or source.batches_per_epoch


def _refuse_jit(jit_compile: bool | None) -> None:
    if jit_compile:
        raise ArgumentError(
            "jit_compile: fit does not have XLA compile its steps, whose last batch of an epoch has another size; "
            "compile without it, or use an experiment with runtime.enable_xla"
        )


def _one_batch(x: Any, y: Any, sample_weight: Any) -> Arrays:
    return Arrays(packed(x, y, sample_weight), batch_size=_ALL, shuffle=False, seed=0)


def _as_tensor(value: Any) -> Any:
    return None if value is None else tf.convert_to_tensor(value)


_ALL = 2**31 - 1  # rows: a batch of whatever there is


def _results(logs: dict[str, Any], return_dict: bool) -> Any:
    """Returns numbers as Keras does: a dictionary, or a list, or the only one."""
    if return_dict:
        return logs
    values = list(logs.values())
    return values[0] if len(values) == 1 else values


def _callback_list(
    model: Any, callbacks: Any, verbose: Any, epochs: int, steps: int | None, *, trains: bool = True
) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    verbose = (1 if sys.stdout.isatty() else 2) if verbose == "auto" else verbose
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=trains,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )
