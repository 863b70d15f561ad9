"""What is swept: an experiment, or a function that trains a `Program`.

Owns: the space, what is compared, and the commands of trials for both; the plan of a sweep.
Does not own: its settings (`settings.py`), running it (`sweep.py`), the flags (`verbs/sweep.py`), the process of the
function (`functions.py`).

Both have the same properties and methods, which are described at `Experiment`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import ConfigError, Problem, Resolved, RuntimeConfig, TrainerConfig, fields, flat
from official_trainer.config.errors import Origin
from official_trainer.garden.gin_bindings import Bindings
from official_trainer.runs.job import Job, check_ready
from official_trainer.sweeps import continuable, rehearsal
from official_trainer.sweeps import space as spaces
from official_trainer.sweeps.course import Course
from official_trainer.sweeps.distributions import Value
from official_trainer.sweeps.driver import Plan
from official_trainer.sweeps.population import Population
from official_trainer.sweeps.settings import Objective, SweepConfig, objective_of, refused, step_problem, user_origin
from official_trainer.sweeps.space import Place, Space
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import run_directory

_GRACE_MARGIN_SECONDS = 10.0
_CALLER = "official_trainer.sweeps.functions"
_FIXED = ("space", "on_refusal", "sampler", "sampler_options", "pruner", "pruner_options", "population", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment.

    Attributes:
      name: registered name.
      directory: of the sweep.
      resolve: returns its config with overrides above everything else.
      words: returns the command line of a verb, of a directory and of such overrides.
      gin: what the gin flags bind; None without gin flags.
    """

    name: str
    directory: str
    resolve: spaces.Resolve
    words: Callable[[str, str, Sequence[str]], Sequence[str]]
    gin: Bindings | None = None

    @property
    def recorded(self) -> Mapping[str, Any]:
        """What may not change while a sweep lasts, beside the settings of the sweep."""
        gin = self.gin.sources if self.gin else ()
        return {"config": flat(self.resolve(()).config), "gin": [str(each) for each in gin]}

    @property
    def grace_seconds(self) -> float:
        """How long a trial may save after a signal."""
        return float(self.resolve(()).config.runtime.stop_grace_seconds)

    def space(self, settings: Resolved) -> Space:
        """Returns what is drawn."""
        self._ready(())
        return spaces.read(settings.config.space, _place_in(settings), self._ready)

    def population(self, settings: Resolved, space: Space) -> tuple[SweepConfig, Sequence[str]]:
        """Returns what is known of a population before it is trained."""
        return continuable.settled(settings, space, self.resolve, _place_in(settings))

    def objective(self, settings: Resolved) -> Objective:
        """Returns what trials are compared by."""
        resolved = self.resolve(())
        sections = [resolved.config.task, *getattr(resolved.config.task, "task_routines", ())]
        sections += getattr(resolved.config, "eval_tasks", ())
        tasks = [getattr(each, "task_config", each) for each in sections]
        if all(getattr(each, "validation_data", None) is None for each in tasks):
            path, what = "task.validation_data", "is not set, so trials are never evaluated and cannot be compared"
            raise refused(resolved, Problem(what, path, fix="set it"))
        objective = objective_of(settings, resolved.config.trainer)
        if problem := step_problem(objective, resolved.config.trainer):
            raise refused(settings, problem)
        return objective

    def refusal(self, space: Space, values: Mapping[str, Value], objective: Objective) -> Problem | None:
        """Returns why values are not taken; None if they are."""
        try:
            resolved = self._ready(space.overrides(values))
        except ConfigError as error:
            return dataclasses.replace(error.problems[0], origin=None)
        return step_problem(objective, resolved.config.trainer)

    def command(self, model_dir: str, space: Space, values: Mapping[str, Value]) -> Sequence[str]:
        """Returns the command of a trial, a module and its arguments."""
        return ["official_trainer", "train", *self.words("train", model_dir, space.overrides(values))]

    def check(self, model_dir: str, space: Space, values: Mapping[str, Value], objective: Objective) -> Sequence[str]:
        """Returns the command that tries a trial without training it; none if there is no such command."""
        words = self.words("check", model_dir, space.overrides(values))
        return ["official_trainer", "check", *words, *(f"--metric={each}" for each in objective.directions)]

    def _ready(self, sets: Sequence[str]) -> Resolved:
        """Returns a config that `train` would take."""
        resolved = self.resolve(sets)
        place = run_directory(self.directory, 0)
        job = Job(experiment=self.name, resolved=resolved, model_dir=place, mode="train_and_eval", gin=self.gin)
        check_ready(job)
        return resolved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function:
    """A function that trains a `Program` in the directory of a trial.

    Attributes:
      name: as it is recorded, without the folder of its file.
      reference: see `functions.reference_of`.
    """

    name: str
    reference: str

    @property
    def recorded(self) -> Mapping[str, Any]:
        return {}

    @property
    def grace_seconds(self) -> float:
        return RuntimeConfig().stop_grace_seconds

    def space(self, settings: Resolved) -> Space:
        return spaces.read_free(settings.config.space, _place_in(settings))

    def population(self, settings: Resolved, space: Space) -> tuple[SweepConfig, Sequence[str]]:
        what = "continues runs of an experiment with other values, and a function decides by itself how it trains"
        raise ConfigError([Problem(what, "population", fix="register an experiment, or leave it out")])

    def objective(self, settings: Resolved) -> Objective:
        return objective_of(settings, TrainerConfig())

    def refusal(self, space: Space, values: Mapping[str, Value], objective: Objective) -> Problem | None:
        return None

    def command(self, model_dir: str, space: Space, values: Mapping[str, Value]) -> Sequence[str]:
        return [_CALLER, self.reference, model_dir, json.dumps(space.objects(values))]

    def check(self, model_dir: str, space: Space, values: Mapping[str, Value], objective: Objective) -> Sequence[str]:
        return []


Subject = Experiment | Function


def planned(subject: Subject, settings: Resolved, directory: str, *, joins: bool = False) -> Plan:
    """Returns what a sweep does.

    Args:
      subject: what is swept.
      settings: a resolved `SweepConfig`.
      directory: of the sweep.
      joins: whether other drivers may work on it at the same time.

    Raises:
      UserError: the settings, or the space, have a problem.
    """
    space, objective = subject.space(settings), subject.objective(settings)
    tries: Sequence[str] = ()
    if settings.config.population is not None:
        config, tries = subject.population(settings, space)
        settings = dataclasses.replace(settings, config=config)
    config, study = settings.config, Study(space, settings, objective)
    course = Course(study)
    if config.population is not None:
        course = Population(study, space, objective, config=config, directory=directory)
    described = {name: config.as_dict()[name] for name in _FIXED} | {"objective": dataclasses.asdict(objective)}
    identity = {"experiment": subject.name, "sweep": described, **subject.recorded}
    absolute = files.absolute  # the user's code may leave the folder of the sweep
    return Plan(
        directory=directory,
        config=config,
        study=study,
        course=course,
        objective=objective,
        identity=json.loads(json.dumps(identity)),
        command=lambda model_dir, values: subject.command(absolute(model_dir), space, values),
        check=lambda values: [
            *subject.check(absolute(files.join(directory, rehearsal.PLACE)), space, values, objective),
            *(f"--continue_with={each}" for each in tries),
        ],
        refusal=lambda values: subject.refusal(space, values, objective),
        grace_seconds=subject.grace_seconds + _GRACE_MARGIN_SECONDS,
        joins=joins,
    )


def _place_in(settings: Resolved) -> Place:
    """Returns where the parts of a space are written."""

    def place(keys: Sequence[fields.Key]) -> Origin | None:
        return user_origin(settings, fields.path_of(("space", *keys)))

    return place
