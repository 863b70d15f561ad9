"""Reading a whole program from one file of Keras's.

Owns: which files are read, and their errors. Does not own: checkpoints (`checkpoint.py`), or writing a file, which is
Keras's: rewards are metrics of the model.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from official_trainer.lazy import keras, load
from official_trainer.program.data import ArgumentError
from official_trainer.program.rewards import reward_class


def read_model(path: str, custom_objects: Mapping[str, Any] | None) -> keras.Model:
    """Returns the model of a file, compiled as it was; no code that is in the file runs.

    Raises:
      ArgumentError: the file cannot be read, or is of another format, which may contain code.
    """
    if not path.endswith(".keras"):
        raise ArgumentError(
            f"load_program: filepath={path!r}; allowed: a path that ends with .keras. A checkpoint has no layers: make "
            "the program as it was, and call its load(). Other formats of Keras may contain code that runs"
        )
    try:
        module = _keras_of(path)
        reward_class(module)  # so that it is registered
        return module.models.load_model(path, custom_objects=custom_objects, safe_mode=True)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).partition("Exception encountered: ")[2] or str(error)  # of Keras 3, between two configs
        reason = reason.partition(" Full object config")[0].rstrip(".")
        raise ArgumentError(
            f"load_program: {path} cannot be read: {reason}. Layers and functions of your own have to be "
            "registered, or named in custom_objects"
        ) from error


def _keras_of(path: str) -> Any:
    """Returns the Keras that has written a file."""
    version = ""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file, contextlib.suppress(KeyError):
            version = str(json.loads(file.read("metadata.json")).get("keras_version", ""))
    return load("keras") if version.startswith("3.") else keras
