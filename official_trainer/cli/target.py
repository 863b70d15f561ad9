"""What a command is about: a job, with an experiment, its resolved configuration and its run directory.

Owns: the way from shared flags to a job; the workspace, and running a verb in it; the default of `--model_dir`; reading
back a run.
Does not own: resolving values (`config/`), finding experiments (`tasks/registry.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.shown import printable

if TYPE_CHECKING:
    from official_trainer.config import ExperimentConfig, Resolved
    from official_trainer.runs.job import Job


_DIRECTORIES = ("model_dir", "output", "output_dir")
_FILES = ("config_file", "gin_file")
NEW_WORKSPACE = "`official-trainer init DIR` writes a new workspace"


def from_flags(arguments: argparse.Namespace, mode: str) -> Job:
    """Returns what the flags name as a job of a mode.

    Raises:
      UsageError: no experiment is named, or two are.
      ConfigError: there is no such experiment, or its configuration has a problem.
    """
    return _job(named_experiment(arguments), arguments, mode)


def from_flags_or_run(arguments: argparse.Namespace, mode: str) -> Job:
    """Returns the experiment that the flags name, or else the one that ran in `--model_dir`, as it ran, as a job.

    Raises:
      UsageError: neither names an experiment.
      ConfigError: there is no such experiment, or its configuration has a problem.
    """
    if arguments.experiment or arguments.name or arguments.model_dir == "":
        return from_flags(arguments, mode)
    if not arguments.model_dir:
        raise UsageError(_none_named(arguments, "name a run or an experiment: --model_dir=DIR or --experiment=NAME"))
    run_dir = os.path.expanduser(arguments.model_dir)
    return _job(recorded_experiment(run_dir), arguments, mode, run_dir)


def _job(experiment: str, arguments: argparse.Namespace, mode: str, run_dir: str | None = None) -> Job:
    """Resolves an experiment, and shows on a terminal that it is loaded, as its modules may import much."""
    from official_trainer.garden import gin_bindings
    from official_trainer.runs.job import Job
    from official_trainer.tracking.console import working

    is_quiet = getattr(arguments, "quiet", False) or getattr(arguments, "json", False)
    with working(f"loading {printable(experiment)}", quiet=is_quiet):
        resolved = resolve(experiment, arguments, run_dir=run_dir)
    return Job(
        experiment=experiment,
        resolved=resolved,
        model_dir=run_dir or model_dir_of(experiment, arguments),
        mode=mode,
        quiet=arguments.quiet,
        argv=arguments.argv,
        allow_config_change=getattr(arguments, "allow_config_change", False),
        gin=gin_bindings.read(arguments.gin_file, arguments.gin_params),
        until_step=flags.read_number(arguments, "until_step", least=1) if hasattr(arguments, "until_step") else None,
    )


def read_run(arguments: argparse.Namespace) -> None:
    """Takes the directory of a run in the place of an experiment, as in `export runs/digits`, as `--model_dir`."""
    if arguments.name and not arguments.experiment and not arguments.model_dir and is_run(arguments.name):
        arguments.model_dir, arguments.name = arguments.name, None


def names_experiment(arguments: argparse.Namespace) -> bool:
    """Returns whether a verb that takes an experiment is given one; the directory of a run, for `show`, is none."""
    name = getattr(arguments, "experiment", None) or (hasattr(arguments, "experiment") and arguments.name)
    return bool(name) and not is_run(str(name))


def named_experiment(arguments: argparse.Namespace) -> str:
    """Returns the experiment named by `--experiment` or by position.

    Raises:
      UsageError: none is named, or two are.
    """
    name = arguments.name
    if arguments.experiment and name and arguments.experiment != name:
        fix = f"write {name}=VALUE, or leave it out" if "." in name else "keep one"
        raise UsageError(f"two experiments: {name} and --experiment={arguments.experiment}; {fix}")
    if arguments.experiment or arguments.name:
        return str(arguments.experiment or arguments.name)
    raise UsageError(_none_named(arguments, "name the experiment: --experiment=NAME"))


def _none_named(arguments: argparse.Namespace, what: str) -> str:
    """Returns the message for a command without an experiment: those there are, and the command with one of them."""
    from official_trainer.tasks import registry

    names = list(registry.named(workspace(arguments), imports(arguments)))
    if not names:
        return f"{what}\nexperiments: none here; {NEW_WORKSPACE}"
    command = shlex.join([*flags.called(arguments), f"--experiment={names[0]}"])
    return f"{what}\nexperiments: {', '.join(names)}\ntry: {command}"


def resolve(
    experiment: str,
    arguments: argparse.Namespace,
    *,
    run_dir: str | None = None,
    base: ExperimentConfig | None = None,
    warns: bool = True,
) -> Resolved:
    """Resolves `experiment` under the configuration flags, over the `params.yaml` of `run_dir` if that is given.

    Args:
      experiment: its name.
      arguments: the flags.
      run_dir: the directory of a run.
      base: the experiment, where it was found before; see `base_of`.
      warns: whether its warnings are printed.

    Raises:
      ConfigError: there is no such experiment, or its configuration has a problem.
    """
    from official_trainer import config
    from official_trainer.tasks import registry

    base = base or base_of(experiment, arguments, run_dir=run_dir)
    fields = [("--tpu", "runtime.tpu", arguments.tpu)] if arguments.tpu else []
    if arguments.tf_data_service:
        fields.append(("--tf_data_service", "task.train_data.enable_tf_data_service", "true"))
        fields.append(("--tf_data_service", "task.train_data.tf_data_service_address", arguments.tf_data_service))
    if not arguments.enable_async_checkpointing:
        fields.append(("--noenable_async_checkpointing", "trainer.async_checkpoint", "false"))
    try:
        resolved = config.resolve(
            base,
            experiment=experiment,
            config_files=[*([params_path(run_dir)] if run_dir else []), *(arguments.config_file or ())],
            params_overrides=arguments.params_override or (),
            sets=arguments.set or (),
            flags=fields,
        )
    except config.ConfigError as error:
        raise registry.with_lines(error, experiment, workspace(arguments)) from error
    for warning in resolved.warnings if warns else ():
        terminal.report_error(str(warning), "warning", "yellow")
    return resolved


def base_of(experiment: str, arguments: argparse.Namespace, *, run_dir: str | None = None) -> ExperimentConfig:
    """Returns an experiment as its factory made it, without what flags change; see `resolve` for the arguments.

    Raises:
      ConfigError: there is no such experiment, or its module or factory fails.
    """
    from official_trainer import config
    from official_trainer.tasks import registry

    try:
        return registry.get_config(experiment, workspace(arguments), imports(arguments))
    except registry.UnknownExperimentError as error:
        problem = error.problems[0]
        is_folder = os.path.isdir(experiment) or (os.sep in experiment and not problem.near)
        if is_folder and not run_dir:
            what = f"{experiment} holds no run" if files.exists(experiment) else f"there is no folder {experiment}"
            near = files.near(experiment)
            problem = dataclasses.replace(problem, what=f"{what}, and no experiment has this name", near=near)
        raise config.ConfigError([problem]) from error


def workspace(arguments: argparse.Namespace) -> Path | None:
    """Returns the workspace of the current directory, else the one that `train.py` lies in, else None.

    That of `train.py` comes first where it alone has the experiment that is named.
    """
    from official_trainer.tasks import registry

    here = registry.find_workspace()
    beside = registry.find_workspace(arguments.home) if arguments.home else None
    if here is None or beside in (None, here):
        return here or beside
    name = arguments.experiment or arguments.name
    is_only_beside = name in registry.named(beside, imports(arguments)) and name not in registry.named(
        here, imports(arguments)
    )
    return beside if is_only_beside else here


def imports(arguments: argparse.Namespace) -> list[str]:
    """Returns the modules that `--import` names."""
    return getattr(arguments, "import", None) or []


def params_path(run_dir: str) -> str:
    """Returns the file with the configuration of a run."""
    return files.join(run_dir, files.PARAMS_FILE)


def is_run(name: str) -> bool:
    """Whether a name is the directory of a run; a PermissionError says that this user may not look into it."""
    try:
        return files.exists(params_path(name)) or (not files.is_url(name) and bool(os.stat(params_path(name))))
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise
        return False


def recorded_experiment(run_dir: str) -> str:
    """Returns the name of the experiment that ran in `run_dir`.

    Raises:
      UsageError: no run is there.
      ModelDirError: its record cannot be read.
    """
    from official_trainer.tracking.record import read_run

    run = read_run(run_dir)
    if run is None and not files.is_url(run_dir) and not os.path.exists(run_dir):
        raise UsageError(f"there is no folder {run_dir}{files.near_hint(run_dir)}")
    if run is None:
        raise UsageError(f"{run_dir} holds no run (there is no run.json), so name the experiment with --experiment")
    return str(run["experiment"])


def model_dir_of(experiment: str, arguments: argparse.Namespace) -> str:
    """Returns the run directory that the flags name, or the one that the experiment has in the workspace.

    Raises:
      UsageError: it is empty.
    """
    model_dir: str | None = getattr(arguments, "model_dir", None)
    if model_dir == "":
        raise UsageError("--model_dir is empty: is a variable not set? Name a directory, or leave the flag out")
    if model_dir:
        return os.path.expanduser(model_dir)
    return os.path.join(workspace(arguments) or os.getcwd(), "runs", experiment)


@contextlib.contextmanager
def in_workspace(arguments: argparse.Namespace) -> Iterator[None]:
    """Runs a `with` block in the workspace, so that a relative path in a config means the same from every folder of it.

    Paths among the flags, which are changed, mean what they meant.
    """
    here = workspace(arguments)
    if here is None or here == Path.cwd().resolve():
        yield
        return
    _make_absolute(arguments)
    with contextlib.chdir(here):
        yield


def _make_absolute(arguments: argparse.Namespace) -> None:
    """Makes the paths among the flags independent of the current folder."""
    for flag in _DIRECTORIES:
        if value := getattr(arguments, flag, None):
            setattr(arguments, flag, _absolute(value))
    for flag in _FILES:
        if values := getattr(arguments, flag, None):
            setattr(arguments, flag, [_absolute(value) for value in values])
    overrides = getattr(arguments, "params_override", None) or ()  # some may be files
    if overrides:
        arguments.params_override = [_absolute(text) if os.path.isfile(text) else text for text in overrides]
    if not hasattr(arguments, "model_dir") and os.path.isdir(getattr(arguments, "name", None) or ""):
        arguments.name = _absolute(arguments.name)


def _absolute(path: str) -> str:
    return files.absolute(os.path.expanduser(path))
