"""The folder in which a command runs: the workspace of the current folder.

Owns: entering it, so that a relative path in a config means the same from every folder of it; what the run that a
command names says of its experiment and its workspace. Does not own: finding the workspace of a folder
(`tasks/registry.py`).

A run directory is data and may come from others, so the workspace that its record names is never entered.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.errors import UserError

_DIRECTORIES = ("model_dir", "output", "output_dir")
_FILES = ("config_file", "gin_file")


@contextlib.contextmanager
def entered(arguments: argparse.Namespace, here: Path | None) -> Iterator[None]:
    """Runs a `with` block in the workspace of a command; paths among its flags mean what they meant.

    Args:
      arguments: the flags, which are changed.
      here: the workspace of the current folder, if it has one.
    """
    if here is None or here == Path.cwd().resolve():
        yield
        return
    _make_absolute(arguments)
    with contextlib.chdir(here):
        yield


def hint(run_dir: str, here: Path | None, imports: Sequence[str]) -> str:
    """Returns why the experiment of a run may be missing in the workspace `here`, by the record of the run.

    What the record names is not imported, and its workspace not entered, as it may come from others.
    """
    run = _record_of(run_dir)
    missing = [f"--import={module}" for module in run.get("imports", ()) if module not in imports]
    if missing:
        return f"the run in {run_dir} was started with {' '.join(missing)}: add it"
    folder = Path(run.get("workspace") or "")
    if not folder.is_absolute() or folder == here:
        return ""
    started = f"the run in {run_dir} was started in the workspace {folder}"
    if not folder.is_dir():
        return f"{started}, which is not there now: run the command in the folder where it is"
    return f"{started}: cd {shlex.quote(str(folder))} and run the command there"


def experiment_of_run(arguments: argparse.Namespace) -> str:
    """Returns the experiment of the run in `--model_dir`; empty if there is none, or its record cannot be read."""
    model_dir = getattr(arguments, "model_dir", None)
    return str(_record_of(os.path.expanduser(model_dir)).get("experiment", "")) if model_dir else ""


def _record_of(run_dir: str) -> Mapping[str, Any]:
    """Returns the record of a run; empty if it cannot be read, which the verb explains."""
    from official_trainer.tracking.record import read_run

    with contextlib.suppress(UserError, OSError):
        return read_run(run_dir) or {}
    return {}


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
