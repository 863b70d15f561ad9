"""Run directories in Python: their config, metrics, checkpoints and model, for notebooks, tables and pages.

Owns: `open` and `open_all`, and what an `OpenedRun` offers; each part is read when it is first asked for.
Does not own: how a run stands (`runs/recorded.py`), names beside each other and differing fields (`runs/differing.py`),
numbers (`recorded_curves.py`), building a model (`runs/run.py`).
Only `load_model` imports TensorFlow, and nothing here writes to the directory.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.errors import ExitCode, UserError
from official_trainer.reports import recorded_curves
from official_trainer.reports.recorded_curves import Curves
from official_trainer.runs import differing, recorded
from official_trainer.runs.recorded import RecordedRun, Status
from official_trainer.shown import shorten

if TYPE_CHECKING:
    from official_trainer.lazy import keras
    from official_trainer.tasks.multi_task.model import MultiTaskModel

_LONGEST_ERROR = 120


class NoRunError(UserError, LookupError):
    """A folder that is opened as a run, and holds none."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint in a run directory.

    Attributes:
      step: the global step.
      prefix: its path, as TensorFlow takes it.
      role: `latest` for those that a restart continues; `best`, `named` and `averaged` have folders of their own.
      size_bytes: of all its files; 0 if that is not known.
      note: why it is not whole, or not known to be; empty for one that is.
    """

    step: int
    prefix: str
    role: Literal["latest", "best", "named", "averaged"] = "latest"
    size_bytes: int = 0
    note: str = ""


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class OpenedRun:
    """One run: its directory, and what is in it.

    Attributes:
      recorded: how the run stands, as `official-trainer runs` shows it; its `record` is the content of `run.json`.
      name: what it is called beside the runs that were opened with it; unique there.
      differs: the fields of its config in which these runs differ, by path, as YAML.
    """

    recorded: RecordedRun
    name: str
    differs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        step = "" if self.recorded.step is None else f" at step {self.recorded.step}"
        return f"<run {self.directory}: {self.status}{step}>"

    @property
    def directory(self) -> str:
        """The run directory."""
        return self.recorded.directory

    @property
    def status(self) -> Status | None:
        """How the run stands: `running`, `done`, `stopped`, `failed` or `lost`; None of a folder without a run."""
        return self.recorded.status

    @property
    def notes(self) -> list[str]:
        """What went wrong, and what is not known of the run and, once they were read, of its metrics."""
        error = self.recorded.record.get("error")
        errors = [f"error: {shorten(str(error).strip().split(chr(10))[0], _LONGEST_ERROR)}"] if error else []
        return [*self.recorded.notes, *errors, *(self.curves.notes if "curves" in vars(self) else ())]

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The value of each field of the config by its path; empty without a `params.yaml` that can be read."""
        return dict(self.recorded.config)

    def origin(self, path: str) -> str:
        """Returns what set a field: `--set`, a file and its line, `experiment`; empty for the default of its class."""
        return self.recorded.comments.get(path, "")

    @functools.cached_property
    def curves(self) -> Curves:
        """The metrics by split and name, as lists."""
        return recorded_curves.read(self.directory) if self.status is not None else Curves()

    @property
    def metrics(self) -> Any:
        """Every number, in a DataFrame of pandas with the columns `step`, `split`, `name` and `value`."""
        import pandas as pd

        numbers = [
            (step, split, name, number)
            for split, curves in self.curves.by_split.items()
            for name, curve in curves.items()
            for step, number in zip(curve.steps, curve.values, strict=True)
        ]
        return pd.DataFrame(numbers, columns=["step", "split", "name", "value"])

    @functools.cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints, by rising step; those in folders of their own are after those that a restart continues."""
        best = files.join(self.directory, str(self.config.get("trainer.best_checkpoint_export_subdir") or "best"))
        named = files.join(self.directory, "checkpoints")
        return [
            *_checkpoints(self.directory, "latest"),
            *_checkpoints(best, "best"),
            *(checkpoint for name in _names(named) for checkpoint in _checkpoints(files.join(named, name), "named")),
            *_checkpoints(files.join(self.directory, "averaged"), "averaged"),
        ]

    @property
    def best(self) -> float | Mapping[str, float] | None:
        """The best value of the metric that decides, or several by their names; None before the first evaluation.

        `recorded` names the `metric`, and says which `direction` is better.
        """
        return self.recorded.best

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
        from official_trainer.runs.job import Job
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
        job = Job(experiment=experiment, resolved=resolved, model_dir=self.directory, mode="export", quiet=True)
        return run.model_of(job, str(checkpoint))


def open(directory: str | os.PathLike[str], *, now_seconds: float | None = None) -> OpenedRun:
    """Returns the run in a directory.

    Args:
      directory: a run directory, also one that is damaged, that a process writes to now, or of Model Garden's driver.
      now_seconds: the Unix time; None reads the clock.

    Raises:
      NoRunError: there is no such folder, it holds no run, or it cannot be listed; the message says which.
    """
    path = os.path.expanduser(os.fspath(directory))
    names = _local(path)
    if not recorded.is_run(names):
        below = ", ".join(sorted(names)[:3]) or "nothing"
        raise NoRunError(f"{path} holds no run, but {below}; `reports.open_all` finds those in folders below it")
    run = recorded.read(path, now_seconds=time.time() if now_seconds is None else now_seconds)
    return OpenedRun(recorded=run, name=differing.names([path])[0])


def open_all(*directories: str | os.PathLike[str], now_seconds: float | None = None) -> list[OpenedRun]:
    """Returns the runs in folders and below them, by directory, each once; also the trials of sweeps.

    A folder right in one of `directories` without a run is one of them, with a note that says so.

    Args:
      *directories: folders of runs, sweeps, or run directories.
      now_seconds: the Unix time; None reads the clock.

    Raises:
      NoRunError: there is no such folder, or it cannot be listed.
    """
    runs: dict[str, RecordedRun] = {}
    for path in (os.path.expanduser(os.fspath(directory)) for directory in directories):
        _local(path)
        for run in recorded.find(path, now_seconds=now_seconds):
            runs.setdefault(os.path.realpath(run.directory), run)
    names = differing.names([run.directory for run in runs.values()])
    fields = differing.differing([*runs.values()])
    return [
        OpenedRun(recorded=run, name=name, differs=differs)
        for run, name, differs in zip(runs.values(), names, fields, strict=True)
    ]


def _local(path: str) -> list[str]:
    """Returns the names in a folder, or says why there are none."""
    if not path:
        raise NoRunError("the name of the run directory is empty: is a variable not set?")
    if files.is_url(path):
        raise NoRunError(f"{path}: only local run directories are read; mount the bucket, or copy the run")
    try:
        return os.listdir(path)
    except FileNotFoundError as error:
        raise NoRunError(f"there is no folder {path}{files.near_hint(path)}") from error
    except OSError as error:
        raise NoRunError(
            f"{path} cannot be listed: {files.as_denied(error) or files.reason_of(error)}; name a run directory"
        ) from error


def _checkpoints(folder: str, role: Any) -> Iterator[Checkpoint]:
    """Yields the checkpoints in a folder; sizes of files are looked at, which tell most damage, and no checksums."""
    for step, contents in sorted(manifest.files_by_step(folder).items() if _names(folder) else ()):
        size, note = 0, "without a manifest: Model Garden's, or damaged"
        if (state := manifest.state(contents)) == "committed":
            try:
                size = sum(file["size_bytes"] for file in manifest.read(folder, step).files.values())
                damage = manifest.damage(folder, step, checksums=False)
            except (UserError, ValueError, OSError) as error:
                damage = files.reason_of(error) if isinstance(error, OSError) else str(error)
            note = f"damaged: {damage}" if damage else ""
        elif state == "dead save":
            continue
        yield Checkpoint(step=step, prefix=manifest.prefix(folder, step), role=role, size_bytes=size, note=note)


def _names(folder: str) -> list[str]:
    try:
        return files.list_dir(folder)
    except OSError:
        return []
