"""A whole program in one file of Keras's.

Owns: which files are written and read, and their errors. Does not own: checkpoints (`checkpoint.py`), or what is in a
file: rewards are metrics of the model, which Keras writes.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.lazy import keras, load
from official_trainer.program import checkpoint, keras_fit
from official_trainer.program.data import ArgumentError
from official_trainer.program.rewards import reward_class, rewards_of


def save(model: keras.Model, path: str, *, overwrite: bool) -> None:
    """Writes a compiled model and its rewards; see `Program.save`.

    Raises:
      ArgumentError: the path ends otherwise, or a reward is not registered, so that the file could not be read.
    """
    _check_ending("save", path)
    check_registered(model)
    model.save(path, overwrite=overwrite)


def check_registered(model: keras.Model) -> None:
    """Refuses a reward that could not be read again.

    Raises:
      ArgumentError: it is not registered.
    """
    module = keras_fit.of(model).MODULE
    for reward in rewards_of(model):
        try:
            module.saving.deserialize_keras_object(module.saving.serialize_keras_object(reward.function))
        except (TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"reward={reward.function!r} cannot be read again; give each function of yours the decorator "
                "@keras.saving.register_keras_serializable()"
            ) from error


def _check_ending(method: str, path: str) -> None:
    if not path.endswith(".keras"):
        raise ArgumentError(
            f"{method}: filepath={path!r}; allowed: a path that ends with .keras. Keras's own save and load_model have "
            "other formats, which may contain code that runs when they are read"
        )


def read_model(path: str, custom_objects: Mapping[str, Any] | None) -> keras.Model:
    """Returns the model of a file, compiled as it was; no code that is in the file runs.

    Raises:
      ArgumentError: the file cannot be read, or is of another format, which may contain code.
    """
    if files.is_dir(path) or "{" in path:
        with contextlib.suppress(CheckpointError):
            said = f"load_program: {checkpoint.find(path)} is a checkpoint, which has no layers"
            raise ArgumentError(f"{said}; build and compile the program as it was, and call load({path!r})")
    _check_ending("load_program", path)
    try:
        module = _keras_of(path)
        reward_class(module)  # so that it is registered
        return module.models.load_model(path, custom_objects=custom_objects, safe_mode=True)
    except (OSError, ValueError, TypeError) as error:
        said = str(error).partition("Exception encountered: ")[2] or str(error)  # of Keras 3, between two configs
        said = said.partition(" Full object config")[0].rstrip(".")
        raise ArgumentError(
            f"load_program: {path} cannot be read: {said}. Layers and functions of your own have to be "
            "registered, or named in custom_objects"
        ) from error


def _keras_of(path: str) -> Any:
    """Returns the Keras that has written a file."""
    version = ""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file, contextlib.suppress(KeyError):
            version = str(json.loads(file.read("metadata.json")).get("keras_version", ""))
    return load("keras") if version.startswith("3.") else keras
