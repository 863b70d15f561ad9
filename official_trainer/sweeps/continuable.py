"""What a population may change while it trains: what a run can change when it continues from its checkpoint.

Owns: refusing a population that cannot be trained, before anything starts, with the place and the reason.
Does not own: what the change of a field means (`runs/resume/config_changes.py`), training (`population.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import config as configuration
from official_trainer.config import ConfigError, Problem, Resolved
from official_trainer.runs.resume import config_changes
from official_trainer.runs.resume.config_changes import Change
from official_trainer.shown import shorten
from official_trainer.sweeps.distributions import Dimension, Value
from official_trainer.sweeps.settings import SweepConfig
from official_trainer.sweeps.space import Place, Resolve, Space


def settled(settings: Resolved, space: Space, resolve: Resolve, place: Place) -> tuple[SweepConfig, Sequence[str]]:
    """Returns what is known of a population without building a model.

    Args:
      settings: the file, as it is written.
      space: what is drawn.
      resolve: resolves the experiment's config.
      place: where the parts of the space are written.

    Returns:
      The file, with all that follows from the experiment; and overrides with which a run may not be able to continue,
      because they may change which variables there are, which `official-trainer check --continue_with` finds out.

    Raises:
      ConfigError: the population cannot be trained; with all problems.
    """
    config: SweepConfig = settings.config
    trainer = resolve(()).config.trainer
    assert config.population is not None
    interval = config.population.interval or trainer.validation_interval
    generations = trainer.train_steps // interval
    total = config.population.size * generations
    problems, tries = list(_problems_of_file(settings, trainer, interval)), []
    for path in dict.fromkeys(each.of_list or each.path for each in space.dimensions):
        changes = _changes(space, path, resolve)
        variables = next((each for each in changes if each.kind == "variables"), None)
        alone = next((each for each in space.dimensions if each.path == path and not each.needs), None)
        if variables is not None and alone is not None:
            tries += [f"{path}={alone.text(value)}" for value in alone.tried]
        elif variables is not None:  # of a list, or of what is drawn with another field
            before, after = (shorten(configuration.flow(each)) for each in (variables.before, variables.after))
            what = "may change which variables there are, and a member continues the checkpoint of another one"
            what += f" ({variables.path}: {before} -> {after})"
            fix = "leave it out of the space of a population"
            problems.append(Problem(what, path, fix=fix, origin=place((path,))))
        elif changes and all(each.kind == "safe" for each in changes):
            what = "does not change what is trained, so a population finds nothing there"
            problems.append(Problem(what, path, fix="leave it out", origin=place((path,))))
    if config.trials != total and settings.origin("trials").by_user and not problems:
        what = f"is {config.trials}, and {config.population.size} members in {generations} generations are {total}"
        problems.append(Problem(what, "trials", fix="leave it out: it follows from size, interval and train_steps"))
    if problems:
        trail = settings.trail
        raise ConfigError(
            dataclasses.replace(each, origin=trail.origin(each.path))
            if each.origin is None and each.path in trail.touched()
            else each
            for each in problems
        )
    population = dataclasses.replace(config.population, interval=interval)
    config = dataclasses.replace(config, population=population, trials=total, sampler="RandomSampler")
    return config, tries


def _problems_of_file(settings: Resolved, trainer: Any, interval: int) -> Iterator[Problem]:
    path = "population.interval"
    if not trainer.train_steps:
        yield Problem("needs to know when training ends", "population", fix="set trainer.train_steps")
    elif interval % trainer.validation_interval:
        what = f"is {interval}, where trainer.validation_interval={trainer.validation_interval} makes no evaluation"
        yield Problem(what, path, fix="set it to a multiple of that, or leave it out")
    elif trainer.train_steps % interval or trainer.train_steps == interval:
        what = f"is {interval}, and trainer.train_steps={trainer.train_steps} is not 2 or more times that"
        yield Problem(what, path, fix="set one of the two, so that all generations are equally long")
    if not isinstance(settings.config.objective.evaluation, str):
        what = "is a step, which only one generation has; write best or last"
        yield Problem(what, "objective.evaluation")
    if settings.config.sampler != "RandomSampler" and settings.origin("sampler").by_user:
        what = "has no effect: a population draws at random at first, and then from the best members; remove it"
        yield Problem(what, "sampler")


def _changes(space: Space, path: str, resolve: Resolve) -> Sequence[Change]:
    """Returns what differs in the experiment's config between the values that a field may have."""
    found: list[Change] = []
    before: Mapping[str, Any] | None = None
    tried = [(each, value) for each in space.dimensions if path in (each.path, each.of_list) for value in each.tried]
    for drawn, value in tried:  # in draws that differ in this field, and in what is drawn with it only
        fixed = _needed(space, drawn) | {drawn.path: value}
        values = {each.path: fixed.get(each.path, next(each.tried)) for each in space.dimensions}
        try:
            resolved = resolve(space.overrides(space.draw(lambda each: values[each.path])))  # noqa: B023
        except ConfigError:  # values that do not fit together are never drawn
            continue
        if before is not None:
            found += config_changes.changes_since(before, resolved)
        else:
            before = config_changes.parse(configuration.dump(resolved))
    return found


def _needed(space: Space, each: Dimension) -> dict[str, Value]:
    """Returns values with which something is drawn."""
    by_path = {other.path: other for other in space.dimensions}
    found: dict[str, Value] = {}
    for path, values in each.needs:
        found |= {path: values[0], **_needed(space, by_path[path])}
    return found
