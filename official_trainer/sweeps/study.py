"""The study of a sweep, which Optuna keeps in a journal in the sweep's directory.

Owns: opening it, the lock of the journal, samplers and pruners by their names, and the seed of each draw.
Does not own: which trial is drawn when (`driver.py`), the space (`space.py`), what is read of a study (`results.py`).

A sampler is made for each draw, seeded by the seed of the sweep, the number of the trial and the field. So what is
drawn depends on the trials before it, and not on which process draws, or how often one was killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage

from official_trainer import files
from official_trainer.config import ConfigError, Problem
from official_trainer.config.errors import best_match
from official_trainer.errors import ExitCode
from official_trainer.sweeps.settings import Objective, SweepConfig, SweepError
from official_trainer.sweeps.space import Space

JOURNAL = "study.log"
MOST_COMBINATIONS = 1000
LEAST_TRIALS = 10
"""With fewer complete trials, chance says more than a field."""

_NAME = "sweep"  # of the study; it decides what Hyperband does, so it is the same for all
_OF_THE_SWEEP = {"QMCSampler"}  # its points are one sequence, so all trials need the same seed


class FileLock:
    """The kernel's lock on a file, which ends with the process that holds it; for a `with` block, and for a journal.

    Optuna's own lock of a journal is a file, which a killed process leaves behind for half a minute.
    """

    def __init__(self, path: str, journal: str = "") -> None:
        """Takes the file, which is made, and the journal that only the holder writes."""
        self._path, self._journal = path, journal
        self._descriptor = -1

    def acquire(self) -> bool:
        """Waits for the lock, and drops a line that a killed holder, or a full disk, has left incomplete."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._descriptor = descriptor
        if self._journal:
            with open(self._journal, "rb+") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.seek(0)
                        file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Gives the lock back."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()


def storage_of(directory: str) -> Any:
    """Returns what keeps the study of a sweep.

    Args:
      directory: of the sweep, which is there.

    Raises:
      SweepError: it cannot be read.
    """
    path = files.join(directory, JOURNAL)
    lock: Any = FileLock(files.join(directory, ".study.lock"), path)  # Optuna's base class has no public name
    try:
        return JournalStorage(JournalFileBackend(path, lock))
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"{path} cannot be read ({type(error).__name__}: {error})"
        raise SweepError(f"{what}; put a good copy back", ExitCode.DATA) from error


class Draws:
    """Draws the values of trials.

    Attributes:
      study: Optuna's, with the pruner of the sweep.
    """

    def __init__(self, study: optuna.Study, space: Space, config: SweepConfig) -> None:
        """Takes the study and what is drawn, and how."""
        self.study, self._space, self._config = study, space, config
        study.pruner = pruner_of(config) or optuna.pruners.NopPruner()

    def draw(self, unfinished: optuna.trial.FrozenTrial | None = None) -> optuna.Trial:
        """Returns a new trial, or one that another process has begun, with all its values.

        Values that it has stay as they are.
        """
        number = len(self.study.get_trials(deepcopy=False)) if unfinished is None else unfinished.number
        self.study.sampler = sampler_of(self._config, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial = optuna.trial.Trial(self.study, unfinished._trial_id) if unfinished else self.study.ask()
            for field in self._space.fields:
                if field.path not in trial.params and self._space.is_drawn(field, trial.params):
                    self.study.sampler = sampler_of(self._config, trial.number, field.path)
                    field.suggest(trial)
        self.study.sampler = optuna.samplers.RandomSampler()  # others would end an `optimize` that there is not
        return trial


def create(storage: Any, objective: Objective) -> optuna.Study:
    """Returns the study of a sweep, which is made if it is not there."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = optuna.study.StudyDirection
    direction = directions.MAXIMIZE if objective.direction == "max" else directions.MINIMIZE
    study = optuna.create_study(storage=storage, study_name=_NAME, direction=direction, load_if_exists=True)
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([objective.metric])
    return study


def load(directory: str) -> optuna.Study:
    """Returns the study of a sweep that may still run.

    Raises:
      SweepError: it cannot be read.
    """
    path = files.join(directory, JOURNAL)
    if not files.exists(path):
        raise SweepError(f"{path} is not there, in which the trials of the sweep are; put a good copy back")
    try:
        return optuna.load_study(study_name=_NAME, storage=storage_of(directory))
    except KeyError as error:
        raise SweepError(f"{path} has no study {_NAME!r}; put a good copy back") from error


def importance(study: optuna.Study) -> dict[str, float] | None:
    """Returns the share of each field, which add up to 1, the largest first; None if too few trials tell."""
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if len(complete) < LEAST_TRIALS:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the evaluator may change
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (RuntimeError, ValueError):  # all trials have the same values
            return None
    return dict(shares) or None


def rehearse(config: SweepConfig, space: Space, objective: Objective) -> None:
    """Draws two trials in memory, so that what a sampler cannot do is said before the first one is trained.

    Raises:
      ConfigError: with what Optuna says.
    """
    draws = Draws(create(optuna.storages.InMemoryStorage(), objective), space, config)
    sampler_of(config)
    try:
        for _ in range(2):
            draws.study.tell(draws.draw(), 0.0)
    except (ValueError, NotImplementedError, ImportError, RuntimeError) as error:
        raise ConfigError([Problem(f"Optuna says: {error}", "sampler")]) from error


def count_combinations(config: SweepConfig, space: Space) -> int:
    """Returns how many different trials there are, by drawing them in memory; at most those that are asked for.

    Raises:
      ConfigError: there are very many.
    """
    most = config.trials or MOST_COMBINATIONS + 1
    memory = optuna.create_study(sampler=sampler_of(config))

    def draw(trial: optuna.Trial) -> float:
        for field in space.fields:
            if space.is_drawn(field, trial.params):
                field.suggest(trial)
        return 0.0

    memory.optimize(draw, n_trials=most)
    if config.trials is None and len(memory.trials) == most:
        what = f"is not set, and there are more than {MOST_COMBINATIONS:,} combinations"
        raise ConfigError([Problem(what, "trials", fix="set it, or narrow the space")])
    return len(memory.trials)


def sampler_of(config: SweepConfig, number: int = 0, path: str = "") -> Any:
    """Returns the sampler of a draw.

    Args:
      config: the file of the sweep.
      number: of the trial.
      path: of the field.

    Raises:
      ConfigError: Optuna has no such class, or refuses its arguments.
    """
    words = ["sweep"] if config.sampler_class in _OF_THE_SWEEP else [str(number), path]
    digest = hashlib.sha256("/".join([str(config.seed), *words]).encode()).digest()
    return _instance(config.sampler, "sampler", optuna.samplers, {"seed": int.from_bytes(digest[:4], "big")})


def pruner_of(config: SweepConfig) -> Any:
    """Returns the pruner of a sweep; None without one.

    Raises:
      ConfigError: Optuna has no such class, or refuses its arguments.
    """
    return None if config.pruner is None else _instance(config.pruner, "pruner", optuna.pruners, {})


def _instance(given: str | Mapping[str, Any], path: str, module: ModuleType, seed: Mapping[str, int]) -> Any:
    """Returns an object of Optuna.

    Args:
      given: the name of its class, or a mapping with `type` and arguments.
      path: of the field in the file of the sweep.
      module: where the class is.
      seed: the argument that is no user's.
    """
    arguments = {} if isinstance(given, str) else {name: value for name, value in given.items() if name != "type"}
    name = given if isinstance(given, str) else str(given.get("type"))
    classes = [entry for entry in module.__all__ if entry[0].isupper() and not entry.startswith("Base")]
    names = [entry for entry in classes if entry not in _UNFIT]
    if name not in names:
        what = f"is no class of {module.__name__} that a sweep takes"
        near = best_match(name, names)
        allowed = "" if near else ", ".join(names)
        raise ConfigError([Problem(what, path, got=f"'{name}'", allowed=allowed, near=near)])
    parameters = list(inspect.signature(getattr(module, name)).parameters)
    for argument in arguments:
        if argument in seed:
            raise ConfigError([Problem("is a field of the sweep", f"{path}.seed", fix="write it beside the sampler")])
        if argument not in parameters:
            near = best_match(argument, parameters)
            allowed = "" if near else ", ".join(name for name in parameters if name not in seed)
            what = f"{name} has no such argument"
            raise ConfigError([Problem(what, f"{path}.{argument}", allowed=allowed, near=near)])
    for argument, value in arguments.items():
        if isinstance(value, Mapping) and "type" in value:
            arguments[argument] = _instance(value, f"{path}.{argument}", _MODULES.get(argument, module), {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return getattr(module, name)(**arguments, **seed)
        except (TypeError, ValueError, ImportError) as error:
            raise ConfigError([Problem(f"Optuna says: {error}", path)]) from error


_UNFIT = ("GridSampler", "PartialFixedSampler")
"""They take a space of their own; `BruteForceSampler` draws each combination of the sweep's."""

_MODULES = {"crossover": optuna.samplers.nsgaii, "mutation": optuna.samplers.nsgaii}
"""Where the classes of arguments are that are no samplers or pruners themselves."""
