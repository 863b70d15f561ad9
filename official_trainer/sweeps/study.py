"""Optuna: draws the values of a trial, and says whether a trial is pruned.

Owns: Optuna's study, made in memory from the records of trials for each question; seeds.
Does not own: records (`trial.py`), which classes there are, their options and the combinations of a grid
(`classes.py`), their notes (`replay.py`), ending a process (`driver.py`). Imports Optuna when an object is made.

The answer for a trial depends on its number, the sweep's seed and the trials of lower numbers alone, so a sweep that
runs its trials one after the other has the same table however often it was killed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, FrozenDict, Problem, Resolved
from official_trainer.sweeps.classes import SAMPLERS, Maker, combinations, pruner_remembers, refuse_unlearned
from official_trainer.sweeps.distributions import Dimension, Value
from official_trainer.sweeps.replay import Live, Replay, distribution, suggested
from official_trainer.sweeps.settings import Objective, user_origin
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.trial import SweepError, Trial

_USUAL_TRIALS = 20
_NAME = "sweep"  # by which Hyperband divides trials


class Study:
    """Answers questions about one sweep.

    Attributes:
      most: how many trials there can be; None for any number.
    """

    def __init__(self, space: Space, settings: Resolved, objective: Objective) -> None:
        """Takes what decides.

        Args:
          space: what is drawn.
          settings: a resolved `SweepConfig`.
          objective: what trials are compared by.

        Raises:
          ConfigError: an option of the sampler or the pruner is unknown or wrong, or the sampler cannot draw the space.
          SweepError: Optuna, or what a sampler needs, is not installed.
        """
        try:
            import optuna
        except ImportError as error:
            raise SweepError("a sweep needs Optuna: pip install 'official-trainer[sweep]'") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna: Any = optuna
        self._space, self._objective = space, objective
        self._dimensions = {each.path: each for each in space.dimensions}
        self._config = config = settings.config
        self._kind = SAMPLERS[config.sampler]
        maker = Maker(optuna, settings)
        maker.sampler(config.sampler, config.sampler_options, 0)
        refuse_unlearned(space, settings)
        self._combinations = combinations(space, settings) if self._kind.visits else ()
        self.most = len(self._combinations) if self._kind.visits else None
        self._live: Live | None = None
        if self.most is not None and config.trials is not None and config.trials > self.most:
            what = f"the space has {self.most} combinations, and {config.sampler} visits each of them once"
            origin = user_origin(settings, "trials")
            raise ConfigError([Problem(what, "trials", str(config.trials), fix="leave it out", origin=origin)])
        self._try_pruner(settings)

    def _try_pruner(self, settings: Resolved) -> None:
        """Asks the pruner once, because Optuna finds some wrong options only then."""
        if self._config.pruner is None:
            return
        values = self._space.draw(lambda each: next(iter(each.tried)))
        reports = ((1, 0.0), (2, 1.0))
        before = Trial(number=0, values=values, state="complete", value=1.0, reports=reports)
        Maker(self._optuna, settings).pruner(self._config.pruner, self._config.pruner_options)
        try:
            self.prunes(Trial(number=1, values=values), reports, {0: before})
        except Exception as error:
            what = f"{self._config.pruner} refuses its options: {type(error).__name__}: {error}"
            raise ConfigError(
                [Problem(what, "pruner_options", origin=user_origin(settings, "pruner_options"))]
            ) from error

    @property
    def trials(self) -> int:
        """How many trials are to be complete or pruned."""
        return self._config.trials or self.most or _USUAL_TRIALS

    def draw(self, number: int, trials: Mapping[int, Trial], attempt: int = 0) -> Trial:
        """Returns a new trial.

        Args:
          number: of the trial.
          trials: all trials that are recorded; those of higher numbers do not count.
          attempt: how often other values were drawn for this trial, and refused.
        """
        without = tuple(each for each in range(number) if each not in trials or trials[each].state is None)
        values: Mapping[str, Value]
        if self._kind.visits:
            values = self._combinations[(number + attempt) % len(self._combinations)]
        elif self._config.sampler == "QMCSampler":
            values = self._in_sequence(number, attempt)
        else:
            values = self._space.draw(self.chooser(number, trials, attempt, without))
        return Trial(number=number, values=values, attempt=attempt, without=without)

    def chooser(
        self, number: int, trials: Mapping[int, Trial], attempt: int = 0, without: Sequence[int] = ()
    ) -> Callable[[Dimension], Value]:
        """Returns what draws the value of one dimension after the other; see `draw`."""
        replay = self._replay()
        replay.before(number, trials, without)
        trial = replay.ask(number, attempt)
        return functools.partial(suggested, trial)

    def _in_sequence(self, number: int, attempt: int) -> Mapping[str, Value]:
        """Returns the point of a sequence with the number of the trial."""
        options = dict(self._config.sampler_options)
        options["scramble"] = options.get("scramble", True) or attempt > 0  # else all attempts were the same point
        sampler = Maker(self._optuna).sampler("QMCSampler", options, _seed(self._config.seed, attempt=attempt))
        sampler._find_sample_id = lambda study, space: number  # Optuna counts in a database
        every = {each.path: distribution(self._optuna, each) for each in self._space.dimensions}
        study = self._study()
        point = sampler.sample_relative(study, study.ask(), every)
        return self._space.draw(lambda each: point[each.path])

    def prunes(self, trial: Trial, reports: Sequence[tuple[int, float]], trials: Mapping[int, Trial]) -> bool:
        """Returns whether a trial is pruned after the last of its reports."""
        if self._config.pruner is None:
            return False
        known = {number: each for number, each in trials.items() if number < trial.number and each.state}
        if self._live is None or not self._live.goes_on(trial, reports, known):
            self._live = Live(self._replay(), trial, known)
        return self._live.report(reports)

    def _replay(self) -> Replay:
        """Returns a replay of nothing yet."""

        def suggest(trial: Any, values: Mapping[str, Value]) -> None:
            for path in values:
                suggested(trial, self._dimensions[path])

        config, study = self._config, self._study()
        if config.pruner:
            study.pruner = Maker(self._optuna).pruner(config.pruner, config.pruner_options)
        prunes = pruner_remembers(config.pruner, config.pruner_options)
        return Replay(study, self._sampler, suggest, draws=self._kind.remembers, prunes=prunes)

    @property
    def metrics(self) -> list[str]:
        """What trials are compared by."""
        return list(self._objective.directions)

    @property
    def directions(self) -> list[str]:
        """For each of them, in Optuna's words, which values are better."""
        words = {"max": "maximize", "min": "minimize"}
        return [words[each] for each in self._objective.directions.values()]

    def _study(self) -> Any:
        storage = self._optuna.storages.InMemoryStorage()
        return self._optuna.create_study(directions=self.directions, storage=storage, study_name=_NAME)

    def frozen(self, trial: Trial, attributes: Mapping[str, Any] = FrozenDict()) -> Any:
        """Returns a trial that has ended as Optuna has it, with user attributes."""
        states = self._optuna.trial.TrialState
        assert trial.state is not None
        return self._optuna.trial.create_trial(
            state=states[{"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}[trial.state]],
            values=trial.results or None,
            params=dict(trial.values),
            distributions={path: distribution(self._optuna, self._dimensions[path]) for path in trial.values},
            user_attrs=dict(attributes),
            intermediate_values={} if self._objective.others else dict(trial.reports),  # which are for pruners
        )

    def check(self, trials: Iterable[Trial]) -> None:
        """Returns if the values of all trials are of this space.

        Raises:
          SweepError: those of one are not, such as in a copied directory.
        """
        for trial in trials:
            for path, value in trial.values.items():
                if path not in self._dimensions or not self._dimensions[path].holds(value):
                    what = f"trial {trial.number} is none of this sweep, whose space does not draw {value!r} for {path}"
                    raise SweepError(f"{what}. Remove the directory of the trial: it is then run again")

    def _sampler(self, number: int, attempt: int = 0) -> Any:
        config, seed = self._config, _seed(self._config.seed, number, attempt=attempt)
        return Maker(self._optuna).sampler(config.sampler, config.sampler_options, seed)


def _seed(*parts: int, attempt: int) -> int:
    text = "/".join(map(str, (*parts, attempt) if attempt else parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
