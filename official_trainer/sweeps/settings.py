"""The file of a sweep: the space, what is compared, how values are drawn, when a trial is pruned, how many there are.

Owns: `SweepConfig`, a section like those of experiments, and what the compared metric is if the file does not say so.
Does not own: the language of the space (`space.py`), Optuna's classes (`study.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer.config import Config, ConfigError, FrozenDict, NonNegative, Positive, Problem

_DIRECTIONS: dict[str, Literal["max", "min"]] = {"higher": "max", "lower": "min"}


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
    direction: Literal["max", "min"] | None = None
    evaluation: Literal["best", "last"] = "best"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(Config):
    """A sweep.

    Attributes:
      space: field of the experiment → `float(low, high[, step])`, `int(low, high[, step])`, `log(low, high)`,
        `logint(low, high)`, `choice(a, b, …)`, `list(shortest, longest, DISTRIBUTION)`, or a mapping with
        `choice: {NAME: VALUE, …}`.
      objective: what trials are compared by.
      on_refusal: what becomes of values that the experiment does not take together: others are drawn (`redraw`), or
        the trial is recorded as pruned (`prune`).
      sampler: the class of Optuna that draws values.
      sampler_options: its arguments.
      pruner: the class of Optuna that ends trials early; null for none.
      pruner_options: its arguments.
      trials: how many trials are completed or pruned; those that fail are not counted.
      parallel: how many trials train at the same time; they share the devices of this machine.
      seed: of the sampler, together with the number of the trial.
    """

    space: dict[str, str | dict[str, dict[str, Any]]] = FrozenDict()
    objective: ObjectiveConfig = ObjectiveConfig()
    on_refusal: Literal["redraw", "prune"] = "redraw"
    sampler: Literal["TPESampler", "RandomSampler"] = "TPESampler"
    sampler_options: dict[str, Any] = FrozenDict()
    pruner: Literal["MedianPruner", "PercentilePruner", "ThresholdPruner"] | None = None
    pruner_options: dict[str, Any] = FrozenDict()
    trials: Positive = 20
    parallel: Positive = 1
    seed: NonNegative = 0

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.space:
            yield "space", "holds no field; write PATH: log(1e-5, 1e-1), or give --space='PATH=log(1e-5, 1e-1)'"
        if self.pruner_options and self.pruner is None:
            yield "pruner_options", "has no effect without a pruner; set pruner, or remove it"


@dataclasses.dataclass(frozen=True)
class Objective:
    """What trials are compared by, decided.

    Attributes:
      metric: name of an evaluation metric.
      direction: `max` or `min`.
      evaluation: `best` or `last`.
    """

    metric: str
    direction: Literal["max", "min"]
    evaluation: Literal["best", "last"]


def objective_of(sweep: SweepConfig, trainer: Any) -> Objective:
    """Returns what trials are compared by.

    Args:
      sweep: the file of the sweep.
      trainer: the experiment's section `trainer`.

    Raises:
      ConfigError: no metric is named, or its direction is not known.
    """
    wanted, kept = sweep.objective, trainer.best_checkpoint_eval_metric
    metric = wanted.metric or kept
    if not metric:
        fix = "name one, or set trainer.best_checkpoint_eval_metric in the experiment"
        raise ConfigError([Problem("no metric is named", "objective.metric", fix=fix)])
    direction = wanted.direction
    if direction is None and metric == kept:
        direction = _DIRECTIONS[trainer.best_checkpoint_metric_comp]
    if direction is None:
        what = f"it is not declared which values of {metric!r} are better"
        fix = "set it to max or min; only for trainer.best_checkpoint_eval_metric is it known without"
        raise ConfigError([Problem(what, "objective.direction", fix=fix)])
    return Objective(metric, direction, wanted.evaluation)
