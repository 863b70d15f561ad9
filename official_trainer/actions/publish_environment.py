"""The model, software and hardware of a run, published once at its start: as texts in the trackers, and in the log.

Owns: the format of these texts. Does not own: their facts (`tracking/record.py`, `tasks/variables.py`), or that every
run has this action (`runs/build.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from official_trainer import config as configuration
from official_trainer.actions.action import Action, Run
from official_trainer.config import ActionConfig
from official_trainer.tasks import variables
from official_trainer.tracking import Text, record

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishEnvironmentConfig(ActionConfig):
    """Says parameters and shapes, devices, strategy, versions, command, git revision and config, once at the start.

    Every run does, also without this section, which is for another `priority` or `on_error`.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"

    def build(self) -> PublishEnvironment:
        return PublishEnvironment()


class PublishEnvironment(Action):
    """Publishes the texts `environment`, `parameters` and `config` at step 0; a restart adds only changed ones."""

    def on_start(self, run: Run) -> None:
        facts = dict(_facts(run.trainer, record.read_run(run.model_dir) or {}))
        parameters = variables.summary(run.trainer.model)
        config = configuration.dump(run.trainer.config)
        for name, text in (("environment", _lines(facts)), ("parameters", parameters), ("config", config.rstrip())):
            _logger.debug("%s:\n%s", name, text)
        texts = {"environment": _as_table(facts), "parameters": _as_code(parameters), "config": _as_code(config)}
        run.tracker.publish("train", 0, {name: Text(text) for name, text in texts.items()})


def _facts(trainer: Any, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields facts by name, from the trainer and from `run.json`."""
    yield "experiment", known.get("experiment", "")
    yield "command", shlex.join(known.get("argv", ()))
    yield "git revision", known.get("git_revision") or ""
    yield from known.get("versions", {}).items()
    yield "devices", ", ".join(known.get("devices", ()))
    replicas = trainer.strategy.num_replicas_in_sync
    yield "strategy", f"{type(trainer.strategy).__name__}, {replicas} replica{'s' if replicas > 1 else ''}"


def _lines(facts: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value or 'unknown'}" for name, value in facts.items())


def _as_table(facts: Mapping[str, str]) -> str:
    rows = [f"| {name} | {(value or 'unknown').replace('|', '&#124;')} |\n" for name, value in facts.items()]
    return "| | |\n|---|---|\n" + "".join(rows)


def _as_code(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
