"""The file of a sweep: the space, what is compared, how values are drawn, when a trial is pruned, how many there are.

Owns: `SweepConfig`, a section like those of experiments, and what the compared metric is if the file does not say so.
Does not own: the language of the space (`space.py`), Optuna's classes (`study.py`).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from official_trainer.config import (
    Between,
    Config,
    ConfigError,
    Fraction,
    FrozenDict,
    NonNegative,
    Positive,
    PositiveFloat,
    Problem,
    Resolved,
    fields,
)
from official_trainer.config.errors import Origin

Direction = Literal["max", "min"]
_STORAGES = ("sqlite", "postgresql", "mysql", "grpc")  # what the URL of a database may begin with
_DIRECTIONS: dict[str, Direction] = {"higher": "max", "lower": "min"}
_BESIDE_POPULATION = (
    "cannot be set together with population, which draws at random at first and then from the best members; remove one"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """What trials are compared by.

    Attributes:
      metric: evaluation metric; `a|b` names `b` inside `a`; empty takes `trainer.best_checkpoint_eval_metric`.
      direction: whether the highest (`max`) or the lowest (`min`) value is the best; null takes that of
        `trainer.best_checkpoint_metric_comp`, for the metric of the best checkpoint only.
      evaluation: whether the `best` or the `last` evaluation of a trial counts, or that at a step.
      others: further metrics, each with its direction. All values are those of the evaluation that counts for `metric`,
        and the best trials are those that no other one beats in every metric.
    """

    metric: str = ""
    direction: Direction | None = None
    evaluation: Literal["best", "last"] | Positive = "best"
    others: dict[str, Direction | None] = FrozenDict()

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.metric in self.others:
            yield "others", f"names {self.metric!r}, which is objective.metric already; leave it out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationConfig(Config):
    """Population-based training: every few steps, the worst members go on from the weights of the best ones.

    Attributes:
      size: how many members there are.
      interval: steps of a generation, a multiple of `trainer.validation_interval`; null takes that.
      replaced: the share of the members that is replaced after each generation, by copies of as many of the best.
      factors: a replaced member has the values of the one that it goes on from, changed by one of these: `log` and
        `logint` are multiplied by it; `float` and `int` move by (factor - 1) of the width of their range; of choices
        a neighbour is taken, the one before for a factor below 1.
      redrawn: how likely it is that a value is drawn anew instead.
    """

    size: Annotated[int, Between(2)] = 8
    interval: Positive | None = None
    replaced: Annotated[float, Between(0, 0.5)] = 0.25
    factors: tuple[PositiveFloat, ...] = (0.8, 1.2)
    redrawn: Fraction = 0.25

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.factors:
            yield "factors", "holds no factor; write [0.8, 1.2]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(Config):
    """A sweep.

    Attributes:
      space: field of the experiment → `float(low, high[, step])`, `int(low, high[, step])`, `log(low, high)`,
        `logint(low, high)`, `choice(a, b, …)`, `list(shortest, longest, DISTRIBUTION)`, or a mapping with
        `choice: {NAME: VALUE, …}`.
      objective: what trials are compared by.
      on_refusal: what becomes of values that the experiment does not take together: others are drawn (`redraw`), or
        the trial is recorded as pruned (`prune`), which is always so where each combination is visited.
      sampler: the class of Optuna that draws values.
      sampler_options: its arguments; an argument that is an object of Optuna is the name of its class, or a mapping
        with `type` and its own arguments.
      pruner: the class of Optuna that ends trials early; null for none.
      pruner_options: its arguments, likewise.
      population: trains a population; null for trials that are independent of each other.
      trials: how many trials are completed or pruned; those that fail are not counted; null for all combinations with
        `GridSampler` and `BruteForceSampler`, and for 20 with others.
      parallel: how many trials train at the same time, each with as many cores and GPUs of this machine as any other.
      seed: of the sampler, together with the number of the trial.
      storage: the database that gets a study of the sweep, for optuna-dashboard and other tools: `sqlite:///FILE`,
        `postgresql://…`, `mysql://…`, `grpc://HOST:PORT` for Optuna's proxy, or `env:NAME`, which takes the URL from
        an environment variable; empty for none. The sweep itself reads its directory alone.
    """

    space: dict[str, str | dict[str, dict[str, Any]]] = FrozenDict()
    objective: ObjectiveConfig = ObjectiveConfig()
    on_refusal: Literal["redraw", "prune"] = "redraw"
    sampler: Literal[
        "TPESampler",
        "RandomSampler",
        "QMCSampler",
        "GridSampler",
        "BruteForceSampler",
        "GPSampler",
        "CmaEsSampler",
        "NSGAIISampler",
        "NSGAIIISampler",
    ] = "TPESampler"
    sampler_options: dict[str, Any] = FrozenDict()
    pruner: (
        Literal[
            "MedianPruner",
            "PercentilePruner",
            "ThresholdPruner",
            "PatientPruner",
            "WilcoxonPruner",
            "SuccessiveHalvingPruner",
            "HyperbandPruner",
        ]
        | None
    ) = None
    pruner_options: dict[str, Any] = FrozenDict()
    population: PopulationConfig | None = None
    trials: Positive | None = None
    parallel: Positive = 1
    seed: NonNegative = 0
    storage: str = ""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "trials_per_process": "each trial has a process of its own now, so remove it",
    }

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.storage and not self.storage.startswith("env:") and (problem := url_problem(self.storage)):
            yield "storage", f"{problem}; env:NAME takes one from an environment variable"
        if not self.space:
            yield "space", "holds no field; write PATH: log(1e-5, 1e-1), or give --space='PATH=log(1e-5, 1e-1)'"
        if self.pruner_options and self.pruner is None:
            yield "pruner_options", "has no effect without a pruner; set pruner, or remove it"
        if self.pruner is not None and self.objective.others:
            yield "pruner", "compares trials by one metric, and objective.others names more; remove one of them"
        if self.population is not None:
            for name in ("sampler_options", "pruner"):
                if getattr(self, name):
                    yield name, _BESIDE_POPULATION


def url_problem(url: str) -> str:
    """Returns why a text is no URL of a database; empty if it may be one."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _STORAGES:
        return ""
    near = difflib.get_close_matches(scheme, _STORAGES, 1)
    hint = f"; did you mean {near[0]}://?" if near else ""
    allowed = ", ".join(f"{each}://…" for each in _STORAGES)
    return f"is no URL of a database; expected one of {allowed}{hint}"


@dataclasses.dataclass(frozen=True)
class Objective:
    """What trials are compared by, decided.

    Attributes:
      metric: name of an evaluation metric.
      direction: `max` or `min`.
      evaluation: `best`, `last` or a step.
      others: further metrics, each with its direction.
    """

    metric: str
    direction: Direction
    evaluation: Literal["best", "last"] | int
    others: Mapping[str, Direction] = FrozenDict()

    @property
    def directions(self) -> dict[str, Direction]:
        """All metrics, each with its direction."""
        return {self.metric: self.direction, **self.others}


def objective_of(settings: Resolved, trainer: Any) -> Objective:
    """Returns what trials are compared by.

    Args:
      settings: a resolved `SweepConfig`.
      trainer: the experiment's section `trainer`.

    Raises:
      ConfigError: no metric is named, or the direction of one is not known.
    """
    wanted, kept = settings.config.objective, trainer.best_checkpoint_eval_metric
    metric = wanted.metric or kept
    if not metric:
        fix = "name one, or set trainer.best_checkpoint_eval_metric in the experiment"
        raise ConfigError([Problem("no metric is named", "objective.metric", fix=fix)])
    if metric in wanted.others:
        what = f"names {metric!r}, which is compared already; leave it out"
        raise refused(settings, Problem(what, "objective.others"))
    known = {kept: _DIRECTIONS[trainer.best_checkpoint_metric_comp]}
    given = {metric: wanted.direction, **wanted.others}
    found = {name: direction or known.get(name) for name, direction in given.items()}
    problems = []
    for name in (name for name, direction in found.items() if direction is None):
        what = f"it is not declared which values of {name!r} are better"
        fix = "set it to max or min; only for trainer.best_checkpoint_eval_metric is it known without"
        path = "objective.direction" if name == metric else fields.path_of(("objective", "others", name))
        problems.append(Problem(what, path, fix=fix))
    if problems:
        raise refused(settings, *problems)
    first, *others = ((name, direction) for name, direction in found.items() if direction is not None)
    return Objective(*first, wanted.evaluation, FrozenDict(others))


def user_origin(resolved: Resolved, path: str) -> Origin | None:
    """Returns the place where the user has set a value; None for what Python code has set."""
    origin = resolved.trail.origin(path)
    return origin if origin.by_user and origin.name != "--params_override" else None


def refused(resolved: Resolved, *problems: Problem) -> ConfigError:
    """Returns problems as an error, each at the place where the user has set its field."""
    return ConfigError(dataclasses.replace(each, origin=user_origin(resolved, each.path)) for each in problems)


def step_problem(objective: Objective, trainer: Any) -> Problem | None:
    """Returns that a trial is not evaluated at the step that counts; None if it is.

    Args:
      objective: what trials are compared by.
      trainer: the section `trainer` of a trial.
    """
    step, interval, end = objective.evaluation, trainer.validation_interval, trainer.train_steps
    if isinstance(step, str) or step == end or (step % interval == 0 and (step < end or not end)):
        return None
    below = step // interval * interval
    above = min(below + interval, end or below + interval)
    near = [below, above] if 0 < below < above else [above]
    set_by = f"trainer.validation_interval is {interval}" + (f" and trainer.train_steps {end}" if end else "")
    what = f"there is no evaluation at step {step}: {set_by}"
    return Problem(what, "objective.evaluation", fix=f"write {' or '.join(map(str, near))}")
