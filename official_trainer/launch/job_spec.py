"""From the flags of `launch` to a job: how many processes, in which mode, and what each of them runs.

Owns: reading the profile, which verbs a job can run, what is refused before anything starts, `JobSpec` with its
commands.
Does not own: the flags and a job on this machine (`verbs/launch.py`), jobs of schedulers (`submit.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.cli import flags, target, terminal, verbs
from official_trainer.cli.parser import UsageError
from official_trainer.cli.verbs import train
from official_trainer.config import modes
from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, WORKER, Cluster
from official_trainer.launch.profile import NO_SECRET
from official_trainer.nearest import did_you_mean

if TYPE_CHECKING:
    from official_trainer.config import Problem, Resolved
    from official_trainer.launch.profile import Profile
    from official_trainer.launch.spec import JobSpec
    from official_trainer.runs.job import Job

MODES = (*modes.TRAINING_MODES, "predict")
"""The modes that several processes can share."""

PLACEHOLDER = "change-me"
"""In a value of a profile to copy: what its user has to replace. It is valid in names, URLs and names of images."""

SWEEP = "sweep"
"""The verb whose work the workers of a job can share."""

_PROFILES = "launch"  # the folder of a workspace
_NAME_OF_PROFILE = re.compile(r"[\w-]+")

_GRACE_MARGIN_SECONDS = 10.0  # a process ends by itself after runtime.stop_grace_seconds
_STRATEGIES = {PS: "parameter_server", WORKER: "multi_worker_mirrored"}


def read_profile(arguments: argparse.Namespace, base: Profile, *, starts: bool) -> Profile:
    """Returns the profile of a job: the target's defaults, under the file, under the flags.

    Warns of values that the user has to replace first.

    Args:
      arguments: the flags of `launch`; `profile` becomes the path of the file, None if there is none.
      base: a profile of the target, with its defaults.
      starts: whether the job starts; such values are then refused.

    Raises:
      UsageError: the workspace has no profile of the name.
      ConfigError: the file or a flag has a problem.
    """
    from official_trainer import config

    arguments.profile = _profile_file(arguments)
    given = [
        (f"--{name}", name, number)
        for name in ("workers", "ps", "max_restarts")
        if (number := getattr(arguments, name)) is not None
    ]
    given += [
        (f"--{'' if on else 'no'}{name}", name, str(on).lower())
        for name in ("chief", "evaluator")
        if (on := getattr(arguments, name)) is not None
    ]
    try:
        resolved = config.resolve(base, config_files=[arguments.profile] if arguments.profile else [], flags=given)
    except config.ConfigError as error:
        # A file that cannot be read sets nothing, so what its fields lack is no problem of its own.
        unread = [problem for problem in error.problems if not problem.path]
        raise config.ConfigError(_without_secrets(unread or error.problems)) from error
    placeholders = [
        config.Problem("is a placeholder", path, repr(text), fix="write your own", origin=resolved.trail.origin(path))
        for path, text in config.flat(resolved.config).items()
        if isinstance(text, str) and PLACEHOLDER in text.lower()
    ]
    if placeholders and starts:
        raise config.ConfigError(placeholders)
    for warning in (*map(str, resolved.warnings), *(problem.message for problem in placeholders)):
        terminal.report_error(warning, "warning", "yellow")
    profile: Profile = resolved.config
    return profile


def _without_secrets(problems: Sequence[Problem]) -> list[Problem]:
    """Returns problems, without the lines of the file if one of them is about a secret."""
    if not any(NO_SECRET in problem.what for problem in problems):
        return list(problems)
    origins = [problem.origin and dataclasses.replace(problem.origin, text="") for problem in problems]
    return [dataclasses.replace(problem, origin=origin) for problem, origin in zip(problems, origins, strict=True)]


def _profile_file(arguments: argparse.Namespace) -> str | None:
    """Returns the path of the profile: that of the flag, or in `launch/` of the workspace that of a name."""
    given: str | None = arguments.profile
    if given == "":
        raise UsageError("--profile is empty: is a variable not set? Name a profile, or leave the flag out")
    if given is not None and not _NAME_OF_PROFILE.fullmatch(given):
        if not os.path.exists(os.path.expanduser(given)):
            how = f"--profile=NAME, without a folder and an ending, takes {_PROFILES}/NAME.yaml"
            raise UsageError(f"--profile={given}: there is no such file{files.near_hint(given)}; {how}")
        return given
    folder = os.path.relpath(os.path.join(target.workspace(arguments) or ".", _PROFILES))
    path = os.path.join(folder, f"{given or arguments.target}.yaml")
    if os.path.isfile(path):
        terminal.report_error(path, "profile", "dim")
        return path
    if given is None:
        return None
    names = [name.removesuffix(".yaml") for name in files.list_dir(folder) if name.endswith(".yaml")]
    there = f"profiles there: {', '.join(names)}" if names else "name a file by its path"
    raise UsageError(f"--profile={given}: there is no {path}; {there}{did_you_mean(given, names)}")


def read_mode(arguments: argparse.Namespace, profile: Profile) -> str:
    """Returns the mode of the processes that train or predict; with an evaluator the default is `train`.

    Raises:
      UsageError: the mode neither trains nor predicts, two processes would evaluate, or a process or flag would have
        no effect.
    """
    if arguments.command == "predict":
        if arguments.mode not in (None, "predict"):
            raise UsageError(f"--mode={arguments.mode} with `-- predict`: keep one of the two")
        arguments.mode = "predict"
    if profile.evaluator and arguments.mode is None:
        arguments.mode = "train"
    mode = flags.read_mode(arguments)
    if mode == "predict":
        if idle := [role for role in (PS, EVALUATOR) if profile.counts[role]]:
            raise UsageError(f"--mode=predict has nothing to do for {' and '.join(idle)}; leave it out")
        flags.read_checkpoint(arguments)
        return mode
    flags.refuse_idle_prediction(arguments, mode)
    if mode not in modes.TRAINING_MODES:
        raise UsageError(f"--mode={mode} does not train: use `official-trainer train --mode={mode}`, or --evaluator")
    if profile.evaluator and modes.TRAINING_MODES[mode] != "never":
        raise UsageError(f"--evaluator with --mode={mode}: both would evaluate; use --mode=train, or leave one out")
    return mode


def load_sweep() -> types.ModuleType | None:
    """Imports the verb of a sweep; None where sweeps are not installed."""
    return verbs.load_some([SWEEP]).get(SWEEP)


def refuse_idle(arguments: argparse.Namespace) -> None:
    """Refuses flags of `train` for a sweep, and those of a sweep for another command.

    Raises:
      UsageError: such a flag is given.
    """
    if arguments.command == SWEEP:
        kept = _words(arguments, flags.add_run_flags)
        given = [word for word in _words(arguments, train.add_flags) if word not in kept]
        fix = "leave it out"
    else:
        sweep = load_sweep()
        given = _words(arguments, sweep.add_worker_flags) if sweep is not None else []
        fix = f"write `-- {SWEEP}` before the experiment, or leave it out"
    if given:
        raise UsageError(f"{' '.join(given)} would have no effect with `-- {arguments.command}`; {fix}")


def check_sweep(arguments: argparse.Namespace, profile: Profile) -> JobSpec:
    """Returns the job whose workers share a sweep, which has refused what they would refuse.

    Raises:
      UsageError: the profile has processes that have nothing to do there, or the sweep refuses a flag.
      ConfigError: the configuration has a problem.
    """
    from official_trainer.launch.spec import shared_job

    if idle := [role for role, count in profile.counts.items() if count and role != WORKER]:
        raise UsageError(f"each worker of a sweep trains and evaluates alone; leave {' and '.join(idle)} out")
    sweep = load_sweep()
    assert sweep is not None, "the parser knows the command"
    words, directory, grace_seconds = sweep.worker_command(arguments)
    job = shared_job(profile.workers, [SWEEP, *words], grace_seconds=grace_seconds + _GRACE_MARGIN_SECONDS)
    return dataclasses.replace(job, model_dir=directory, cwd=os.getcwd())


def check_job(arguments: argparse.Namespace, profile: Profile, mode: str, check: Callable[[Job], object]) -> JobSpec:
    """Returns the job, once it has passed the checks that each process makes at its start.

    Args:
      arguments: the flags of `train`.
      profile: the number of processes, and their resources.
      mode: of the processes that train or predict.
      check: refuses a job that cannot be trained.
    """
    from official_trainer.launch.spec import training_job

    job, counts = target.from_flags(arguments, mode), profile.counts
    predicts = mode == "predict"  # each process uses its own devices, so any strategy is fine
    if not predicts:
        refuse_strategy(job.resolved, counts)
    # As its chief sees it, without addresses; a single process is in no cluster.
    addresses = {role: ("",) * counts[role] for role in (CHIEF, WORKER, PS) if counts[role]}
    cluster = None
    if not predicts and sum(map(len, addresses.values())) > 1:
        cluster = Cluster(addresses=addresses, role=next(iter(addresses)), index=0, source="launch")
    check(dataclasses.replace(job, cluster=cluster, gpus=profile.resources.gpus))
    runtime = job.config.runtime
    grace = runtime.stop_grace_seconds + _GRACE_MARGIN_SECONDS
    gpus = {role: profile.resources_of(role).gpus for role in counts}
    spec = training_job(counts, _words(arguments, train.add_flags), grace_seconds=grace, gpus=gpus)
    return dataclasses.replace(spec, model_dir=job.model_dir, cwd=os.getcwd(), strategy=runtime.distribution_strategy)


def _words(arguments: argparse.Namespace, add_flags: Callable[[flags.Parser], None]) -> list[str]:
    """Returns the flags of a command line that are declared by `add_flags`, as words."""
    parser = flags.Parser("", usage="", description="")
    add_flags(parser)
    return parser.words(arguments)


def refuse_strategy(resolved: Resolved, counts: dict[str, int]) -> None:
    """Refuses a strategy with which the processes would not train together.

    Raises:
      UsageError: the strategy is for a single process.
    """
    if counts[CHIEF] + counts[WORKER] + counts[PS] == 1:
        return
    strategy = resolved.config.runtime.distribution_strategy
    fitting = _STRATEGIES[PS if counts[PS] else WORKER]
    if strategy not in (fitting, "auto"):
        names = [f"{count} {role}{'s' * (count > 1)}" for role, count in counts.items() if role != EVALUATOR and count]
        raise UsageError(
            f"runtime.distribution_strategy={strategy} does not train with {', '.join(names)}; "
            f"set runtime.distribution_strategy={fitting}, or leave it at auto"
        )
