"""Model Garden's experiments: those of the installed release, found without importing it, and those of a user's module.

Owns: the index of the release; the description of an experiment, made once by the module that registers it; the cache
between commands.
Does not own: what source says (`scan.py`), the format of descriptions (`spec.py`), our classes made from them
(`from_garden.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.config import ConfigError, Origin, Problem
from official_trainer.garden.importing import import_module
from official_trainer.garden.scan import Experiment, scan
from official_trainer.garden.spec import FORMAT, describe, is_config_class
from official_trainer.lazy import load

if TYPE_CHECKING:
    from official_trainer.garden.sections import GardenExperiment

_logger = logging.getLogger(__name__)

PACKAGE = "official"
_MOST_CACHED_BYTES = 32 << 20


@functools.cache
def entries() -> Mapping[str, Experiment]:
    """Returns Model Garden's experiments by name; none if it is not installed."""
    root = package_dir()
    if root is None:
        return {}
    cached = Cache("index")
    try:
        return {row["name"]: Experiment(**row | {"path": Path(row["path"])}) for row in cached.read()["entries"]}
    except (KeyError, TypeError):
        by_name = dict(sorted((entry.name, entry) for entry in scan(root, PACKAGE).named))
    cached.write({"entries": [dataclasses.asdict(entry) | {"path": str(entry.path)} for entry in by_name.values()]})
    return by_name


def package_dir() -> Path | None:
    """Returns the folder of the package `official` without importing it, or None if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(folders[0]) if folders and (Path(folders[0]) / "core" / "exp_factory.py").is_file() else None


def release() -> str:
    """Returns the installed release, or `a checkout` if no package manager has installed it."""
    package = package_dir()
    assert package is not None, "Model Garden is not installed"
    # Not by `importlib.metadata`: importing it takes as long as all the rest of `show`.
    releases = [folder.stem.split("-")[1] for folder in package.parent.glob("tf_models_*.dist-info")]
    return releases[0] if releases else CHECKOUT


CHECKOUT = "a checkout"


class Cache:
    """A file with what was read from an installed release, which takes seconds.

    It is in `official-trainer` in `$XDG_CACHE_HOME`, or else in `~/.cache`. For a checkout, which may change, there is
    none.
    """

    def __init__(self, name: str) -> None:
        """Names the file."""
        version, digest = release(), hashlib.sha256(str(package_dir()).encode()).hexdigest()[:8]
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        file = f"{name.replace('/', '%2F')}.json"
        path = Path(home, "official-trainer", "garden", f"{version}-{FORMAT}-{digest}".replace("/", "%2F"), file)
        self._path = None if version == CHECKOUT else path

    def read(self) -> dict[str, Any]:
        """Returns the content of the file; empty if there is none, or if it is damaged."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if self._path is not None:
                content = json.loads(files.read_regular_text(str(self._path), _MOST_CACHED_BYTES))
                return content if isinstance(content, dict) else {}
        return {}

    def write(self, content: Mapping[str, Any]) -> None:
        """Writes `content`, if the cache can be written."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, files.StorageError):  # without a cache, commands only take longer
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text_atomically(str(self._path), json.dumps(content), durable=False)


# Descriptions, and our classes made from them.


@functools.cache
def experiment(name: str) -> GardenExperiment:
    """Returns an experiment of Model Garden, with the values of its factory, as one of ours.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    return _from_description(description(name), entries()[name].module)


def description(name: str) -> Mapping[str, Any]:
    """Returns the description of an experiment of Model Garden.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    cached = Cache(f"experiment {name}")
    if described := cached.read():
        return described
    entry = entries()[name]
    if "tensorflow" not in sys.modules:
        _logger.info("reading %s from Model Garden for the first time; this takes several seconds", name)
    try:
        load("tensorflow")
        import_module(entry.module)
        from official.core import exp_factory

        described = describe(exp_factory.get_exp_config(name))
    except Exception as error:
        raise ConfigError([cannot_load(f"'{name}'", error, entry.origin)]) from error
    cached.write(described)
    return described


def cannot_load(what: str, error: Exception, origin: Origin | None = None) -> Problem:
    """Returns what is said where the installed release cannot import a module of its own, or a factory fails."""
    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return Problem(f"Model Garden {release()} cannot load {what}: {reason}", origin=origin)


def imported() -> dict[str, Callable[[], Any]]:
    """Returns the factories that imported modules have registered with Model Garden by name, without its own."""
    factories = _registered()
    return {
        name: factory
        for name, factory in factories.items()
        if not function_of(factory).__module__.startswith(f"{PACKAGE}.")
    }


def _registered() -> dict[str, Callable[[], Any]]:
    exp_factory = sys.modules.get("official.core.exp_factory")
    waiting = list(exp_factory._REGISTERED_CONFIGS.items()) if exp_factory is not None else []
    factories = {}
    while waiting:
        name, factory = waiting.pop()
        if isinstance(factory, dict):  # the experiments whose names begin with `name/`
            waiting += [(f"{name}/{rest}", inner) for rest, inner in factory.items()]
        else:
            factories[name] = factory
    return factories


def function_of(factory: Any) -> Any:
    """Returns the function, or the class, that makes what a factory returns: its module, line and docstring count."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return inspect.unwrap(factory) if hasattr(factory, "__qualname__") else type(factory)


def is_experiment(config: Any) -> bool:
    """Whether an object is an experiment of Model Garden."""
    return is_config_class(type(config)) and all(
        is_config_class(type(getattr(config, name, None))) for name in ("task", "trainer", "runtime")
    )


def from_object(config: Any, module: str) -> GardenExperiment:
    """Converts an experiment of Model Garden that `module` registers; equal experiments have the same class."""
    return _from_text(json.dumps(describe(config)), module)


@functools.cache
def _from_text(text: str, module: str) -> GardenExperiment:
    return _from_description(json.loads(text), module)


def _from_description(description: Mapping[str, Any], module: str) -> GardenExperiment:
    from official_trainer.garden import from_garden  # with all sections of a config, which an index does not need

    return from_garden.from_description(description, module)
