"""What a sweep does, decided: the experiment, the space, what is compared, the commands of trials.

Owns: the plan, and that there is none with a problem that can be found before the first trial.
Does not own: the settings (`settings.py`), running the plan (`sweep.py`), the flags (`verbs/sweep.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import ConfigError, Problem, Resolved, flat
from official_trainer.garden.gin_bindings import Bindings
from official_trainer.runs.job import Job, check_ready
from official_trainer.sweeps import results, study
from official_trainer.sweeps import space as spaces
from official_trainer.sweeps.distributions import Value
from official_trainer.sweeps.settings import (
    DEFAULT_TRIALS,
    Objective,
    SweepConfig,
    objective_of,
    origin_in_space,
    refused,
)
from official_trainer.sweeps.space import Resolve, Space

_GRACE_MARGIN_SECONDS = 10.0
_FIXED = ("space", "sampler", "pruner", "seed")
EXHAUSTIVE = "BruteForceSampler"
"""The sampler that ends when each combination was drawn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment that is swept.

    Attributes:
      name: registered name.
      directory: of the sweep.
      resolve: returns its config with overrides above everything else.
      words: returns the command line of a verb, for a directory and such overrides.
      gin: what the gin flags bind; None without gin flags.
    """

    name: str
    directory: str
    resolve: Resolve
    words: Callable[[str, str, Sequence[str]], Sequence[str]]
    gin: Bindings | None = None

    def ready(self, sets: Sequence[str]) -> Resolved:
        """Returns a config that `train` would take.

        Raises:
          ConfigError: it would not.
        """
        resolved = self.resolve(sets)
        run_dir = files.join(self.directory, results.run_of(0))
        check_ready(
            Job(experiment=self.name, resolved=resolved, model_dir=run_dir, mode="train_and_eval", gin=self.gin)
        )
        return resolved

    def command(self, verb: str, folder: str, sets: Sequence[str]) -> list[str]:
        """Returns the command of a verb, a module and its arguments, for a run directory and overrides."""
        return ["official_trainer", verb, *self.words(verb, files.absolute(folder), sets)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep does.

    Attributes:
      experiment: what is swept.
      config: the file of the sweep.
      space: what is drawn.
      objective: what trials are compared by.
      total: how many trials are to count.
      identity: what may not change while the sweep lasts; `trials` and `parallel` may.
      grace_seconds: how long a trial may save after a signal.
    """

    experiment: Experiment
    config: SweepConfig
    space: Space
    objective: Objective
    total: int
    identity: Mapping[str, Any]
    grace_seconds: float

    @property
    def directory(self) -> str:
        """The directory of the sweep."""
        return self.experiment.directory

    @property
    def is_exhaustive(self) -> bool:
        """Whether each combination comes once, also one that fails."""
        return self.config.sampler_class == EXHAUSTIVE

    def refusal(self, values: Mapping[str, Value]) -> str:
        """Returns why the experiment does not take values together; empty if it does."""
        try:
            self.experiment.ready(self.space.overrides(values))
        except ConfigError as error:
            return dataclasses.replace(error.problems[0], origin=None).message
        return ""


def planned(experiment: Experiment, settings: Resolved) -> Plan:
    """Returns what a sweep does.

    Args:
      experiment: what is swept.
      settings: a resolved `SweepConfig`.

    Raises:
      ConfigError: the settings, or the space, have a problem.
    """
    resolved = experiment.ready(())
    config = settings.config
    _check_evaluated(resolved)
    objective = objective_of(settings, resolved.config.trainer)
    space = spaces.read(config.space, lambda path: origin_in_space(settings, path), experiment.ready)
    try:
        study.rehearse(config, space, objective)
        total = config.trials or DEFAULT_TRIALS
        if config.sampler_class == EXHAUSTIVE:
            total = study.count_combinations(config, space)
    except ConfigError as error:
        raise refused(settings, *error.problems) from error
    described = {name: config.as_dict()[name] for name in _FIXED} | {"objective": dataclasses.asdict(objective)}
    gin = [*experiment.gin.files, *experiment.gin.params] if experiment.gin else []
    identity = {"experiment": experiment.name, "sweep": described, "config": flat(resolved.config), "gin": gin}
    return Plan(
        experiment=experiment,
        config=config,
        space=space,
        objective=objective,
        total=total,
        identity=json.loads(json.dumps(identity)),
        grace_seconds=resolved.config.runtime.stop_grace_seconds + _GRACE_MARGIN_SECONDS,
    )


def _check_evaluated(resolved: Resolved) -> None:
    sections = [resolved.config.task, *getattr(resolved.config.task, "task_routines", ())]
    sections += getattr(resolved.config, "eval_tasks", ())
    tasks = [getattr(section, "task_config", section) for section in sections]
    if all(getattr(task, "validation_data", None) is None for task in tasks):
        what = "is not set, so trials are never evaluated and cannot be compared"
        raise refused(resolved, Problem(what, "task.validation_data", fix="set it"))
