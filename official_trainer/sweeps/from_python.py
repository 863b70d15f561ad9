"""`sweep`: a sweep as a function of Python, of an experiment or of a function that trains a `Program`.

Owns: its arguments, and `Sweep`, what it returns. Does not own: what a sweep does (`subject.py`, `sweep.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import config as configuration
from official_trainer.config import ConfigError, Resolved
from official_trainer.sweeps import functions, results, subject
from official_trainer.sweeps import sweep as sweeps
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.functions import TrialRun
from official_trainer.sweeps.observer import Observer, PlainLines, names_of
from official_trainer.sweeps.settings import SweepConfig
from official_trainer.sweeps.trial import SweepError, Trial
from official_trainer.tasks import registry


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep as its directory has it.

    Attributes:
      directory: of the sweep.
    """

    directory: str

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, by number: `values`, `state`, `value`, `step`, `reason`."""
        return tuple(trials.read_all(self.directory).values())

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, the earliest of equal ones; None if none is complete.

        Raises:
          SweepError: several metrics are compared, and several trials are the best; `front` has them.
        """
        front = self.front
        if len(front) > 1:
            numbers = ", ".join(str(each.number) for each in front)
            raise SweepError(f"of several metrics, trials {numbers} are the best; take one of `front`")
        return next(iter(front), None)

    @property
    def front(self) -> tuple[Trial, ...]:
        """The best trials: with several metrics all that no other one beats, the best by the first metric first."""
        return tuple(results.read(self.directory).best)

    def table(self) -> list[dict[str, Any]]:
        """Returns a row for each trial, for `pandas.DataFrame`: what was drawn, and how it ended."""
        ends = ("state", "value", "step", "reason")
        return [
            {"trial": each.number, **each.values, **{name: getattr(each, name) for name in ends}, **each.others}
            for each in self.trials
        ]


def sweep(
    what: str | Callable[[TrialRun], object],
    space: str | Mapping[str, Any],
    *,
    model_dir: str,
    config_file: str | Sequence[str] = (),
    params_override: str | Sequence[str] = (),
    quiet: bool = False,
    **settings: Any,
) -> Sweep:
    """Trains an experiment, or a function, many times with values drawn from a space; called again, it continues.

    It does what `official-trainer sweep` does. Each trial is a process of its own, also where this process has used
    TensorFlow. A function is called as `train(trial)`, where `trial.values` has what was drawn, and trains a `Program`
    with `model_dir=trial.model_dir` and validation data: from its evaluations trials are compared and pruned, and a
    trial that was killed continues from its checkpoint.

    Args:
      what: the name of an experiment; or a function at the top level of a file.
      space: field, or name, → its distribution, as in the file of a sweep; or the path of such a file.
      model_dir: the directory of the sweep.
      config_file: files with changes of the experiment, as for `train.py`.
      params_override: changes of the experiment, as for `train.py`.
      quiet: whether only warnings are printed.
      settings: the other fields of the file of a sweep, such as `trials=20` or `objective={"metric": "loss"}`.

    Returns:
      The trials and the best of them.

    Raises:
      ConfigError: the space, the settings or the experiment have a problem.
      SweepError: the function cannot be imported by another process, or the sweep cannot go on.
      PreemptedError: a signal came; the trials have saved.

    Example:
      >>> from pathlib import Path
      >>> from official_trainer import sweep
      >>> _ = Path("train_line.py").write_text('''
      ... import numpy as np
      ... from official_trainer import Program
      ... from official_trainer.lazy import keras
      ...
      ... def train(trial):
      ...     x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
      ...     model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
      ...     program = Program(model, model_dir=trial.model_dir)
      ...     program.compile(keras.optimizers.SGD(trial.values["rate"]), "mse")
      ...     program.fit(x, 3 * x, epochs=2, validation_data=(x, 3 * x), verbose=0)
      ... ''')
      >>> import train_line
      >>> found = sweep(
      ...     train_line.train,
      ...     {"rate": "log(1e-3, 1e-1)"},
      ...     model_dir="runs/line_sweep",
      ...     trials=2,
      ...     objective={"metric": "loss", "direction": "min"},
      ...     quiet=True,
      ... )
      >>> [(trial.number, trial.state) for trial in found.trials]
      [(0, 'complete'), (1, 'complete')]
      >>> found.best.value == min(trial.value for trial in found.trials)
      True
    """
    functions.refuse_in_trial()
    directory = os.path.expanduser(os.fspath(model_dir))
    resolved = _settings(space, settings)
    if isinstance(what, str):
        swept: subject.Subject = _experiment(what, directory, _several(config_file), _several(params_override))
    elif config_file or params_override:
        raise SweepError("config_file and params_override change an experiment; a function has none, leave them out")
    else:
        reference = functions.reference_of(what)
        swept = subject.Function(name=os.path.basename(reference), reference=reference)
    planned = subject.planned(swept, resolved, directory)
    names = names_of(resolved.config.space)
    sweeps.run(planned, Observer() if quiet else PlainLines(names, functools.partial(print, flush=True)))
    return Sweep(directory)


def _settings(space: str | Mapping[str, Any], settings: Mapping[str, Any]) -> Resolved:
    """Returns the settings of a sweep; problems of arguments have no place."""
    given = dict(settings) if isinstance(space, str) else {"space": dict(space), **settings}
    files = [space] if isinstance(space, str) else []
    try:
        overrides = [configuration.flow(given)] if given else []
        return configuration.resolve(SweepConfig(), config_files=files, params_overrides=overrides)
    except ConfigError as error:
        raise ConfigError(
            each if each.origin is None or each.origin.kind == "file" else dataclasses.replace(each, origin=None)
            for each in error.problems
        ) from None


def _experiment(name: str, directory: str, config_files: Sequence[str], overrides: Sequence[str]) -> subject.Experiment:
    base = registry.get_config(name, registry.find_workspace())

    def resolve(sets: Sequence[str]) -> Resolved:
        return configuration.resolve(
            base, experiment=name, config_files=config_files, params_overrides=overrides, sets=sets
        )

    def words(verb: str, model_dir: str, sets: Sequence[str]) -> list[str]:
        flags = [f"--config_file={each}" for each in config_files]
        flags += [f"--params_override={each}" for each in overrides]
        return [name, f"--model_dir={model_dir}", *flags, *(f"--set={each}" for each in sets)]

    return subject.Experiment(name=name, directory=directory, resolve=resolve, words=words)


def _several(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
