"""A whole program in one file: Keras's own, with the rewards beside what Keras writes.

Owns: writing and reading it. Does not own: checkpoints (`checkpoint.py`), or what rewards mean (`rewards.py`).
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
from official_trainer.program import checkpoint
from official_trainer.program.data import ArgumentError
from official_trainer.program.rewarded import rewards_of
from official_trainer.tasks import keras as kerases

_REWARDS = "rewards.json"
"""Inside the `.keras` file, which is a ZIP archive; Keras reads its own files by name, and ignores others."""


def config_of_rewards(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of `compile` about rewards as JSON takes them; none without rewards.

    Raises:
      ArgumentError: a reward is not registered, so that the config could not be read.
    """
    if (rewards := rewards_of(model)) is None:
        return {}
    of_rewards = rewards.arguments
    serialized = {name: keras.saving.serialize_keras_object(value) for name, value in of_rewards.items()}
    try:
        keras.saving.deserialize_keras_object(serialized.get("reward"))
    except (TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(
            f"reward={of_rewards['reward']!r} cannot be read from a config again; give each function of yours the "
            "decorator @keras.saving.register_keras_serializable()"
        ) from error
    return serialized


def save(model: keras.Model, path: str, *, overwrite: bool) -> None:
    """Writes a compiled model and its rewards; see `Program.save`."""
    _check_ending("save", path)
    of_rewards = config_of_rewards(model)
    model.save(path, overwrite=overwrite)
    if of_rewards:
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(_REWARDS, json.dumps(of_rewards))


def _check_ending(method: str, path: str) -> None:
    if not path.endswith(".keras"):
        raise ArgumentError(
            f"{method}: filepath={path!r}; allowed: a path that ends with .keras. Keras's own save and load_model have "
            "other formats, without rewards, which may contain code that runs when they are read"
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
        return _keras_of(path).models.load_model(path, custom_objects=custom_objects, safe_mode=True)
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


def read_rewards(model: keras.Model, path: str, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns the rewards of a file, for its model; None if it has none, or only those of a `compute_reward`."""
    if not zipfile.is_zipfile(path) or kerases.is_3(model):
        return None
    from official_trainer.program.rewards import Rewards, has_reward_layers

    with zipfile.ZipFile(path) as file:
        found = json.loads(file.read(_REWARDS)) if _REWARDS in file.namelist() else None
    if found is None or (found["reward"] is None and not has_reward_layers(model)):
        return None
    with keras.saving.custom_object_scope(custom_objects or {}):
        return Rewards(model, **{key: keras.saving.deserialize_keras_object(value) for key, value in found.items()})
