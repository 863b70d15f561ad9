"""Model Garden inside: the experiments, configurations and drivers of `tf-models-official`, on this engine.

Owns: everything that knows Model Garden's code. Importing it imports neither TensorFlow nor `official`.
Does not own: names and contracts that both share (`tasks/task.py`, `engine/trainer.py`), its driver function
(`runs/run_experiment.py`), which is handed on from here because this is where its users look.
"""

from __future__ import annotations

import importlib
from typing import Any

from official_trainer.lazy import load

__all__ = ["run_experiment"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load("tensorflow")  # before anything else imports it, so that it comes without Keras 3
    return getattr(importlib.import_module("official_trainer.runs.run_experiment"), name)
