"""A run of an experiment by its name, from Python: for tests of an experiment, and for programs.

Owns: `run` and `check`, the workspace that a call is for, what a run came to. Does not own: what a mode does
(`run.py`), a run whose Task and strategy the program has built (`program/run_experiment.py`). Imports no TensorFlow by
itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config import ConfigError, Problem, modes
from official_trainer.runs import run as engine
from official_trainer.runs.job import Job
from official_trainer.runs.mistakes import report
from official_trainer.tasks import registry
from official_trainer.tracking.record import read_run
from official_trainer.user_code import is_ours


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a call of `run` came to.

    Attributes:
      model_dir: the run directory, absolute.
      status: of the run, as `official-trainer runs` shows it: `done`, or `stopped`; None where there is no record.
      step: global step of the checkpoint; None without one.
      checkpoint: the newest checkpoint, or for `eval` and `predict` the one that was read, as TensorFlow takes its
        path; None without one.
      metrics: the last evaluation's, by name; without evaluations those of the last summary of training, and after
        `predict` none.
    """

    model_dir: str
    status: str | None
    step: int | None
    checkpoint: str | None
    metrics: Mapping[str, float]


def run(  # noqa: PLR0913 - the flags of a command
    experiment: str,
    mode: str = modes.DEFAULT_MODE,
    *,
    model_dir: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    config_files: Sequence[str] = (),
    imports: Sequence[str] = (),
    until_step: int | None = None,
    allow_config_change: bool = False,
    checkpoint: str | int = "latest",
    quiet: bool = False,
) -> RunResult:
    """Does what the command `train` does with the same values, in this process, and returns what came of it.

    The experiment is searched in the workspace that the calling file lies in, or else in that of the current folder.
    The run happens in the workspace, as a command's does, so relative paths in its config mean the same.

    Args:
      experiment: its registered name.
      mode: `train_and_eval` or another of `--mode`.
      model_dir: the run directory; relative ones begin at the current folder. A run in it continues.
      overrides: one `path=value` each, as for `--set`.
      config_files: YAML files, as for `--config_file`.
      imports: modules that register the experiment, as for `--import`.
      until_step: the step after which training stops, before its end; None for its end.
      allow_config_change: whether a run may continue with other values than its checkpoint was saved with.
      checkpoint: for `eval` and `predict`: `latest`, `best` or a step.
      quiet: whether only warnings are printed.

    Raises:
      UserError: as the command would print it.
      Exception: of the experiment's code, as it was raised; a note has what the command would print.
    """
    if checkpoint != "latest" and mode not in ("eval", "predict"):
        what = f"would have no effect with mode {mode}"
        raise ConfigError([Problem(what, "checkpoint", got=str(checkpoint), fix="leave one of them out")])
    with job_of(experiment, mode, model_dir, overrides, config_files, imports) as job, report.noted():
        job = dataclasses.replace(job, until_step=until_step, allow_config_change=allow_config_change, quiet=quiet)
        return _result(job, str(checkpoint), engine.run(job, checkpoint=str(checkpoint)))


def check(
    experiment: str,
    mode: str = modes.DEFAULT_MODE,
    *,
    model_dir: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    config_files: Sequence[str] = (),
    imports: Sequence[str] = (),
) -> None:
    """Does what the command `check` does: builds, trains a step, evaluates, saves, restores, exports; keeps nothing.

    Arguments and errors are those of `run`; the error is that of the first part that fails. Without a `model_dir` the
    config is compared with no run.
    """
    with contextlib.ExitStack() as held:
        given = model_dir or held.enter_context(tempfile.TemporaryDirectory(prefix="official-trainer-check-"))
        job = held.enter_context(job_of(experiment, mode, given, overrides, config_files, imports))
        held.enter_context(report.noted())
        for step in engine.check(job):
            if step.error is not None:
                raise step.error


@contextlib.contextmanager
def job_of(
    experiment: str,
    mode: str,
    model_dir: str | os.PathLike[str] | None,
    overrides: Sequence[str],
    config_files: Sequence[str],
    imports: Sequence[str],
) -> Iterator[Job]:
    """For a `with` block in the workspace of the call: yields the job that a call from Python names; see `run`.

    Without a `model_dir`, for what writes none, it is `runs/EXPERIMENT` of the workspace.
    """
    modes.refuse_unknown(mode)
    workspace = _workspace_of_call()
    given = None if model_dir is None else files.absolute(os.path.expanduser(os.fspath(model_dir)))
    paths = [files.absolute(os.path.expanduser(path)) for path in config_files]
    with contextlib.chdir(workspace or Path.cwd()):
        base = registry.get_config(experiment, workspace, imports)
        try:
            resolved = configuration.resolve(base, experiment=experiment, config_files=paths, sets=overrides)
        except ConfigError as error:
            raise registry.with_lines(error, experiment, workspace) from error
        directory = given or os.path.join(Path.cwd(), "runs", experiment)
        yield Job(experiment=experiment, resolved=resolved, mode=mode, model_dir=directory)


def _workspace_of_call() -> Path | None:
    """Returns the workspace that the file lies in which called this package; else that of the current folder."""
    paths = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    caller = next((path for path in paths if not is_ours(path) and path != contextlib.__file__), "")
    beside = registry.find_workspace(os.path.dirname(caller)) if os.path.isfile(caller) else None
    return beside or registry.find_workspace()


def _result(job: Job, checkpoint: str, metrics: Mapping[str, Any]) -> RunResult:
    from official_trainer.runs.chosen_checkpoint import find_checkpoint

    directory, step = None, None
    with contextlib.suppress(CheckpointError):  # with weights of `task.init_checkpoint` there may be none
        directory, step = find_checkpoint(job, checkpoint)
    return RunResult(
        model_dir=job.model_dir,
        status=(read_run(job.model_dir) or {}).get("status"),
        step=step,
        checkpoint=None if directory is None or step is None else manifest.prefix(directory, step),
        metrics=metrics,
    )
