"""Weights & Biases: a W&B run for each run directory, offline by default.

Owns: which W&B run it is, and that no point is logged twice: after a rewind the later points stay, because W&B deletes
none, and steps of a process that ended in order are not logged again. Does not own: W&B itself, an optional extra. It
keeps rows in memory, so a process that is killed loses some, and the steps repeated after that are logged again.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from official_trainer import files
from official_trainer.config import ConfigError, Problem, TrackerConfig
from official_trainer.tracking import Histogram, Image, Media, Outcome, Place, Table, Text, Tracker

_ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
_STATE = "wandb.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WandbConfig(TrackerConfig):
    """A Weights & Biases run: config, metrics and media. A restart continues it.

    Attributes:
      project: W&B's project; unset means the name of the experiment.
      run_name: unset means the last part of the run directory.
      mode: `offline` writes to `wandb/` in the run directory, for `wandb sync` later; `online` uploads while the run
        runs; `disabled` does nothing.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("wandb",)
    INSTALL: ClassVar[str] = "official-trainer[wandb]"

    project: str | None = None
    run_name: str | None = None
    mode: Literal["offline", "online", "disabled"] = "offline"

    def build(self, place: Place) -> WandbTracker:
        if files.is_url(place.directory) and self.mode == "offline":
            what = f"is 'offline', and {place.directory} is a URL, where W&B cannot write"
            raise ConfigError([Problem(what, "trainer.trackers: mode", fix="use online, or a local --model_dir")])
        place = dataclasses.replace(place, name=self.run_name or place.name)
        return WandbTracker(self.project or place.experiment, place, mode=self.mode)


class WandbTracker(Tracker):
    """Logs to one W&B run; W&B's step is the global step.

    Args:
      project: W&B's project.
      place: the run's name, and the directory of its files.
      mode: W&B's mode.
    """

    def __init__(self, project: str, place: Place, *, mode: str = "offline") -> None:
        self._project, self._place, self._mode = project, place, mode
        self._config: Mapping[str, Any] = {}
        self._run: Any = None
        self._outcome = Outcome(status="failed")
        self._identity: dict[str, Any] = {}
        self._step = -1

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        self._config = {"experiment": experiment, **config}
        if self._run is not None:
            self._run.config.update(self._config, allow_val_change=True)
        self._open()

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        self._log(step, {f"{split}/{name}": float(value) for name, value in values.items()})

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        self._open()
        self._log(step, {f"{split}/{name}": _as_wandb(item) for name, item in media.items()})

    def end(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._outcome.status == "done" else 1)
            self._run = None
            if self._step > self._identity.get("step", -1):
                state = {**self._identity, "step": self._step}  # not earlier: W&B keeps rows in memory
                self._place.write_identity(_STATE, state)

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        """Logs values that W&B does not have yet; a step's row is open until a later step is logged."""
        self._open()
        if step >= self._step and step > self._identity.get("step", -1):
            self._run.log(values, step=step)
            self._step = step

    def _open(self) -> None:
        if self._run is not None:
            return
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        wandb = importlib.import_module("wandb")
        self._identity = self._place.read_identity(_STATE)
        is_local = not files.is_url(self._place.directory)
        self._run = wandb.init(
            project=self._project,
            name=self._place.name,
            id=self._identity["run"],
            resume="allow",
            mode=self._mode,
            dir=self._place.directory if is_local else None,
            config=dict(self._config),
            settings=wandb.Settings(console="off", silent=True),  # the console is ours
        )
        url = getattr(self._run, "url", None)
        if self._mode == "online" and isinstance(url, str) and url != self._identity.get("url"):
            self._identity["url"] = url
            self._place.write_identity(_STATE, self._identity)  # for reports, which link to it


def _as_wandb(item: Media) -> Any:
    """Returns media as objects of W&B."""
    wandb = importlib.import_module("wandb")
    if isinstance(item, Image):
        return wandb.Image(item.pixels)
    if isinstance(item, Histogram):
        return wandb.Histogram(np_histogram=item.buckets())
    if isinstance(item, Table):
        return wandb.Table(columns=list(item.columns), data=[list(row) for row in item.rows], allow_mixed_types=True)
    assert isinstance(item, Text)
    return wandb.Html(f"<pre>{html.escape(item.markdown)}</pre>", inject=False)
