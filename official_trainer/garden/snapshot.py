"""Descriptions of Model Garden's experiments, made once and then cached.

Owns: reading one from the cache or from the module that registers the experiment; the experiments that failed to load;
the experiments that a user's own module registers with Model Garden, which are not cached.
Does not own: the format (`spec.py`), the place of the cache and the index (`index.py`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer.config import ConfigError, Origin, Problem
from official_trainer.garden.from_garden import from_description
from official_trainer.garden.index import Cache, Entry, entries, release
from official_trainer.garden.sections import GardenExperiment
from official_trainer.garden.spec import describe, is_config_class
from official_trainer.lazy import load

_logger = logging.getLogger(__name__)

_FAILURES = "failures"


@functools.cache
def experiment(name: str) -> GardenExperiment:
    """Returns an experiment of Model Garden, with the values of its factory, as one of ours.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    return from_description(description(name), entries()[name].module)


def description(name: str) -> Mapping[str, Any]:
    """Returns the description of an experiment of Model Garden.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    cached = Cache(f"experiment {name}")
    with contextlib.suppress(OSError, ValueError):
        return cached.read()
    entry = entries()[name]
    if "tensorflow" not in sys.modules:
        _logger.info("reading %s from Model Garden for the first time; this takes several seconds", name)
    try:
        found = describe(_load(entry))
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        Cache(_FAILURES).write({**failures(), name: failure})
        what = f"Model Garden {release()} cannot load '{name}': {failure}"
        raise ConfigError([Problem(what, origin=Origin("file", entry.path, entry.line))]) from error
    cached.write(found)
    return found


def registered(name: str, module: str) -> Callable[[], Any] | None:
    """Returns the factory that an imported module has registered with Model Garden under a name, or None."""
    exp_factory = sys.modules.get("official.core.exp_factory")
    if exp_factory is None:
        return None
    from official.core import registry

    try:
        factory = registry.lookup(
            exp_factory._REGISTERED_CONFIGS, name
        )  # the public function would also call the factory
    except LookupError:
        return None
    return factory if getattr(factory, "__module__", "") == module else None


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
    return from_description(json.loads(text), module)


def failures() -> dict[str, str]:
    """Returns the experiments that failed to load in an earlier command, each with the reason."""
    try:
        return Cache(_FAILURES).read()
    except (OSError, ValueError):
        return {}


def _load(entry: Entry) -> Any:
    load("tensorflow")
    importlib.import_module(entry.module)
    from official.core import exp_factory

    return exp_factory.get_exp_config(entry.name)
