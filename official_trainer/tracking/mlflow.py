"""MLflow: an MLflow run for each run directory, in a SQLite file of the run directory if no server is configured.

Owns: which MLflow run it is, and that no point is logged twice: after a rewind the later points stay, because MLflow
deletes none, and steps that it has are not logged again. Does not own: MLflow itself, an optional extra.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from official_trainer import files
from official_trainer.config import ConfigError, Problem, TrackerConfig
from official_trainer.tracking import Histogram, Image, Media, Outcome, Place, Table, Text, Tracker

_logger = logging.getLogger(__name__)
_STATUS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_TAG = "official_trainer.runs.run"
_PASSWORD = (
    "holds a user or a password, which would be written to params.yaml, checkpoints and trackers with the config; "
    "leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for a server; before a database, "
    "start `mlflow server`"
)
_BATCH = 100  # MLflow takes no more parameters in one call
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_TRUNCATE_LONG_VALUES": "true"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MlflowConfig(TrackerConfig):
    """An MLflow run: parameters, metrics, and media as artifacts. A restart continues it.

    Attributes:
      tracking_uri: where MLflow keeps runs; unset means the file `mlflow.db` in the run directory, which
        `mlflow ui --backend-store-uri sqlite:///MODEL_DIR/mlflow.db` shows. One that holds a password is refused: for a
        server, MLflow reads MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN.
      experiment: MLflow's experiment; unset means the name of ours.
      run_name: unset means the last part of the run directory.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")
    INSTALL: ClassVar[str] = "official-trainer[mlflow]"

    tracking_uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        scheme, _, rest = (self.tracking_uri or "").partition("://")
        if scheme not in ("sqlite", "file") and "@" in rest.partition("/")[0]:
            yield "tracking_uri", _PASSWORD

    def build(self, place: Place) -> MlflowTracker:
        uri = self.tracking_uri
        if uri is None and files.is_url(place.directory):
            what = f"is not set, and {place.directory} is a URL, where no SQLite file can be"
            raise ConfigError([Problem(what, "trainer.trackers: tracking_uri", fix="name a server, or a local file")])
        if uri is None:
            uri = f"sqlite:///{os.path.abspath(files.join(place.directory, 'mlflow.db'))}"
        named = {"experiment": self.experiment or place.experiment, "name": self.run_name or place.name}
        return MlflowTracker(uri, dataclasses.replace(place, **named))


class MlflowTracker(Tracker):
    """Logs to one MLflow run, which a restart finds by a tag.

    Args:
      tracking_uri: MLflow's store.
      place: the names of experiment and run, and the directory of the file with the tag.
    """

    def __init__(self, tracking_uri: str, place: Place) -> None:
        self._uri, self._place = tracking_uri, place
        self._client: Any = None
        self._run_id = ""
        self._last_steps: dict[str, int] = {}  # of each metric that was looked up

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Logs the config as parameters; MLflow keeps the first value of each, also where a restart changes it."""
        client = self._open()
        values = {"experiment": experiment}
        for path, value in config.items():
            values[_name(path)] = value if isinstance(value, str) else json.dumps(value)
        kept = client.get_run(self._run_id).data.params
        new = [_entities().Param(name, value) for name, value in values.items() if name not in kept]
        for start in range(0, len(new), _BATCH):
            client.log_batch(self._run_id, params=new[start : start + _BATCH])
        if changed := sorted(name for name in values.keys() & kept.keys() if not values[name].startswith(kept[name])):
            _logger.warning("MLflow keeps the first value of a parameter; changed since: %s", ", ".join(changed))

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        client, now_ms, metric = self._open(), round(time.time() * 1000), _entities().Metric
        named = {_name(f"{split}/{name}"): float(value) for name, value in values.items()}
        for name in named.keys() - self._last_steps.keys():
            history = client.get_metric_history(self._run_id, name)
            self._last_steps[name] = max((metric.step for metric in history), default=-1)
        new = [metric(name, value, now_ms, step) for name, value in named.items() if step > self._last_steps[name]]
        if new:
            client.log_batch(self._run_id, metrics=new)
        self._last_steps.update({logged.key: step for logged in new})

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        """Writes artifacts `SPLIT/NAME/STEP.png`, `.md` or `.json`, replacing older ones."""
        client = self._open()
        for name, thing in media.items():
            path = f"{_name(f'{split}/{name}')}/{step:08d}"
            if isinstance(thing, Text):
                client.log_text(self._run_id, thing.markdown, f"{path}.md")
            elif isinstance(thing, Histogram):
                counts, edges = thing.buckets()
                shown = {"counts": counts.tolist(), "edges": edges.tolist()}
                client.log_text(self._run_id, json.dumps(shown), f"{path}.json")
            elif isinstance(thing, Table):  # in the form that MLflow's pages show as a table
                shown = {"columns": thing.columns, "data": thing.rows}
                client.log_text(self._run_id, json.dumps(shown), f"{path}.json")
            elif isinstance(thing, Image):
                client.log_image(self._run_id, thing.picture(), f"{path}.png")

    def end(self, outcome: Outcome) -> None:
        self._open().set_terminated(self._run_id, status=_STATUS[outcome.status])

    def close(self) -> None:
        self._client = None

    def _open(self) -> Any:
        """Returns the client; the first call creates or continues the run."""
        if self._client is None:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            mlflow = importlib.import_module("mlflow")
            for name in ("mlflow", "alembic"):  # their messages about database tables are not about the user's run
                logging.getLogger(name).setLevel(logging.WARNING)
            client = mlflow.MlflowClient(tracking_uri=self._uri)
            experiment = client.get_experiment_by_name(self._place.experiment)
            if experiment is None:
                # Artifacts lie beside a SQLite file; MLflow would put them into the current folder.
                _, is_file, path = self._uri.partition("sqlite:///")
                artifacts = f"file://{os.path.abspath(os.path.dirname(path))}/mlartifacts" if is_file else None
                number = client.create_experiment(self._place.experiment, artifact_location=artifacts)
            else:
                number = experiment.experiment_id
            tag = self._place.read_identity("mlflow.json")["run"]
            runs = client.search_runs([number], filter_string=f"tags.`{_TAG}` = '{tag}'", max_results=1)
            if runs:
                client.update_run(runs[0].info.run_id, status="RUNNING")
            run = runs[0] if runs else client.create_run(number, run_name=self._place.name, tags={_TAG: tag})
            self._client, self._run_id = client, run.info.run_id
        return self._client


def _entities() -> Any:
    return importlib.import_module("mlflow.entities")


def _name(text: str) -> str:
    """Returns a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", text)
