"""Tests use one workspace after another in a process; a command has one, and refuses another."""

import contextlib
import sys
from pathlib import Path

import pytest

from official_trainer.config import components
from official_trainer.garden import index
from official_trainer.garden.scan import FOLDER
from official_trainer.tasks import registry


@contextlib.contextmanager
def one_after_another():
    """In a `with` block, entering another workspace forgets that of before, and brings back one of earlier."""
    enter, left = registry.enter, {}

    def forgetting(workspace):
        folders = [Path(path).resolve().parent for path in getattr(sys.modules.get(FOLDER), "__path__", ())]
        wanted = None if workspace is None else Path(workspace).resolve()
        if folders and wanted not in folders:
            left[folders[0]] = _forget(folders[0])
        # A namespace package looks for its folders along `sys.path`, again and again.
        sys.path[:] = [
            path for path in sys.path if not (Path(path) / FOLDER).is_dir() or Path(path).resolve() == wanted
        ]
        if wanted in left and FOLDER not in sys.modules:
            _bring_back(left.pop(wanted))
        enter(workspace)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "enter", forgetting)
        yield


def forget():
    """Takes the workspace out of the process, as if the command before had been one of another process."""
    for folder in list(getattr(sys.modules.get(FOLDER), "__path__", ())):
        _forget(Path(folder).resolve().parent)


@contextlib.contextmanager
def apart(folder):
    """For a block that imports the experiments of `folder`: then those that were imported before are back."""
    before = _taken()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _taken()
        _bring_back(before)


def _forget(workspace):
    """Takes the modules and the experiments of a workspace out of the process, and returns them."""
    sys.path[:] = [path for path in sys.path if path != str(workspace)]
    return _taken()


def _bring_back(taken):
    modules, factories = taken
    sys.modules.update(modules)
    registry._factories.update(factories)


def _taken():
    names = [name for name in sys.modules if name.partition(".")[0] in (FOLDER, *components.FOLDERS)]
    experiments = registry._factories
    registered = [name for name, factory in experiments.items() if _package(factory) == FOLDER]
    return {name: sys.modules.pop(name) for name in names}, {name: experiments.pop(name) for name in registered}


def _package(factory):
    return index.function_of(factory).__module__.partition(".")[0]
