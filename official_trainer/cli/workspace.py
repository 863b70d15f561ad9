"""The folder in which a command runs: the workspace of the current folder, or that of the run which it names.

Owns: entering it, so that a relative path in a config means the same from every folder; which workspace a run names,
and whether its code may run. Does not own: finding the workspace of a folder (`tasks/registry.py`).

A run directory is data and may come from others, so a workspace that its record names is entered only if a command was
run in it before, by the same user on the same machine: that has run its code already.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.errors import UserError

if TYPE_CHECKING:
    from official_trainer.garden.cache import CacheFile

VERBS = ("check", "data", "eval", "export", "predict", "show", "train")
"""The verbs that read a config."""
_DIRECTORIES = ("model_dir", "output", "output_dir")
_FILES = ("config_file", "gin_file")
_KEY = "workspace"


@contextlib.contextmanager
def entered(arguments: argparse.Namespace, here: Path | None) -> Iterator[None]:
    """Runs a `with` block in the workspace of a command; paths among its flags mean what they meant.

    Args:
      arguments: the flags, which are changed.
      here: the workspace of the current folder, if it has one.
    """
    place = _of_named_run(arguments, here) or here
    if place is not None and place == here and not _is_known(place):
        _cache(place).write({_KEY: str(place)})
    if place is None or place == Path.cwd().resolve():
        yield
        return
    from official_trainer.tasks import sources

    if here is None:
        sources.make_importable(Path.cwd())  # as without a workspace: modules that --import names may lie here
    _make_absolute(arguments)
    with contextlib.chdir(place):
        yield


def hint(run_dir: str, here: Path | None) -> str:
    """Returns where the experiment of a run may be, for the message that it is not in the workspace `here`."""
    facts = _recorded(run_dir)
    place = None if facts is None else facts[1]
    if place is None or place == here:
        return ""
    started = f"the run in {run_dir} was started in the workspace {place}"
    if not place.is_dir():
        return f"{started}, which is not there now: run the command in the folder where it is"
    why = "" if _is_known(place) else ", in which you have run no command on this machine yet"
    return f"{started}{why}: cd {shlex.quote(str(place))} and run the command there"


def experiment_of_run(arguments: argparse.Namespace) -> str:
    """Returns the experiment of the run that a command names; empty if it names none, or that cannot be read."""
    run_dir = _named_run(arguments)
    facts = None if run_dir is None else _recorded(run_dir)
    return "" if facts is None else facts[0]


def _of_named_run(arguments: argparse.Namespace, here: Path | None) -> Path | None:
    """Returns the workspace of the run that a command names without its experiment; None for that of the folder."""
    if (run_dir := _named_run(arguments)) is None or (facts := _recorded(run_dir)) is None:
        return None
    experiment, place = facts
    if place is None or place == here or not place.is_dir() or not _is_known(place):
        return None
    from official_trainer.tasks import registry

    is_here = here is not None and experiment in registry.named(here, getattr(arguments, "import", None) or [])
    return None if is_here else place


def _named_run(arguments: argparse.Namespace) -> str | None:
    if getattr(arguments, "experiment", None):
        return None
    if not (name := getattr(arguments, "name", None)):
        model_dir = getattr(arguments, "model_dir", None)
        return os.path.expanduser(model_dir) if model_dir else None
    return name if not hasattr(arguments, "model_dir") and os.path.isdir(name) else None  # for `show`


def _recorded(run_dir: str) -> tuple[str, Path | None] | None:
    """Returns the experiment and the workspace that the record of a run names; the verb explains what is wrong."""
    from official_trainer.tracking.record import read_run

    with contextlib.suppress(UserError, OSError):
        if run := read_run(run_dir):
            place = run.get(_KEY)
            return str(run.get("experiment")), Path(place) if place and os.path.isabs(place) else None
    return None


def _make_absolute(arguments: argparse.Namespace) -> None:
    """Makes the paths among the flags independent of the current folder."""
    for flag in _DIRECTORIES:
        if value := getattr(arguments, flag, None):
            setattr(arguments, flag, _absolute(value))
    for flag in _FILES:
        if values := getattr(arguments, flag, None):
            setattr(arguments, flag, [_absolute(value) for value in values])
    overrides = getattr(arguments, "params_override", None) or ()  # each may be a file
    if overrides:
        arguments.params_override = [_absolute(each) if os.path.isfile(each) else each for each in overrides]
    if not hasattr(arguments, "model_dir") and os.path.isdir(getattr(arguments, "name", None) or ""):
        arguments.name = _absolute(arguments.name)


def _absolute(path: str) -> str:
    return files.absolute(os.path.expanduser(path))


def _is_known(place: Path) -> bool:
    return _cache(place).read().get(_KEY) == str(place)


def _cache(place: Path) -> CacheFile:
    from official_trainer.garden.cache import CacheFile

    return CacheFile("workspaces", hashlib.sha256(os.fsencode(place)).hexdigest()[:32])
