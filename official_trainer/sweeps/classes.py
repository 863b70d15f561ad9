"""Optuna's samplers and pruners: which ones a sweep offers, what each of them needs, their options.

Owns: making them from the file of a sweep, refusing a space that one of them would not learn; the combinations of a
space, for the samplers that visit each of them once.
Does not own: the questions that they answer, and the replay of earlier trials (`study.py`).

Optuna draws what a sampler does not learn at random, with a warning. A sweep refuses that before its first trial.
Optuna's own `GridSampler` and `BruteForceSampler` choose by the trials that they know of, so two processes may choose
the same combination. Here trial N has combination N, whatever other processes do.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.config import ConfigError, Problem, Resolved, fields
from official_trainer.config.errors import best_match, not_a_choice
from official_trainer.sweeps.distributions import INTEGERS, Dimension, Value
from official_trainer.sweeps.settings import refused, user_origin
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.trial import SweepError


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a sweep has to know of a class.

    Attributes:
      package: that it imports, beside Optuna and NumPy; and what pip calls it.
      remembers: whether it writes notes on trials into Optuna's study, and reads them later.
      branches: whether it learns fields that are drawn in some trials only.
      choices: whether it learns choices.
      several: whether it takes several metrics.
      visits: whether it visits each combination of the space once, see `combinations`.
    """

    package: str = ""
    remembers: bool = False
    branches: bool = True
    choices: bool = True
    several: bool = True
    visits: bool = False


SAMPLERS = {
    "TPESampler": Kind(),
    "RandomSampler": Kind(),
    "QMCSampler": Kind(package="scipy"),
    "GridSampler": Kind(visits=True),
    "BruteForceSampler": Kind(visits=True),
    "GPSampler": Kind(package="torch", branches=False),
    "CmaEsSampler": Kind(package="cmaes", remembers=True, branches=False, choices=False, several=False),
    "NSGAIISampler": Kind(remembers=True, branches=False),
    "NSGAIIISampler": Kind(remembers=True, branches=False),
}
PRUNERS = {
    "MedianPruner": Kind(),
    "PercentilePruner": Kind(),
    "ThresholdPruner": Kind(),
    "PatientPruner": Kind(),
    "WilcoxonPruner": Kind(package="scipy"),
    "SuccessiveHalvingPruner": Kind(remembers=True),
    "HyperbandPruner": Kind(remembers=True),
}

_INNER = {
    "wrapped_pruner": "pruners",
    "independent_sampler": "samplers",
    "crossover": "samplers.nsgaii",
    "mutation": "samplers.nsgaii",
}
"""Options that are objects of Optuna, and the module of their classes."""

_NEEDS_PYTHON = (
    "gamma",
    "weights",
    "constraints_func",
    "elite_population_selection_strategy",
    "child_generation_strategy",
    "after_trial_strategy",
    "source_trials",
)
_NUMBERS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true, false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
}
"""Types of an option by that of its default; Optuna itself finds a wrong one at the first draw."""

_OURS = ("seed", "search_space")

MOST_COMBINATIONS = 10_000


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes objects of Optuna.

    Attributes:
      optuna: the package.
      settings: a resolved `SweepConfig`, which has the places of options.
    """

    optuna: Any
    settings: Resolved

    def sampler(self, seed: int, **changes: Any) -> Any:
        """Returns the sampler of a sweep, with some of its options changed.

        Raises:
          ConfigError: an option is unknown or wrong.
          SweepError: a package is not installed.
        """
        config = self.settings.config
        options = {**config.sampler_options, **changes}
        return self._made("sampler", "samplers", config.sampler, options, "sampler_options", seed)

    def pruner(self) -> Any:
        """Returns the pruner of a sweep; raises like `sampler`."""
        config = self.settings.config
        return self._made("pruner", "pruners", config.pruner, config.pruner_options, "pruner_options", 0)

    @property
    def pruner_remembers(self) -> bool:
        """Whether the pruner, or the one that it wraps, writes notes on trials."""
        config = self.settings.config
        wrapped = config.pruner_options.get("wrapped_pruner")
        names = config.pruner, wrapped.get("type") if isinstance(wrapped, Mapping) else wrapped
        return any(PRUNERS[name].remembers for name in names if name in PRUNERS)

    def _made(self, field: str, module: str, name: str, options: Mapping[str, Any], path: str, seed: int) -> Any:
        classes = list({"samplers": SAMPLERS, "pruners": PRUNERS}.get(module, ()))
        if not classes:  # those of an option
            names = self._module(module).__all__
            classes = [each for each in names if not each.startswith("Base") and "Strategy" not in each]
        if name not in classes:
            raise refused(self.settings, not_a_choice(field, name, classes))
        kind = (SAMPLERS | PRUNERS).get(name, Kind())
        if kind.package and importlib.util.find_spec(kind.package) is None:
            raise SweepError(f"{field}: {name} needs {kind.package}: pip install {kind.package}")
        cls = getattr(self._module(module), name)
        found = inspect.signature(cls).parameters
        known = {} if kind.visits else {each: found[each] for each in found if each not in (*_OURS, *_NEEDS_PYTHON)}
        made = {each: self._option(name, f"{path}.{each}", value, known, seed) for each, value in options.items()}
        own = {"seed": seed} if "seed" in found else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
                return None if kind.visits else cls(**made, **own)
        except (TypeError, ValueError) as error:
            raise refused(self.settings, Problem(f"{name} refuses its options: {error}", path)) from error

    def _option(self, name: str, path: str, value: Any, known: Mapping[str, inspect.Parameter], seed: int) -> Any:
        """Returns the value of an option, where it may be an object of Optuna."""
        option = path.rpartition(".")[2]
        if option not in known:
            what, allowed = f"{name} has no such option", ", ".join(known) or "none"
            if option in _NEEDS_PYTHON:
                what = f"{name} takes a function of Python for it, which a file cannot hold"
            raise refused(self.settings, Problem(what, path, "", allowed, best_match(option, known)))
        if option in _INNER and value is not None:
            inner, options = value, {}
            if isinstance(value, Mapping):
                options = dict(value)
                inner = options.pop("type", None)
            return self._made(path, _INNER[option], inner, options, path, seed)
        wanted, allowed = _NUMBERS.get(type(known[option].default), ((), ""))
        if wanted and type(value) not in wanted:
            raise refused(self.settings, Problem(f"{name} refuses it", path, repr(value), allowed))
        return dict(value) if isinstance(value, Mapping) else value

    def _module(self, path: str) -> Any:
        return functools.reduce(getattr, path.split("."), self.optuna)


def refuse_unlearned(space: Space, settings: Resolved) -> None:
    """Refuses several metrics, or a space, that the sampler would not learn from.

    Raises:
      ConfigError: it would not.
    """
    name = settings.config.sampler
    kind, what, fix = SAMPLERS[name], "", "use TPESampler, or take them out of the space"
    branch = next((each.path for each in space.dimensions if each.needs), None)
    choice = next((each.path for each in space.dimensions if each.kind == "choice"), None)
    if settings.config.objective.others and not kind.several:
        what = f"{name} learns from one metric, and objective.others names more"
        fix = "use TPESampler or NSGAIISampler, or remove it"
    elif branch is not None and not kind.branches:
        what = f"{name} does not learn fields that are drawn in some trials only, such as {branch}"
    elif choice is not None and not kind.choices and "independent_sampler" not in settings.config.sampler_options:
        what = f"{name} does not learn choices, such as {choice}"
        fix = "use TPESampler, or say what draws them: sampler_options: {independent_sampler: TPESampler}"
    if what:
        raise refused(settings, Problem(what, "sampler", fix=fix))


def combinations(space: Space, settings: Resolved) -> tuple[Mapping[str, Value], ...]:
    """Returns all combinations of a space, in an order that depends on the seed.

    Raises:
      ConfigError: there is no end of them, or no reasonable one.
    """
    sampler, seed = settings.config.sampler, settings.config.seed
    problems = [
        Problem(
            f"is no list of values, which {sampler} needs",
            f"space.{each.of_list or each.path}",
            fix="write choice(a, b, …), int(low, high, step) or float(low, high, step), or another sampler",
            origin=user_origin(settings, fields.path_of(("space", each.of_list or each.path))),
        )
        for each in space.dimensions
        if (each.kind != "choice" and each.step is None) or each.kind == "logint"
    ]
    if problems:
        raise ConfigError(problems)
    found: list[Mapping[str, Value]] = []
    for each in _below(space.dimensions, {}):
        found.append(each)
        if len(found) > MOST_COMBINATIONS:
            what = f"has more than {MOST_COMBINATIONS:,} combinations, which {sampler} would all visit"
            raise ConfigError([Problem(what, "space", fix="take larger steps, fewer fields, or another sampler")])
    place = {id(each): hashlib.sha256(f"{seed}/{index}".encode()).digest() for index, each in enumerate(found)}
    return tuple(sorted(found, key=lambda each: place[id(each)]))


def _below(dimensions: tuple[Dimension, ...], drawn: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
    if not dimensions:
        yield drawn
        return
    first, rest = dimensions[0], dimensions[1:]
    if not all(drawn.get(path) in values for path, values in first.needs):
        yield from _below(rest, drawn)
        return
    values: list[Value] = list(first.choices)
    if first.step is not None:
        numbers = [first.low + i * first.step for i in range(round((first.high - first.low) / first.step) + 1)]
        values = [int(each) if first.kind in INTEGERS else first.settled(float(each)) for each in numbers]
    for value in values:
        yield from _below(rest, {**drawn, first.path: value})
