"""The bridge to Model Garden: its experiments and its driver's words, on this engine.

Owns: what programs import from here, each thing when it is first asked for. Importing this imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from official_trainer.lazy import load

if TYPE_CHECKING:
    from official_trainer.garden.driver import ArgumentError, run_experiment

__all__ = ["ArgumentError", "run_experiment"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load("tensorflow")  # before anything else imports it, so that it comes without Keras 3
    return getattr(importlib.import_module("official_trainer.garden.driver"), name)
