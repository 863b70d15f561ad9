"""Optuna: draws the values of a trial, and says whether a trial is pruned.

Owns: drawing the values of a trial, and whether it is pruned: by Optuna's study, made in memory from the records of
trials for each question; seeds; dimensions as Optuna's. `driver.py` asks: `Course.draw` (`course.py`) for a
trial, `Study.prunes` whether to prune.
Does not own: what a population draws (`population.py`), drawing again after a refusal (`course.py`), records
(`trial.py`), which classes there are, their options and the combinations of a grid (`classes.py`), ending a process
(`driver.py`). Imports Optuna when an object is made.

The answer for a trial depends on its number, the sweep's seed and the trials of lower numbers alone, so a sweep that
runs its trials one after the other has the same table however often it was killed.

CMA-ES and the genetic samplers note the generation of a trial when they draw it, successive halving how far a trial
came. Optuna keeps such notes in a database. Here they follow from the records: earlier trials are asked for and told
again, in their order, with what was drawn for them. A record names the earlier trials whose ends were not known when it
was drawn, and each trial has a seed of its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from official_trainer.config import FrozenDict, Problem, Resolved
from official_trainer.sweeps.classes import SAMPLERS, Maker, combinations, refuse_unlearned
from official_trainer.sweeps.distributions import INTEGERS, LOGARITHMIC, Dimension, Value
from official_trainer.sweeps.settings import Objective, refused
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.trial import SweepError, Trial

_USUAL_TRIALS = 20
_NAME = "sweep"  # by which Hyperband divides trials

Report = tuple[int, float]


class _Replay(NamedTuple):
    """A study of Optuna, and those of its trials that were asked for and not told yet, by number."""

    study: Any
    asked: dict[int, Any]


class _Live(NamedTuple):
    """A trial that runs: each of its reports is told once, as long as no other trial ends."""

    trial: Trial
    known: Mapping[int, Trial]
    asked: Any
    told: list[Report]


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
        self._maker = Maker(optuna, settings)
        self._maker.sampler(0)
        refuse_unlearned(space, settings)
        self._combinations = combinations(space, settings) if self._kind.visits else ()
        self.most = len(self._combinations) if self._kind.visits else None
        self._live: _Live | None = None
        if self.most is not None and config.trials is not None and config.trials > self.most:
            what = f"the space has {self.most} combinations, and {config.sampler} visits each of them once"
            raise refused(settings, Problem(what, "trials", str(config.trials), fix="leave it out"))
        self._try_pruner(settings)

    def _try_pruner(self, settings: Resolved) -> None:
        """Asks the pruner once, because Optuna finds some wrong options only then."""
        if self._config.pruner is None:
            return
        values = self._space.draw(lambda each: next(iter(each.tried)))
        reports = ((1, 0.0), (2, 1.0))
        before = Trial(number=0, values=values, state="complete", value=1.0, reports=reports)
        self._maker.pruner()
        try:
            self.prunes(Trial(number=1, values=values), reports, {0: before})
        except Exception as error:
            what = f"{self._config.pruner} refuses its options: {type(error).__name__}: {error}"
            raise refused(settings, Problem(what, "pruner_options")) from error

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
        replay = self._replayed(number, trials, without)
        replay.study.sampler = self._sampler(number, attempt)
        return functools.partial(suggested, replay.study.ask())

    def _in_sequence(self, number: int, attempt: int) -> Mapping[str, Value]:
        """Returns the point of a sequence with the number of the trial."""
        scrambles = self._config.sampler_options.get("scramble", True) or attempt > 0  # else all attempts were the same
        sampler = self._maker.sampler(_seed(self._config.seed, attempt=attempt), scramble=scrambles)
        sampler._find_sample_id = lambda study, space: number  # Optuna counts in a database
        every = {each.path: distribution(self._optuna, each) for each in self._space.dimensions}
        study = self._new_study()
        point = sampler.sample_relative(study, study.ask(), every)
        return self._space.draw(lambda each: point[each.path])

    def prunes(self, trial: Trial, reports: Sequence[Report], trials: Mapping[int, Trial]) -> bool:
        """Returns whether a trial is pruned after the last of its reports."""
        if self._config.pruner is None:
            return False
        known = {number: each for number, each in trials.items() if number < trial.number and each.state}
        live, count = self._live, len(self._live.told) if self._live else 0
        if live is None or (trial, known) != live[:2] or list(reports[:count]) != live.told or len(reports) == count:
            replay = self._replayed(trial.number, known, trial.without)
            asked = self._ask(replay, trial.number, trial)
            self._tell(replay, known)
            self._live = live = _Live(trial, known, asked, [])
        new = reports[len(live.told) :]
        live.told.extend(new)
        return _report(live.asked, new, asks=True)

    # The replay of what is recorded.

    def _replayed(self, number: int, trials: Mapping[int, Trial], without: Sequence[int]) -> _Replay:
        """Returns a study in which all trials before one were asked for, and told if their ends were known to it.

        Args:
          number: of that one.
          trials: the records.
          without: the trials whose ends were not known when it was drawn.
        """
        study = self._new_study()
        if self._config.pruner:
            study.pruner = self._maker.pruner()
        replay = _Replay(study, {})
        for earlier in range(number):
            trial = trials.get(earlier)
            if trial is not None:
                self._tell(replay, trials, trial.without)
            self._ask(replay, earlier, trial)
        self._tell(replay, trials, without)
        return replay

    def _ask(self, replay: _Replay, number: int, trial: Trial | None) -> Any:
        """Asks for the trial that comes next, with the values on record, if there are."""
        if trial is not None:
            replay.study.enqueue_trial(dict(trial.values))
        if self._kind.remembers:
            replay.study.sampler = self._sampler(number, trial.attempt if trial else 0)
        asked = replay.asked[number] = replay.study.ask()
        if self._kind.remembers:
            _ = asked.relative_params  # has the sampler draw, and note what it has to
        for path in trial.values if trial is not None else ():
            suggested(asked, self._dimensions[path])
        return asked

    def _tell(self, replay: _Replay, trials: Mapping[int, Trial], without: Sequence[int] = ()) -> None:
        """Tells the ends of the trials that were asked for, if they have one that is not among `without`."""
        for number, asked in list(replay.asked.items()):
            trial = trials.get(number)
            if trial is None or trial.state is None or number in without:
                continue
            if not self._objective.others:  # reports are for pruners
                _report(asked, trial.reports, asks=self._maker.pruner_remembers)
            del replay.asked[number]
            replay.study.tell(asked, trial.results or None, state=self._state(trial))

    @property
    def metrics(self) -> list[str]:
        """What trials are compared by."""
        return list(self._objective.directions)

    @property
    def directions(self) -> list[str]:
        """For each of them, in Optuna's words, which values are better."""
        words = {"max": "maximize", "min": "minimize"}
        return [words[each] for each in self._objective.directions.values()]

    def _new_study(self) -> Any:
        storage = self._optuna.storages.InMemoryStorage()
        return self._optuna.create_study(directions=self.directions, storage=storage, study_name=_NAME)

    def frozen(self, trial: Trial, attributes: Mapping[str, Any] = FrozenDict()) -> Any:
        """Returns a trial that has ended as Optuna has it, with user attributes."""
        return self._optuna.trial.create_trial(
            state=self._state(trial),
            values=trial.results or None,
            params=dict(trial.values),
            distributions={path: distribution(self._optuna, self._dimensions[path]) for path in trial.values},
            user_attrs=dict(attributes),
            intermediate_values={} if self._objective.others else dict(trial.reports),  # which are for pruners
        )

    def _state(self, trial: Trial) -> Any:
        states = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        return self._optuna.trial.TrialState[states[str(trial.state)]]

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
        return self._maker.sampler(_seed(self._config.seed, number, attempt=attempt))


def _seed(*parts: int, attempt: int) -> int:
    text = "/".join(map(str, (*parts, attempt) if attempt else parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _report(asked: Any, reports: Sequence[Report], *, asks: bool) -> bool:
    """Reports evaluations of a trial; returns whether it is pruned after the last one, if the pruner is asked."""
    is_pruned = False
    for step, value in reports:
        asked.report(value, step)
        is_pruned = asks and asked.should_prune()
    return bool(is_pruned)


def distribution(optuna: Any, each: Dimension) -> Any:
    """Returns a dimension as Optuna has it."""
    kinds = optuna.distributions
    if each.kind == "choice":
        return kinds.CategoricalDistribution(each.choices)
    return (kinds.IntDistribution if each.kind in INTEGERS else kinds.FloatDistribution)(**_range(each))


def suggested(trial: Any, each: Dimension) -> Value:
    """Returns the value of a dimension that a trial of Optuna draws."""
    if each.kind == "choice":
        return str(trial.suggest_categorical(each.path, each.choices))
    if each.kind in INTEGERS:
        return int(trial.suggest_int(each.path, **_range(each)))
    return float(trial.suggest_float(each.path, **_range(each)))


def _range(each: Dimension) -> dict[str, Any]:
    is_log = each.kind in LOGARITHMIC
    if each.kind in INTEGERS:
        return {"low": int(each.low), "high": int(each.high), "step": int(each.step or 1), "log": is_log}
    return {"low": each.low, "high": each.high, "step": each.step, "log": is_log}
