"""Descriptions of Model Garden's experiments, read off once and then kept.

Owns: getting one, from the cache or by importing the module that registers the experiment; which could not be had;
the experiments that a user's own module registers there, of which nothing is kept.
Does not own: their shape (`spec.py`), the cache's place and the index (`index.py`).
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
from official_trainer.garden.index import Entry, Kept, entries, release
from official_trainer.garden.mirror import mirror
from official_trainer.garden.sections import GardenExperiment
from official_trainer.garden.spec import describe, is_config_class
from official_trainer.lazy import load

_logger = logging.getLogger(__name__)

_FAILURES = "failures"


@functools.cache
def experiment(name: str) -> GardenExperiment:
    """Returns an experiment of Model Garden as its factory made it, as one of ours.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    return mirror(description(name), entries()[name].module)


def description(name: str) -> Mapping[str, Any]:
    """Returns the description of an experiment of Model Garden.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    kept = Kept(f"experiment {name}")
    with contextlib.suppress(OSError, ValueError):
        return kept.read()
    entry = entries()[name]
    if "tensorflow" not in sys.modules:
        _logger.info("reading %s from Model Garden for the first time, which takes seconds", name)
    try:
        found = describe(_live(entry))
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        Kept(_FAILURES).write({**failures(), name: failure})
        what = f"Model Garden {release()} cannot give '{name}': {failure}"
        raise ConfigError([Problem(what, origin=Origin("file", entry.path, entry.line))]) from error
    kept.write(found)
    return found


def registered(name: str, module: str) -> Callable[[], Any] | None:
    """Returns the factory of an experiment that a module, once imported, has registered with Model Garden; or None."""
    exp_factory = sys.modules.get("official.core.exp_factory")
    if exp_factory is None:
        return None
    from official.core import registry

    try:
        factory = registry.lookup(exp_factory._REGISTERED_CONFIGS, name)  # what is public calls the factory too
    except LookupError:
        return None
    return factory if getattr(factory, "__module__", "") == module else None


def is_experiment(config: Any) -> bool:
    """Whether a live configuration is an experiment of Model Garden."""
    return is_config_class(type(config)) and all(
        is_config_class(type(getattr(config, name, None))) for name in ("task", "trainer", "runtime")
    )


def mirrored(config: Any, module: str) -> GardenExperiment:
    """Returns a live experiment of Model Garden that `module` registers as one of ours; equal ones are of one class."""
    return _mirrored(json.dumps(describe(config)), module)


@functools.cache
def _mirrored(text: str, module: str) -> GardenExperiment:
    return mirror(json.loads(text), module)


def failures() -> dict[str, str]:
    """Returns the experiments that could not be had when somebody asked for them, each with the reason."""
    try:
        return Kept(_FAILURES).read()
    except (OSError, ValueError):
        return {}


def _live(entry: Entry) -> Any:
    load("tensorflow")
    importlib.import_module(entry.module)
    from official.core import exp_factory

    return exp_factory.get_exp_config(entry.name)
