"""A run directory in Python: its config, metrics, checkpoints and model, for notebooks and reports.

Owns: `open` and `open_all`, and what an `OpenedRun` offers; each part is read when it is first asked for.
Does not own: how a run stands (`runs/recorded.py`), numbers (`recorded_curves.py`), building a
model (`runs/run.py`). Only `load_model` imports TensorFlow, and nothing here writes to the directory.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from official_trainer import files
from official_trainer.checkpoints import garden, manifest
from official_trainer.config import lines
from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import did_you_mean
from official_trainer.reports import recorded_curves as curves
from official_trainer.reports.recorded_curves import Curves
from official_trainer.runs import recorded
from official_trainer.runs.recorded import RecordedRun, Status

if TYPE_CHECKING:
    from official_trainer.lazy import keras
    from official_trainer.tasks.multi_task.model import MultiTaskModel

_MODEL_GARDENS_BEST = re.compile(r"best_ckpt-\d+")


class NoRunError(UserError, LookupError):
    """A folder that is opened as a run, and holds none; or a field that a run's config does not have."""

    exit_code = ExitCode.CONFIG


class NoRunYetError(NoRunError):
    """No run where one may still appear: there is no such folder, or no run in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint in a run directory.

    Attributes:
      step: the global step.
      prefix: its path, as TensorFlow takes it.
      kind: `latest` for those that a restart continues; `best`, `named` and `averaged` have folders of their own.
      created: when it was committed, ISO 8601 in UTC; empty if that is not known.
      size_bytes: of all its files; 0 if that is not known.
      results: of the evaluation that made it one of the best.
      note: why it is not whole, or not known to be; empty for one that is.
    """

    step: int
    prefix: str
    kind: Literal["latest", "best", "named", "averaged"] = "latest"
    created: str = ""
    size_bytes: int = 0
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """The best evaluation of a run.

    Attributes:
      metric: its name.
      value: a number, or several by their names.
      direction: which values are better, `higher` or `lower`; None if the config does not say it.
      step: at which it was reached; None if that is not known.
      checkpoint: what was saved then; None if it is not there.
    """

    metric: str
    value: float | Mapping[str, float]
    direction: Literal["higher", "lower"] | None = None
    step: int | None = None
    checkpoint: Checkpoint | None = None


class RunConfig(Mapping[str, Any]):
    """The config of a run: the value of each field by its path, and what set it.

    Example:
      >>> from official_trainer.reports.opened import RunConfig
      >>> config = RunConfig({"trainer.train_steps": "500  # --set", "task.model.hidden": "[8, 8]"})
      >>> config["trainer.train_steps"], config.origin("trainer.train_steps"), config.section("task.model")
      (500, '--set', {'hidden': [8, 8]})
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Takes each field as it stands in `params.yaml`."""
        self._texts = texts

    def __getitem__(self, path: str) -> Any:
        if path not in self._texts:
            inside = next((each for each in self._texts if each.startswith((f"{path}.", f"{path}["))), None)
            hint = f"; it is a section, with {inside}" if inside else did_you_mean(path, self._texts)
            raise NoRunError(f"the config of this run has no field {path}{hint}")
        return lines.value(self._texts[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, path: object) -> bool:
        return path in self._texts

    def get(self, path: str, default: Any = None) -> Any:
        """Returns the value of a field, or `default` if there is none."""
        return self[path] if path in self._texts else default

    def origin(self, path: str) -> str:
        """Returns what set a field: `--set`, a file and its line, `experiment`; empty for the default of its class."""
        return lines.comment(self._texts.get(path, ""))

    def section(self, path: str) -> dict[str, Any]:
        """Returns the fields below a path, by the rest of their paths."""
        return {each.removeprefix(f"{path}."): self[each] for each in self._texts if each.startswith(f"{path}.")}

    def __repr__(self) -> str:
        return f"RunConfig({len(self._texts)} fields)"


class OpenedRun:
    """One run: its directory, and what is in it.

    Attributes:
      recorded: how the run stands, as `official-trainer runs` shows it.
    """

    def __init__(self, recorded: RecordedRun) -> None:
        self.recorded = recorded

    def __repr__(self) -> str:
        step = "" if self.recorded.step is None else f" at step {self.recorded.step}"
        return f"<run {self.directory}: {self.status}{step}>"

    @property
    def directory(self) -> str:
        """The run directory."""
        return self.recorded.directory

    @property
    def name(self) -> str:
        """The last part of the directory; of a trial of a sweep `trials/NUMBER`."""
        *_, above, number, last = "", *os.path.abspath(self.directory).split(os.sep)  # of `/model` there are two
        return f"trials/{number}" if (above, last) == ("trials", "run") else last

    @property
    def status(self) -> Status:
        """How the run stands, such as `running`, `done` or `failed`."""
        return self.recorded.status

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong, and what cannot be known of the run and its metrics."""
        is_run = self.status not in ("empty", "no run", "unreadable")
        return (*self.recorded.notes, *(self.curves.notes if is_run else ()))

    @property
    def record(self) -> Mapping[str, Any]:
        """The content of `run.json`: versions, devices, command, times; empty without one that can be read."""
        return self.recorded.record

    @functools.cached_property
    def config(self) -> RunConfig:
        """The config; empty without a `params.yaml` that can be read."""
        return RunConfig(self.recorded.config)

    @functools.cached_property
    def curves(self) -> Curves:
        """The metrics by split and name, as lists."""
        return curves.read(self.directory)

    @property
    def metrics(self) -> Any:
        """Every number in a long table with the columns `step`, `time`, `split`, `name` and `value`.

        A DataFrame of pandas where that is installed, whose times are in UTC; else a dict of lists, in Unix seconds.
        """
        columns = self.curves.columns()
        try:
            import pandas
        except ImportError:
            return columns
        frame = pandas.DataFrame(columns)
        frame["time"] = pandas.to_datetime(frame["time"].astype(float), unit="s", utc=True)
        return frame

    @functools.cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints, by rising step; those in folders of their own are after those that a restart continues."""
        best = files.join(self.directory, str(self.config.get("trainer.best_checkpoint_export_subdir") or "best"))
        found = [*_checkpoints(self.directory, "latest"), *_checkpoints(best, "best")]
        for folder in _folders(files.join(self.directory, "checkpoints")):
            found += _checkpoints(folder, "named")
        return [*found, *_checkpoints(files.join(self.directory, "averaged"), "averaged")]

    @property
    def best(self) -> Best | None:
        """The best evaluation; None before the first one, and where no metric decides."""
        run = self.recorded
        if run.best is None:
            return None
        saved = [each for each in self.checkpoints if each.kind == "best"]
        best = self.record.get("best")
        step = best.get("step") if isinstance(best, Mapping) else max((each.step for each in saved), default=None)
        return Best(
            metric=run.metric or "",
            value=run.best,
            direction=run.direction,
            step=step if recorded.is_step(step) else None,
            checkpoint=next((each for each in saved if each.step == step), None),
        )

    def load_model(
        self, checkpoint: str | int = "latest", *, imports: Sequence[str] = ()
    ) -> keras.Model | MultiTaskModel:
        """Builds the model of the run's experiment, and loads its weights; averaged ones where the run averages.

        The experiment is searched in the workspace of the current directory. This configures TensorFlow for the
        runtime of the run, so it is best called before TensorFlow is used for anything else. For an experiment of
        several tasks it is their common model: `load_model().sub_tasks["digit"]` is the Keras model of one.

        Args:
          checkpoint: `latest`, `best` or a step.
          imports: modules with the experiment, as for `--import`.

        Raises:
          NoRunError: the run does not say which experiment it is of; or it is of a `Program`, whose model is in your
            code alone. The message says how to load its weights.
          ConfigError: there is no such experiment here, or the config does not fit it.
          CheckpointError: there is no such checkpoint, or it is damaged.
        """
        from official_trainer import config
        from official_trainer.runs import run
        from official_trainer.tasks import registry

        experiment = self.recorded.experiment
        if experiment is None or not self.config:
            raise NoRunError(f"{self.directory} does not say which experiment it is of, so its model cannot be built")
        if experiment == recorded.PROGRAM:
            raise NoRunError(
                f"{self.directory} is of a Program, whose model is in the code that trained it and in no config. Build "
                f'and compile it with that code; Program(model).load_weights("{self.directory}") then loads its weights'
            )
        base = registry.get_config(experiment, registry.find_workspace(), list(imports))
        params = files.join(self.directory, files.PARAMS_FILE)
        resolved = config.resolve(base, experiment=experiment, config_files=[params])
        return run.model_of(experiment, resolved, model_dir=self.directory, checkpoint=str(checkpoint))


def open(directory: str | os.PathLike[str], *, now_seconds: float | None = None) -> OpenedRun:
    """Returns the run in a directory.

    Args:
      directory: a run directory, also one that is damaged, that a process writes to now, or of Model Garden's driver.
      now_seconds: the Unix time; None reads the clock.

    Raises:
      NoRunError: there is no such folder, it holds no run, or it cannot be listed; the message says which.

    Example:
      >>> from official_trainer import reports
      >>> run = reports.open("tests/data/earlier/run")
      >>> run.status, run.best.metric, run.best.step, run.config["trainer.train_steps"]
      ('preempted', 'accuracy', 11, 20)
      >>> [checkpoint.step for checkpoint in run.checkpoints if checkpoint.kind == "latest"]
      [12, 18]
      >>> run.curves.get("validation", "accuracy").steps
      [11]
    """
    path = os.path.expanduser(os.fspath(directory))
    found = _local(path)
    if not recorded.is_run(found):
        below = ", ".join(sorted(found)[:3]) or "nothing"
        raise NoRunError(f"{path} holds no run, but {below}; `reports.open_all` finds those in folders below it")
    return OpenedRun(recorded.read(path, now_seconds=time.time() if now_seconds is None else now_seconds))


def open_all(directory: str | os.PathLike[str], *, now_seconds: float | None = None) -> list[OpenedRun]:
    """Returns the runs in a folder and below it, by directory; also the trials of sweeps.

    A folder right in `directory` without a run is one of them, with a `status` that says so.

    Args:
      directory: a folder of runs, a sweep, or a run directory.
      now_seconds: the Unix time; None reads the clock.

    Raises:
      NoRunError: there is no such folder, or it cannot be listed.

    Example:
      >>> from official_trainer import reports
      >>> sorted(run.name for run in reports.open_all("tests/data/earlier") if run.status == "preempted")
      ['run']
    """
    path = os.path.expanduser(os.fspath(directory))
    _local(path)
    return [OpenedRun(each) for each in recorded.find(path, now_seconds=now_seconds)]


def _local(path: str) -> list[str]:
    """Returns the names in a folder, or says why there are none."""
    if not path:
        raise NoRunError("the name of the run directory is empty: is a variable not set?")
    if files.is_url(path):
        raise NoRunError(f"{path}: only local run directories are read; mount the bucket, or copy the run")
    try:
        return os.listdir(path)
    except FileNotFoundError as error:
        raise NoRunYetError(f"there is no folder {path}{files.near_hint(path)}") from error
    except OSError as error:
        raise NoRunError(
            f"{path} cannot be listed: {files.as_denied(error) or files.reason_of(error)}; name a run directory"
        ) from error


def _checkpoints(folder: str, kind: Any) -> Iterator[Checkpoint]:
    try:
        found = manifest.parts(folder)
        others = [name.removesuffix(".index") for name in files.list_dir(folder) if name.endswith(".index")]
    except OSError:
        return
    for step, parts in sorted(found.items()):
        if ".manifest.json" in parts.values():
            try:
                held = manifest.read(folder, step)
                damage = manifest.damage(folder, step, checksums=False)  # sizes of files, which tell most damage
            except (UserError, ValueError, OSError) as error:
                note = f"damaged: {files.reason_of(error) if isinstance(error, OSError) else error}"
                yield Checkpoint(step=step, prefix=manifest.prefix(folder, step), kind=kind, note=note)
                continue
            results = held.extra.get("logs") if kind == "best" else None
            yield Checkpoint(
                step=step,
                prefix=manifest.prefix(folder, step),
                kind=kind,
                created=str(held.created),
                size_bytes=sum(each["size_bytes"] for each in held.files.values()),
                results=results if isinstance(results, dict) else {},
                note=f"damaged: {damage}" if damage else "",
            )
        elif not manifest.is_dead_save(parts):
            note = "without a manifest: Model Garden's, or damaged"
            yield Checkpoint(step=step, prefix=manifest.prefix(folder, step), kind=kind, note=note)
    for name in filter(_MODEL_GARDENS_BEST.fullmatch, others):
        try:
            best_step = int(files.read_json(files.join(folder, garden.INFO))[garden.BEST_STEP])
        except (OSError, UserError, KeyError, TypeError, ValueError):
            continue
        if best_step not in found:
            prefix = files.join(folder, name)
            yield Checkpoint(step=best_step, prefix=prefix, kind=kind, note="without a manifest: Model Garden's")


def _folders(path: str) -> list[str]:
    try:
        return [files.join(path, name) for name in files.list_dir(path) if os.path.isdir(files.join(path, name))]
    except OSError:
        return []
