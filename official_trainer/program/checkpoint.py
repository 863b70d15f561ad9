"""`ProgramCheckpoint`: checkpoints of a program under names of one's own, in the words of Keras's ModelCheckpoint.

Owns: these words, and what is refused before training. Does not own: which checkpoints stay, and that a half-written
one never counts (`checkpoints/named.py`), names (`checkpoints/name_template.py`), when it is called (`callbacks.py`),
or reading them back (`loading.py`).

    ProgramCheckpoint("/runs/digits/best/{epoch:02d}-{val_loss:.3f}", monitor="val_loss", max_to_keep=3)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from official_trainer import files
from official_trainer.checkpoints.name_template import COUNTERS, NameTemplate
from official_trainer.checkpoints.named import NamedCheckpoints, Policy
from official_trainer.lazy import keras, tf
from official_trainer.program.data import ArgumentError
from official_trainer.tasks import metrics
from official_trainer.tracking.monitored import Direction, required_metric

if TYPE_CHECKING:
    from official_trainer.program.callbacks import Epochs

_OF_VALIDATION = "val_"
_FORMATS = (".keras", ".h5", ".hdf5", ".tf")


class ProgramCheckpoint(keras.callbacks.Callback):
    """Saves the program, or its variables, after epochs or every so many steps of `Program.fit`.

    Each checkpoint is a folder of its name, and counts once it is whole. Which are kept, and what the best value is, is
    read from those that are there, so a restart changes nothing. `Program.load` and `Program.load_weights` read them.

    Attributes:
      every_steps: steps from one to the next; None for after epochs.
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
        """Takes Keras's arguments, and how many are kept.

        Args:
          filepath: where, and after the last `/` the template of names: `{epoch:02d}`, `{batch}` and `{step:08d}` count
            from 1, and any number that `fit` tells callbacks can be named, such as `{val_loss:.2f}`.
          monitor: the number that says which are best; None keeps the newest, or means `val_loss` with
            `save_best_only`.
          verbose: 1 prints a line for each.
          save_best_only: whether only what is strictly better than all before is saved.
          save_weights_only: whether the optimizer is left out.
          mode: whether higher (`max`) or lower (`min`) values are better; `auto` takes what the metric declares.
          save_freq: `epoch`, or a number: saved at the global steps that are multiples of it.
          initial_value_threshold: only better values than this are saved.
          max_to_keep: how many are kept, the best or the newest; None keeps all.
          keep_every_n_steps: those at multiples of it are kept beside them for ever.

        Raises:
          ArgumentError: arguments contradict each other, or the template cannot be read.
        """
        super().__init__()
        self.filepath = str(os.fspath(filepath))
        self.verbose, self.save_weights_only = verbose, save_weights_only
        self.monitor = monitor or ("val_loss" if save_best_only else "")
        self.mode, self.save_freq = mode, save_freq
        self._policy = Policy(
            monitor=self.monitor,
            max_to_keep=max_to_keep,
            save_best_only=save_best_only,
            threshold=initial_value_threshold,
            keep_every_n_steps=keep_every_n_steps,
        )
        if problem := next(self._problems(), None):
            raise ArgumentError(f"ProgramCheckpoint: {problem}")
        self._directory, self._name, self._template = split(self.filepath)
        self.every_steps = None if save_freq == "epoch" else int(save_freq)
        self._trainer: Any = None
        self._epochs: Epochs | None = None
        self._found: NamedCheckpoints | None = None

    def _problems(self) -> Any:
        policy = self._policy
        if self.save_freq != "epoch" and not _is_count(self.save_freq):
            yield f"save_freq={self.save_freq!r}; allowed: 'epoch', or a number of steps from 1 on"
        if self.mode not in ("auto", "min", "max"):
            yield f"mode={self.mode!r}; allowed: 'auto', 'min', 'max'"
        for name in ("max_to_keep", "keep_every_n_steps"):
            if (count := getattr(policy, name)) is not None and not _is_count(count):
                yield f"{name}={count!r}; allowed: a number from 1 on, or None"
        if not self.monitor and self.mode != "auto":
            yield f"mode={self.mode!r} has no effect without monitor"
        if not self.monitor and policy.threshold is not None:
            yield f"initial_value_threshold={policy.threshold} has no effect without monitor"
        if self.filepath.endswith(_FORMATS):
            yield (
                f"filepath={self.filepath!r} names a file of another format; each checkpoint is a folder here. Leave "
                "the ending out, or use tf_keras.callbacks.ModelCheckpoint"
            )

    @property
    def kept(self) -> tuple[str, ...]:
        """The folders of the checkpoints that are there, best or newest first; none before training."""
        return () if self._found is None else tuple(self._found.folder(one.name) for one in self._found.kept)

    @property
    def place(self) -> tuple[str, str]:
        """The directory, and the template of names there; no other callback may have both."""
        return self._directory, self._name

    # A call of fit.

    def watch(self, trainer: Any, epochs: Epochs) -> None:
        """Begins with a call of `fit`, and looks at what an earlier process has left.

        Raises:
          ArgumentError: the template or `monitor` names what callbacks will not be told.
          MetricDirectionError: `mode` is `auto`, and nobody says which values are better.
        """
        model = trainer.model
        known = _numbers(trainer.numbers.current(training=True))
        if self.every_steps is None and epochs.validated:
            known += [f"{_OF_VALIDATION}{name}" for name in _numbers(trainer.numbers.current(training=False))]
        is_certain = type(model).train_step is keras.Model.train_step  # what a model's own returns shows with its first
        for name in self._needed:
            if name not in known and (is_certain or name.startswith(_OF_VALIDATION)):
                counters = ", ".join(f"{{{counter}}}" for counter in COUNTERS)
                where = "monitor" if name == self.monitor else f"{{{name}}} in {self.filepath!r}"
                when = "after an epoch" if self.every_steps is None else "after a step, where there is no validation"
                raise ArgumentError(
                    f"ProgramCheckpoint: {where}: there is no {name!r} {when}; there are {', '.join(known)}"
                    f"{'' if name == self.monitor else f', and {counters}'}"
                )
        direction = self._direction(trainer) if self.monitor else "max"
        self._trainer, self._epochs = trainer, epochs
        policy = Policy(**{**vars(self._policy), "direction": direction})
        self._found = NamedCheckpoints(self._directory, policy, owner=self._name)

    @property
    def _needed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.monitor, *self._template.metrics) if name))

    def _direction(self, trainer: Any) -> Direction:
        if self.mode != "auto":
            return "min" if self.mode == "min" else "max"
        name = self.monitor.removeprefix(_OF_VALIDATION)
        if name == "loss" or name in [f"{output}_loss" for output in trainer.model.output_names]:
            return "min"
        measures = [*trainer.model.metrics, *trainer.train_metrics, *trainer.validation_metrics]
        metric = next((each for each in measures if each.name == name), None)
        if (found := None if metric is None else metrics.direction_of(metric)) is not None:
            return found
        who = "it is no metric of the model" if metric is None else f"{type(metric).__name__} does not say"
        raise metrics.MetricDirectionError(
            f"ProgramCheckpoint: it cannot be told whether a higher or a lower {self.monitor!r} is better: {who}; set "
            'mode to "max" or "min", or give the metric an attribute direction with one of these'
        )

    def on_train_begin(self, logs: Any = None) -> None:
        if self._trainer is None:
            raise ArgumentError(
                "ProgramCheckpoint is for Program.fit; keras.Model.fit takes tf_keras.callbacks.ModelCheckpoint"
            )

    def on_train_end(self, logs: Any = None) -> None:
        self._trainer = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.every_steps is None:
            self._offer(logs or {})

    def on_step(self, step: int, logs: Mapping[str, Any]) -> None:
        """Saves if it is due after `step`; `logs` are the running metrics."""
        if self.every_steps is not None and step % self.every_steps == 0:
            self._offer(logs)

    def _offer(self, logs: Mapping[str, Any]) -> None:
        """Saves the state as it is, if it is among those that stay."""
        assert self._found is not None and self._epochs is not None
        step = int(self._trainer.global_step.numpy())
        epoch, batch = self._epochs.place(step - 1)
        values = {name: float(logs[name]) for name in _numbers(logs)}
        if not self._epochs.is_validated(epoch) and any(name.startswith(_OF_VALIDATION) for name in self._needed):
            return  # epochs without a validation have no such numbers
        for name in self._needed:
            required_metric(values, name)
        new = self._found.candidate(self._template.format(step, (epoch + 1, batch + 1), values), step, values)
        is_taken = self._found.policy.takes(new, self._found.kept)
        if self.verbose:
            what = f"{self.monitor} is {new.value:.5f}, " if new.value is not None else ""
            done = f"saving to {self._found.folder(new.name)}" if is_taken else "not among those that are kept"
            print(f"\nEpoch {epoch + 1}, step {step}: {what}{done}")
        if is_taken:
            self._found.save(new, self._checkpoint(), values)

    def _checkpoint(self) -> tf.train.Checkpoint:
        trainer = self._trainer
        others = {} if self.save_weights_only else {"optimizer": trainer.optimizer}
        return tf.train.Checkpoint(global_step=trainer.global_step, model=trainer.model, **others)


def watch_all(callbacks: Any, trainer: Any, epochs: Epochs) -> None:
    """Begins with a call of `fit` for all of these callbacks among others.

    Raises:
      ArgumentError: two have the same names, and each would delete the other's.
    """
    found = those_among(callbacks)
    for number, each in enumerate(found):
        if each.place in [other.place for other in found[:number]]:
            raise ArgumentError(f"ProgramCheckpoint: two have filepath={each.filepath!r}; give one of them another")
    for each in found:
        each.watch(trainer, epochs)


def those_among(callbacks: Any) -> Sequence[ProgramCheckpoint]:
    """Returns the callbacks of this kind among others."""
    return [each for each in callbacks if isinstance(each, ProgramCheckpoint)]


def split(filepath: str) -> tuple[str, str, NameTemplate]:
    """Returns the directory of a file path, and its template of names, also as it was written.

    Raises:
      ArgumentError: the template cannot be read, or the directory has placeholders in it.
    """
    directory, _, name = filepath.rpartition("/")
    if "{" in directory:
        raise ArgumentError(f"{filepath!r} has placeholders before its last '/'; they can be in the name alone")
    try:
        template = NameTemplate(name)
    except ValueError as error:
        raise ArgumentError(f"{filepath!r}: {error}") from None
    if not directory:
        directory = "/" if filepath.startswith("/") else "."
    return files.join(directory), name, template


def _numbers(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of those that are one number each."""
    return [name for name, value in logs.items() if np.ndim(value) == 0]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
