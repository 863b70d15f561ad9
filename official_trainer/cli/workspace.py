"""The folder in which a command runs: the workspace of the current folder.

Owns: entering it, so that a relative path in a config means the same from every folder of it. Does not own: finding the
workspace of a folder (`tasks/registry.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from official_trainer import files

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
