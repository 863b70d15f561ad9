"""The versions that decide whether two runs compute the same.

Owns: which packages those are. Reads package metadata only, so nothing is imported.
Does not own: what is installed, or whether that is right; `official-trainer doctor` tells.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform

_DISTRIBUTIONS = {"tensorflow": "tensorflow", "keras": "tf-keras", "official_trainer": "official-trainer"}


def versions() -> dict[str, str]:
    """Returns name → version of Python, TensorFlow, Keras and this package."""
    return {"python": platform.python_version()} | {key: _version(name) for key, name in _DISTRIBUTIONS.items()}


@functools.cache  # every checkpoint asks, and looking takes tens of milliseconds while the disk is busy
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree, or a build such as tensorflow-cpu
        return "unknown"
