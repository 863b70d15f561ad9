"""Descriptions of Model Garden's experiments, read off once and then kept.

Owns: getting one, from the cache or by importing the module that registers the experiment; which could not be had.
Does not own: their shape (`spec.py`), the cache's place and the index (`index.py`).
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping
from typing import Any

from official_trainer.config import ConfigError, Origin, Problem
from official_trainer.garden.index import Entry, Kept, entries, release
from official_trainer.garden.spec import describe
from official_trainer.lazy import load

_logger = logging.getLogger(__name__)


def description(name: str) -> Mapping[str, Any]:
    """Returns the description of an experiment of Model Garden.

    Raises:
      ConfigError: the installed release cannot import it, or its factory fails.
    """
    kept = Kept(f"experiment {name}")
    try:
        known = kept.read()
        if "failure" not in known:
            return known
    except (OSError, ValueError):
        known = {}
    entry = entries()[name]
    if "tensorflow" not in sys.modules:
        _logger.info("reading %s from Model Garden for the first time, which takes seconds", name)
    try:
        found = describe(_live(entry))
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        kept.write({"failure": failure})
        raise ConfigError([_problem(entry, failure)]) from error
    kept.write(found)
    return found


def is_kept(name: str) -> bool:
    """Whether the description of an experiment is in the cache."""
    try:
        return "failure" not in Kept(f"experiment {name}").read()
    except (OSError, ValueError):
        return False


def failures() -> list[Problem]:
    """Returns the experiments that could not be had when somebody asked for them, and why."""
    found = []
    for name, entry in entries().items():
        try:
            failure = Kept(f"experiment {name}").read().get("failure")
        except (OSError, ValueError):
            continue
        if failure is not None:
            found.append(_problem(entry, failure))
    return found


def _live(entry: Entry) -> Any:
    load("tensorflow")
    importlib.import_module(entry.module)
    from official.core import exp_factory

    return exp_factory.get_exp_config(entry.name)


def _problem(entry: Entry, failure: str) -> Problem:
    what = f"Model Garden's experiment '{entry.name}' cannot be had from {release()}: {failure}"
    return Problem(what, origin=Origin("file", entry.path, entry.line))
