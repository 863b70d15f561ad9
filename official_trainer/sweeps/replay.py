"""Optuna's study with the notes that its samplers and pruners write into it, made again from the records of trials.

Owns: asking and telling earlier trials again, in their order, with what was drawn for them; dimensions as Optuna's.
Does not own: the questions (`study.py`), samplers and pruners (`classes.py`).

CMA-ES and the genetic samplers note the generation of a trial when they draw it, successive halving how far a trial
came. Optuna keeps such notes in a database. Here they follow from the records, because a record names the earlier
trials whose ends were not known when it was drawn, and each trial has a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.sweeps.distributions import INTEGERS, LOGARITHMIC, Dimension, Value
from official_trainer.sweeps.trial import Trial

Report = tuple[int, float]


class Replay:
    """A study in which all trials of lower numbers than one were asked for, and those that have ended were told."""

    def __init__(
        self,
        study: Any,
        sampler: Callable[[int, int], Any],
        suggest: Callable[[Any, Mapping[str, Value]], None],
        *,
        draws: bool,
        prunes: bool,
    ) -> None:
        """Takes an empty study.

        Args:
          study: of Optuna, with its pruner.
          sampler: returns the one for the number of a trial and how often its draw was refused.
          suggest: has a trial of Optuna take values.
          draws: whether samplers are to draw again, because they write notes.
          prunes: whether the pruner is to be asked again about each report, because it does.
        """
        self._study, self._sampler, self._suggest = study, sampler, suggest
        self._draws, self._prunes = draws, prunes
        self._asked: dict[int, Any] = {}

    def before(self, number: int, trials: Mapping[int, Trial], without: Sequence[int]) -> None:
        """Replays all trials before one.

        Args:
          number: of that one.
          trials: the records.
          without: the trials whose ends were not known when it was drawn.
        """
        for earlier in range(number):
            trial = trials.get(earlier)
            if trial is not None:
                self.tell(trials, trial.without)
            self._ask(earlier, trial)
        self.tell(trials, without)

    def ask(self, number: int, attempt: int) -> Any:
        """Returns the trial that comes next, for which values are to be drawn."""
        self._study.sampler = self._sampler(number, attempt)
        return self._study.ask()

    def ask_again(self, trial: Trial) -> Any:
        """Returns the trial that comes next, with values that were drawn for it."""
        return self._ask(trial.number, trial)

    def tell(self, trials: Mapping[int, Trial], without: Sequence[int] = ()) -> None:
        """Tells the ends of the trials that were asked for, if they have one."""
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        for number, asked in list(self._asked.items()):
            trial = trials.get(number)
            if trial is None or trial.state is None or number in without:
                continue
            if len(self._study.directions) == 1:  # reports are for pruners
                self.report(asked, trial.reports, asks=self._prunes)
            del self._asked[number]
            self._study.tell(asked, trial.results or None, state=states[trial.state])

    def report(self, asked: Any, reports: Sequence[Report], *, asks: bool = True) -> bool:
        """Reports evaluations of a trial; returns whether it is pruned after the last one, if the pruner is asked."""
        is_pruned = False
        for step, value in reports:
            asked.report(value, step)
            is_pruned = asks and asked.should_prune()
        return bool(is_pruned)

    def _ask(self, number: int, trial: Trial | None) -> Any:
        if trial is not None:
            self._study.enqueue_trial(dict(trial.values))
        if self._draws:
            asked = self.ask(number, trial.attempt if trial else 0)
            _ = asked.relative_params  # has the sampler draw, and note what it has to
        else:
            asked = self._study.ask()
        self._asked[number] = asked
        if trial is not None:
            self._suggest(asked, trial.values)
        return asked


class Live:
    """A replay in which a trial runs: each of its reports is told once, as long as no other trial ends."""

    def __init__(self, replay: Replay, trial: Trial, known: Mapping[int, Trial]) -> None:
        """Takes a replay of nothing, the trial, and those before it that have ended."""
        replay.before(trial.number, known, trial.without)
        self._asked = replay.ask_again(trial)
        replay.tell(known)
        self._replay, self._trial, self._known = replay, trial, known
        self._told: list[Report] = []

    def goes_on(self, trial: Trial, reports: Sequence[Report], known: Mapping[int, Trial]) -> bool:
        """Returns whether these reports follow those of before, and no other trial has ended meanwhile."""
        is_same = (trial, known) == (self._trial, self._known)
        return is_same and len(reports) > len(self._told) and list(reports[: len(self._told)]) == self._told

    def report(self, reports: Sequence[Report]) -> bool:
        """Reports those that are new; returns whether the trial is pruned after the last one."""
        new, self._told = reports[len(self._told) :], list(reports)
        return self._replay.report(self._asked, new)


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
