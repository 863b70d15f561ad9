"""Model Garden's ranking models, for which it has a program of its own, `official.recommendation.ranking.train`.

Owns: building their Task, which also takes the section `trainer` and is registered nowhere, and the package it needs.
Does not own: converting configs (`from_garden.py`, `to_garden.py`).
"""

from __future__ import annotations

from typing import Any

from official_trainer.config import Config, ConfigError, Problem
from official_trainer.garden.spec import garden_class
from official_trainer.lazy import load

_TASK = "official.recommendation.ranking.configs.config:Task"
_NEEDED = "tensorflow_recommenders"


def is_ranking(task_config: Config) -> bool:
    """Whether our section of a task is that of a ranking model."""
    return garden_class(task_config) == _TASK


def build_task(config: Any, logging_dir: str) -> Any:
    """Returns the Task of a ranking model; the optimizers are in the model that it builds.

    Args:
      config: the experiment, from `to_garden.with_garden_objects`.
      logging_dir: the run directory.

    Raises:
      ConfigError: the package is missing that its layers and optimizers are from.
    """
    try:
        module = load("official.recommendation.ranking.task")
    except ModuleNotFoundError as error:
        if error.name != _NEEDED:
            raise
        what = f"needs the package {_NEEDED}, which is not installed"
        raise ConfigError([Problem(what, "task", fix="pip install 'official-trainer[ranking]'")]) from error
    return module.RankingTask(config.task, trainer_config=config.trainer, logging_dir=logging_dir)
