"""The model, software and hardware of a run, published once at its start: as texts in the trackers, and in the log.

Owns: the format of these texts. Does not own: their facts (`tracking/record.py`, `tasks/variables.py`), or that every
run has this action (`runs/build.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
from typing import Literal

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
        run_record, strategy = record.read_run(run.model_dir) or {}, run.trainer.strategy
        replicas = strategy.num_replicas_in_sync
        facts = {
            "experiment": run_record.get("experiment", ""),
            "command": shlex.join(run_record.get("argv", ())),
            "git revision": run_record.get("git_revision") or "",
            **run_record.get("versions", {}),
            "devices": ", ".join(run_record.get("devices", ())),
            "strategy": f"{type(strategy).__name__}, {replicas} replica{'s' if replicas > 1 else ''}",
        }
        facts = {name: value or "unknown" for name, value in facts.items()}
        environment = "\n".join(f"{name}: {value}" for name, value in facts.items())
        parameters = variables.summary(run.trainer.model)
        config = configuration.dump(run.trainer.config)
        for name, text in (("environment", environment), ("parameters", parameters), ("config", config.rstrip())):
            _logger.debug("%s:\n%s", name, text)
        rows = [f"| {name} | {value.replace('|', '&#124;')} |\n" for name, value in facts.items()]
        table = "| | |\n|---|---|\n" + "".join(rows)
        texts = {"environment": table, "parameters": _as_code(parameters), "config": _as_code(config)}
        run.tracker.publish("train", 0, {name: Text(text) for name, text in texts.items()})


def _as_code(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
