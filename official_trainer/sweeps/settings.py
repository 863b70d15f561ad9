"""The file of a sweep: the space, what is compared, how values are drawn, when a trial is pruned, how many there are.

Owns: `SweepConfig`, a section like those of experiments, and what the compared metric is if the file does not say so.
Does not own: the language of the space (`distributions.py`), making Optuna's objects (`study.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer.config import Config, ConfigError, FrozenDict, NonNegative, Positive, Problem, Resolved, fields
from official_trainer.config.errors import Origin
from official_trainer.errors import ExitCode, UserError
from official_trainer.tracking.monitored import DIRECTIONS

Direction = Literal["max", "min"]
DEFAULT_TRIALS = 20


class SweepError(UserError, RuntimeError):
    """A sweep that cannot go on."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.CONFIG) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """What trials are compared by.

    Attributes:
      metric: evaluation metric; `a|b` names `b` inside `a`; empty takes `trainer.best_checkpoint_eval_metric`.
      direction: whether the highest (`max`) or the lowest (`min`) value is the best; null takes that of
        `trainer.best_checkpoint_metric_comp`, for the metric of the best checkpoint only.
      evaluation: whether the `best` or the `last` evaluation of a trial counts.
    """

    metric: str = ""
    direction: Direction | None = None
    evaluation: Literal["best", "last"] = "best"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(Config):
    """A sweep.

    Attributes:
      space: field of the experiment → `float(low, high[, step])`, `int(low, high[, step])`, `log(low, high)`,
        `logint(low, high)`, `choice(a, b, …)`, or a mapping with `choice: {NAME: VALUE, …}`.
      objective: what trials are compared by.
      sampler: the class of `optuna.samplers` that draws values; with arguments, a mapping with `type` and these.
      pruner: the class of `optuna.pruners` that ends trials early, likewise; null for none.
      trials: how many trials are completed or pruned; those that fail are not counted; null for all combinations with
        `BruteForceSampler`, and for 20 with others.
      parallel: how many trials train at the same time; each sees its share of the GPUs.
      seed: of the sampler, together with the number of the trial.
    """

    space: dict[str, str | dict[str, dict[str, Any]]] = FrozenDict()
    objective: ObjectiveConfig = ObjectiveConfig()
    sampler: str | dict[str, Any] = "TPESampler"
    pruner: str | dict[str, Any] | None = None
    trials: Positive | None = None
    parallel: Positive = 1
    seed: NonNegative = 0

    @property
    def sampler_class(self) -> str:
        """The name of the class that draws."""
        return self.sampler if isinstance(self.sampler, str) else str(self.sampler.get("type"))

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.space:
            yield "space", "holds no field; write PATH: log(1e-5, 1e-1), or give --space='PATH=log(1e-5, 1e-1)'"


@dataclasses.dataclass(frozen=True)
class Objective:
    """What trials are compared by, decided.

    Attributes:
      metric: of evaluations.
      direction: whether its highest (`max`) or its lowest (`min`) value is the best.
      evaluation: `best` or `last`: which one of a trial counts.
    """

    metric: str
    direction: Direction
    evaluation: str


def objective_of(settings: Resolved, trainer: Any) -> Objective:
    """Returns what trials are compared by.

    Args:
      settings: a resolved `SweepConfig`.
      trainer: the experiment's section `trainer`.

    Raises:
      ConfigError: no metric is named, or its direction is not known.
    """
    wanted, monitored = settings.config.objective, trainer.best_checkpoint_eval_metric
    metric = wanted.metric or monitored
    if not metric:
        fix = "name one, or set trainer.best_checkpoint_eval_metric in the experiment"
        raise ConfigError([Problem("no metric is named", "objective.metric", fix=fix)])
    direction = wanted.direction
    if direction is None and metric == monitored:
        direction = DIRECTIONS[trainer.best_checkpoint_metric_comp]
    if direction is None:
        what = f"it is not declared which values of {metric!r} are better"
        fix = "set it to max or min; only for trainer.best_checkpoint_eval_metric is it known without"
        raise refused(settings, Problem(what, "objective.direction", fix=fix))
    return Objective(metric, direction, wanted.evaluation)


def origin_of(resolved: Resolved, path: str) -> Origin | None:
    """Returns the place where the user has set a value; None for what Python code has set."""
    origin = resolved.trail.origin(path)
    return origin if origin.by_user and origin.name != "--params_override" else None


def origin_in_space(settings: Resolved, path: str) -> Origin | None:
    """Returns the place where the user has written the distribution of a field."""
    return origin_of(settings, fields.path_of(("space", path)))


def refused(resolved: Resolved, *problems: Problem) -> ConfigError:
    """Returns problems as an error, each at the place where the user has set its field."""
    return ConfigError(dataclasses.replace(problem, origin=origin_of(resolved, problem.path)) for problem in problems)
