"""`ProgramCheckpoint`, Keras's ModelCheckpoint for a program, and reading checkpoints back into a program.

Owns: its arguments and what is refused before training, which checkpoint a path means, and that a checkpoint is read
completely or not at all. Does not own: which checkpoints are kept, and that a half-written one never counts
(`checkpoints/kept.py`), names (`checkpoints/name_template.py`), or assigning values (`checkpoints/restore.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from official_trainer import files
from official_trainer.checkpoints import garden, init_checkpoint, kept, matching, restore
from official_trainer.checkpoints.kept import KeptCheckpoints
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.name_template import COUNTERS, NameTemplate
from official_trainer.checkpoints.retention import Retention
from official_trainer.lazy import keras, tf
from official_trainer.program import keras_fit
from official_trainer.program.data import ArgumentError
from official_trainer.program.epochs import Epochs
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import vocabularies
from official_trainer.tracking.monitored import Direction, required_value

_OF_VALIDATION = "val_"
_FILES = (".keras", ".h5", ".hdf5")
_FORMATS = (*_FILES, ".tf")


def _parse(filepath: str) -> tuple[tuple[str, str], NameTemplate]:
    """Returns the directory of a `filepath` and the template of names there, as text; and that template, parsed.

    Raises:
      ArgumentError: the template cannot be read, or the directory contains placeholders.
    """
    directory, _, name = filepath.rpartition("/")
    if "{" in directory:
        raise ArgumentError(f"{filepath!r} has placeholders before its last '/'; only the name may have them")
    try:
        template = NameTemplate(name)
    except ValueError as error:
        raise ArgumentError(f"{filepath!r}: {error}") from None
    if not directory:
        directory = "/" if filepath.startswith("/") else "."
    return (files.join(directory), name), template


class _Callback:
    """A callback that does nothing, for a list of callbacks of either Keras, neither of which it imports."""

    model: Any = None
    params: Any = None

    def set_model(self, model: Any) -> None:
        self.model = model

    def set_params(self, params: Any) -> None:
        self.params = params

    def _nothing(self, *arguments: Any, **keywords: Any) -> None:
        pass

    on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = _nothing
    on_batch_begin = on_batch_end = on_train_batch_begin = on_train_batch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = on_test_batch_end = _nothing
    on_predict_begin = on_predict_end = on_predict_batch_begin = on_predict_batch_end = _nothing
    # What tf_keras asks: whether it looks at batches.
    _implements_train_batch_hooks = _implements_test_batch_hooks = _implements_predict_batch_hooks = _nothing


class ProgramCheckpoint(_Callback):
    """Saves the program, or its variables, after epochs or at regular steps of `Program.fit`.

    Size: each argument is a field, and two more are what Keras sets on a callback.

    Each checkpoint is a folder of its name, and counts once it is complete. Which are kept, and the best value, follow
    from the checkpoints that are there, so a restart changes nothing. `Program.load` and `Program.load_weights` read
    them.

    Attributes:
      every_steps: steps from one checkpoint to the next; None for one after each epoch.
      directory_and_names: the directory, and the template of names there; no other callback may have both.

    Example:
      >>> import numpy as np
      >>> from official_trainer import Program
      >>> from official_trainer.lazy import keras
      >>> from official_trainer.program import ProgramCheckpoint
      >>> x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
      >>> program = Program(keras.Sequential([keras.Input([1]), keras.layers.Dense(1)]))
      >>> program.compile(keras.optimizers.SGD(0.1), "mse")
      >>> kept = ProgramCheckpoint("best/{epoch:02d}", monitor="loss", max_to_keep=2)
      >>> history = program.fit(x, 3 * x, epochs=3, callbacks=[kept], verbose=0)
      >>> kept.kept
      ('best/03', 'best/02')
      >>> program.load("best/02")  # fit continues from there
    """

    def __init__(  # noqa: PLR0913 - the signature is Keras's
        self,
        filepath: str | os.PathLike[str],
        monitor: str | None = None,
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
        max_to_keep: int | None = None,
        keep_every_n_steps: int | None = None,
    ) -> None:
        """Takes Keras's arguments, and how many checkpoints are kept.

        Args:
          filepath: a directory, and after the last `/` the template of names: `{epoch:02d}`, `{batch}` and `{step:08d}`
            count from 1, and any number in the logs of callbacks can be named, such as `{val_loss:.2f}`.
          monitor: the number that decides which are best; None keeps the newest, or means `val_loss` with
            `save_best_only`.
          verbose: 1 prints a line for each.
          save_best_only: whether to save only what is strictly better than all before.
          save_weights_only: whether the optimizer is left out.
          mode: whether higher (`max`) or lower (`min`) values are better; `auto` takes what the metric declares.
          save_freq: `epoch`, or a number: saved at the global steps that are multiples of it.
          initial_value_threshold: only better values than this are saved, with `save_best_only` or `max_to_keep`; as in
            Keras, it has no effect where everything is saved.
          max_to_keep: how many are kept, the best or the newest; None keeps all.
          keep_every_n_steps: checkpoints at multiples of it are kept too, for ever.

        Raises:
          ArgumentError: arguments contradict each other, or the template cannot be read.
        """
        super().__init__()
        self.filepath = str(os.fspath(filepath))
        self.verbose, self.save_weights_only = verbose, save_weights_only
        self.monitor = monitor or ("val_loss" if save_best_only else "")
        self.mode, self.save_freq = mode, save_freq
        ranks = save_best_only or max_to_keep is not None  # else all are kept, as in Keras also those that are NaN
        self._policy = Retention(
            monitor=self.monitor if ranks else "",
            max_to_keep=max_to_keep,
            save_best_only=save_best_only,
            threshold=initial_value_threshold if ranks else None,
            keep_every_n_steps=keep_every_n_steps,
        )
        if problem := next(self._problems(initial_value_threshold), None):
            raise ArgumentError(f"ProgramCheckpoint: {problem}")
        self.directory_and_names, self._template = _parse(self.filepath)
        self.every_steps = None if save_freq == "epoch" else int(save_freq)
        self._fit: tuple[Any, Epochs] | None = None  # trainer and epochs of the call of fit that runs
        self._checkpoints: KeptCheckpoints | None = None

    def _problems(self, initial_value_threshold: float | None) -> Iterator[str]:
        policy = self._policy
        if self.save_freq != "epoch" and not _is_count(self.save_freq):
            yield f"save_freq={self.save_freq!r}; allowed: 'epoch', or a number of steps from 1 on"
        if self.mode not in ("auto", "min", "max"):
            yield f"mode={self.mode!r}; allowed: 'auto', 'min', 'max'"
        for name in ("max_to_keep", "keep_every_n_steps"):
            if (count := getattr(policy, name)) is not None and not _is_count(count):
                yield f"{name}={count!r}; allowed: a number from 1 on, or None"
        if not self.monitor and self.mode != "auto":
            yield f"mode={self.mode!r} has no effect without monitor; give monitor too"
        if not self.monitor and initial_value_threshold is not None:
            yield f"{initial_value_threshold=} has no effect without monitor; give monitor too"
        if self.filepath.endswith(_FORMATS):
            yield (
                f"filepath={self.filepath!r} names a file of another format, but each checkpoint is a folder; leave "
                "out the ending, or use tf_keras.callbacks.ModelCheckpoint"
            )

    @property
    def kept(self) -> tuple[str, ...]:
        """The folders of the checkpoints that are there, best or newest first; none before training."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return ()
        return tuple(checkpoints.folder(one.name) for one in checkpoints.kept)

    # A call of fit.

    def watch(self, trainer: Any, epochs: Epochs) -> None:
        """Begins a call of `fit`, with the checkpoints that an earlier process has left.

        Raises:
          ArgumentError: the template or `monitor` names a number that is not in the logs of callbacks.
          MetricDirectionError: `mode` is `auto`, and it is unknown which values are better.
        """
        logged = _numbers(trainer.task.current(training=True))
        if self.every_steps is None and epochs.validated:
            logged += [f"{_OF_VALIDATION}{name}" for name in _numbers(trainer.task.current(training=False))]
        # The results of a model's own train_step are unknown before its first step.
        is_certain = not keras_fit.overrides(trainer.model, "train_step")
        for name in self._needed:
            if name not in logged and (is_certain or name.startswith(_OF_VALIDATION)):
                counters = ", ".join(f"{{{counter}}}" for counter in COUNTERS)
                where = "monitor" if name == self.monitor else f"{{{name}}} in {self.filepath!r}"
                when = "after an epoch" if self.every_steps is None else "after a step, where there is no validation"
                raise ArgumentError(
                    f"ProgramCheckpoint: {where}: there is no {name!r} {when}; there are {', '.join(logged)}"
                    f"{'' if name == self.monitor else f', and {counters}'}"
                )
        direction: Direction = "max"
        if self.monitor:
            direction = trainer.evaluation.chosen_direction(self.monitor.removeprefix(_OF_VALIDATION), self.mode)
        policy = dataclasses.replace(self._policy, direction=direction)
        directory, names = self.directory_and_names
        self._checkpoints = KeptCheckpoints(directory, policy, template=names, is_shared=True)
        self._checkpoints.tidy()
        self._fit = trainer, epochs

    @property
    def _needed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.monitor, *self._template.metrics) if name))

    def on_train_begin(self, logs: Any = None) -> None:
        if self._fit is None:
            raise ArgumentError(
                "ProgramCheckpoint is for Program.fit; give keras.Model.fit a tf_keras.callbacks.ModelCheckpoint"
            )

    def on_train_end(self, logs: Any = None) -> None:
        self._fit = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.every_steps is None:
            self._offer(logs or {})

    def on_step(self, step: int, logs: Mapping[str, Any]) -> None:
        """Saves if a checkpoint is due after `step`; `logs` are the running metrics."""
        if self.every_steps is not None and step % self.every_steps == 0:
            self._offer(logs)

    def _offer(self, logs: Mapping[str, Any]) -> None:
        """Saves the current state, if the policy keeps it."""
        assert self._fit is not None and self._checkpoints is not None
        trainer, epochs = self._fit
        checkpoints = self._checkpoints
        step = int(trainer.global_step.numpy())
        epoch, batch = epochs.epoch_and_batch(step - 1)
        values = {name: float(logs[name]) for name in _numbers(logs)}
        if not epochs.is_validated(epoch) and any(name.startswith(_OF_VALIDATION) for name in self._needed):
            return  # epochs without a validation have no such numbers
        for name in self._needed:
            required_value(values, name)
        new = checkpoints.candidate(self._template.format(step, (epoch + 1, batch + 1), values), step, values)
        is_kept = checkpoints.takes(new)
        if self.verbose:
            what = f"{self.monitor} is {new.value:.5f}, " if new.value is not None else ""
            done = f"saving to {checkpoints.folder(new.name)}" if is_kept else "not saved: not among those to keep"
            print(f"\nEpoch {epoch + 1}, step {step}: {what}{done}")
        if is_kept:
            items = _items(trainer.model, trainer.optimizer)
            if self.save_weights_only:
                items = {"model": _without_optimizer(trainer.model)}
            checkpoints.save(new, tf.train.Checkpoint(global_step=trainer.global_step, **items))


def _numbers(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of the logs that are single numbers."""
    return [name for name, value in logs.items() if np.ndim(value) == 0]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# Reading.


def read_weights(model: keras.Model, filepath: str | os.PathLike[str]) -> None:
    """Reads the variables of a model from a checkpoint, or from what Keras has saved.

    Args:
      model: its variables are assigned. So is its optimizer, as in Keras, if TensorFlow or Keras has written the
        checkpoint and it has one.
      filepath: of a checkpoint, see `find`; a `.keras` or `.h5` file; a SavedModel; or a checkpoint that TensorFlow or
        Keras has written, by its prefix or its folder.

    Raises:
      ArgumentError: the model has no variables yet.
      CheckpointError: there is no complete checkpoint, or it is of another model. Nothing was assigned.
    """
    _check_built(model)
    path = str(os.fspath(filepath))
    is_prefix = path.endswith(".index") or files.exists(f"{path}.index")
    if path.endswith(_FILES) or (files.exists(path) and not files.is_dir(path) and not is_prefix):  # HDF5, as in Keras
        before = model.get_weights()
        try:
            model.load_weights(path)
        except (OSError, ValueError, KeyError, TypeError) as error:  # Keras has no class of its own
            model.set_weights(before)  # some of them may be assigned
            raise CheckpointError(f"{path} cannot be read into the model, which is unchanged: {error}") from error
    else:
        prefix = find(path)
        is_of_a_run = files.exists(f"{prefix}.manifest.json") or garden.wrote(prefix)
        # Keras saves the optimizer of a compiled model inside of it, a SavedModel its metrics too.
        items = {"model": _without_optimizer(model) if is_of_a_run else vocabularies.in_checkpoint(model)}
        restore.read_items(prefix, items, allow_extra=["optimizer/*", "keras_api/*"])


def _items(model: Any, optimizer: Any) -> dict[str, Any]:
    """Returns what a checkpoint holds of a model and its optimizer."""
    trackable_optimizer = kerases.of(model).trackable_optimizer(optimizer, model)
    return {"model": vocabularies.in_checkpoint(model), "optimizer": trackable_optimizer}


def _without_optimizer(model: keras.Model) -> Any:
    """Returns what a checkpoint holds of a model but its optimizer, which `compile` makes a part of it."""
    if kerases.is_3(model):
        return vocabularies.in_checkpoint(model)  # holds none
    others = tf.train.Checkpoint()
    for name, child in tf.train.TrackableView.children(vocabularies.in_checkpoint(model)).items():
        if name != "optimizer":
            setattr(others, name, child)
    return others


def read_program(model: keras.Model, filepath: str | os.PathLike[str]) -> int:
    """Reads the variables of a compiled model and its optimizer from a checkpoint; returns its global step.

    Raises:
      ArgumentError: the model has no variables yet.
      CheckpointError: there is no complete checkpoint, or it is of another model or has no optimizer. Nothing was
        assigned.
    """
    _check_built(model)
    prefix = find(filepath)
    keys = restore.saved_keys(prefix)
    is_averaged = any(matching.AVERAGE in key for key in keys)
    if not is_averaged and not any(key.startswith("optimizer/") for key in keys):
        raise CheckpointError(f"{prefix} contains no optimizer: only variables were saved; use load_weights()")
    kerases.of(model).build_slots(model.optimizer, model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    items = _items(model, model.optimizer)
    if is_averaged:
        items["optimizer"] = tf.train.Checkpoint(ema_base_optimizer=items["optimizer"])
    restore.read_items(prefix, {"global_step": step, **items})
    return int(step.numpy())


def _check_built(model: keras.Model) -> None:
    if not model.built:
        raise ArgumentError(
            f"{model.name!r} has no variables yet; call it on a batch, or call model.build(shape), first"
        )


def find(filepath: str | os.PathLike[str]) -> str:
    """Returns the prefix of the checkpoint that a path means.

    Args:
      filepath: what `task.init_checkpoint` takes: a checkpoint's folder, or a run directory, of which the newest is
        taken, or a prefix such as `…/ckpt-100`; or the `filepath` of a `ProgramCheckpoint` with its placeholders, of
        which the newest is taken.

    Raises:
      CheckpointError: there is no complete checkpoint.
    """
    path = str(os.fspath(filepath))
    if "{" not in path:
        return init_checkpoint.find(path, "filepath")
    (directory, name), _ = _parse(path)
    if (prefix := kept.latest(directory, name)) is None:
        others = ", ".join(map(repr, kept.templates(directory)))
        hint = f"; there are checkpoints of {others}" if others else ""
        raise CheckpointError(f"{directory} contains no checkpoint with a name of the template {name!r}{hint}")
    return prefix
