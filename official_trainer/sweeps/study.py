"""Optuna: draws the values of a trial, and says whether a trial is pruned.

Owns: Optuna's study, made in memory from the records of trials for each question; seeds; the options of its classes.
Does not own: records (`trial.py`), ending a process (`driver.py`). Imports Optuna when an object is made.

The answer for a trial depends on its number, the sweep's seed and the trials of lower numbers alone, so a sweep that
runs its trials one after the other has the same table however often it was killed.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, Problem, Resolved
from official_trainer.config.errors import best_match
from official_trainer.errors import ExitCode
from official_trainer.sweeps.distributions import INTEGERS, LOGARITHMIC, Dimension, Value
from official_trainer.sweeps.settings import Objective, SweepConfig
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.trial import SweepError, Trial


class Study:
    """Answers questions about one sweep."""

    def __init__(self, space: Space, settings: Resolved, objective: Objective) -> None:
        """Takes what decides.

        Args:
          space: what is drawn.
          settings: a resolved `SweepConfig`.
          objective: what trials are compared by.

        Raises:
          ConfigError: an option of the sampler or the pruner is unknown or wrong.
          SweepError: Optuna is not installed.
        """
        try:
            import optuna
        except ImportError as error:
            raise SweepError("a sweep needs Optuna: pip install 'official-trainer[sweep]'") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna: Any = optuna
        self._space, self._objective = space, objective
        self._config: SweepConfig = settings.config
        self._sampler(0, settings)
        self._pruner = self._made_pruner(settings)

    def draw(self, number: int, trials: Mapping[int, Trial], attempt: int = 0) -> dict[str, Value]:
        """Returns the values of a trial.

        Args:
          number: of the trial.
          trials: all trials that are recorded; those of higher numbers do not count.
          attempt: how often other values were drawn for this trial, and refused.
        """
        return self._space.draw(self.chooser(number, trials, attempt))

    def chooser(self, number: int, trials: Mapping[int, Trial], attempt: int = 0) -> Callable[[Dimension], Value]:
        """Returns what draws the value of one dimension after the other; see `draw`."""
        study = self._study(number, trials)
        study.sampler = self._sampler(number, attempt=attempt)
        trial = study.ask()

        def choose(each: Dimension) -> Value:
            if each.kind == "choice":
                return str(trial.suggest_categorical(each.path, each.choices))
            is_log = each.kind in LOGARITHMIC
            if each.kind in INTEGERS:
                step = int(each.step or 1)
                return int(trial.suggest_int(each.path, int(each.low), int(each.high), step=step, log=is_log))
            return float(trial.suggest_float(each.path, each.low, each.high, step=each.step, log=is_log))

        return choose

    def prunes(self, trial: Trial, reports: Sequence[tuple[int, float]], trials: Mapping[int, Trial]) -> bool:
        """Returns whether a trial is pruned after the last of its reports."""
        if self._pruner is None:
            return False
        running = self._frozen(Trial(number=trial.number, values=trial.values, reports=tuple(reports)))
        return bool(self._pruner.prune(self._study(trial.number, trials), running))

    def _study(self, number: int, trials: Mapping[int, Trial]) -> Any:
        words = {"max": "maximize", "min": "minimize"}
        directions = [words[each] for each in self._objective.directions.values()]
        study = self._optuna.create_study(directions=directions, storage=self._optuna.storages.InMemoryStorage())
        study.add_trials([self._frozen(each) for each in trials.values() if each.number < number])
        return study

    def _frozen(self, trial: Trial) -> Any:
        states = self._optuna.trial.TrialState
        state = {None: "RUNNING", "complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}[trial.state]
        return self._optuna.trial.create_trial(
            state=states[state],
            values=trial.results or None,
            params=dict(trial.values),
            distributions={each.path: self._distribution(each) for each in self._dimensions(trial.values)},
            intermediate_values={} if self._objective.others else dict(trial.reports),  # which are for pruners
        )

    def _dimensions(self, paths: Iterable[str]) -> list[Dimension]:
        by_path = {each.path: each for each in self._space.dimensions}
        return [by_path[path] for path in paths]

    def _distribution(self, each: Dimension) -> Any:
        kinds = self._optuna.distributions
        if each.kind == "choice":
            return kinds.CategoricalDistribution(each.choices)
        is_log = each.kind in LOGARITHMIC
        if each.kind in INTEGERS:
            return kinds.IntDistribution(int(each.low), int(each.high), step=int(each.step or 1), log=is_log)
        return kinds.FloatDistribution(each.low, each.high, step=each.step, log=is_log)

    def _sampler(self, number: int, settings: Resolved | None = None, attempt: int = 0) -> Any:
        config = self._config
        digest = hashlib.sha256(f"{config.seed}/{number}{f'/{attempt}' if attempt else ''}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        cls = getattr(self._optuna.samplers, config.sampler)
        return _make(cls, "sampler_options", config.sampler_options, settings, {"seed": seed})

    def _made_pruner(self, settings: Resolved) -> Any:
        if self._config.pruner is None:
            return None
        cls = getattr(self._optuna.pruners, self._config.pruner)
        return _make(cls, "pruner_options", self._config.pruner_options, settings, {})


def _make(cls: Any, field: str, options: Mapping[str, Any], settings: Resolved | None, own: Mapping[str, Any]) -> Any:
    """Returns an object of Optuna; `settings` has the places of options, and is None once they are checked.

    Raises:
      ConfigError: an option is unknown, or the class refuses it.
    """
    known = [name for name in inspect.signature(cls).parameters if name not in own]
    for name in options:
        if name not in known:
            what, path = f"{cls.__name__} has no such option", f"{field}.{name}"
            origin = settings.origin(path) if settings else None
            allowed, near = ", ".join(known), best_match(name, known)
            raise ConfigError([Problem(what, path, allowed=allowed, near=near, origin=origin)])
    try:
        return cls(**options, **own)
    except (TypeError, ValueError) as error:
        raise SweepError(f"{field}: {cls.__name__} refuses them: {error}", ExitCode.CONFIG) from error
