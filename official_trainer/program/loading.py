"""Reading checkpoints back into a program: all of it, or its variables alone.

Owns: which checkpoint a path means, and that either all that is asked for is read or nothing. Does not own: how values
are paired and assigned (`checkpoints/restore.py`), or what is in a checkpoint (`checkpoint.py`, `trainer.py`).
"""

from __future__ import annotations

import os

from official_trainer import files
from official_trainer.checkpoints import manifest, named, restore
from official_trainer.checkpoints.directory import CheckpointDirectory
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.lazy import keras, tf
from official_trainer.program.checkpoint import split
from official_trainer.program.data import ArgumentError
from official_trainer.tasks.optimization import build_slots


def read_weights(model: keras.Model, filepath: str | os.PathLike[str]) -> None:
    """Gives a model the variables of a checkpoint; see `find`.

    Raises:
      ArgumentError: the model has no variables yet.
      CheckpointError: there is no whole checkpoint, or it is of another model. Nothing was assigned.
    """
    _check_built(model)
    restore.read_items(find(filepath), {"model": model})


def read_program(model: keras.Model, filepath: str | os.PathLike[str]) -> int:
    """Gives a compiled model and its optimizer the variables of a checkpoint; returns its global step.

    Raises:
      ArgumentError: the model has no variables yet.
      CheckpointError: there is no whole checkpoint, it is of another model or has no optimizer. Nothing was assigned.
    """
    _check_built(model)
    prefix = find(filepath)
    if not any(key.startswith("optimizer/") for key in tf.train.load_checkpoint(prefix).get_variable_to_shape_map()):
        raise CheckpointError(f"{prefix} holds no optimizer: only variables were saved; use load_weights()")
    build_slots(model.optimizer, model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    restore.read_items(prefix, {"global_step": step, "model": model, "optimizer": model.optimizer})
    return int(step.numpy())


def _check_built(model: keras.Model) -> None:
    if not model.built:
        raise ArgumentError(f"{model.name!r} has no variables yet; call it on a batch, or model.build(shape), before")


def find(filepath: str | os.PathLike[str]) -> str:
    """Returns the prefix of the checkpoint that a path means.

    Args:
      filepath: a checkpoint's folder, or a run directory, of which the newest is taken; a prefix such as `…/ckpt-100`;
        or the `filepath` of a `ProgramCheckpoint` with its placeholders, of which the newest is taken.

    Raises:
      CheckpointError: there is none that is whole.
    """
    path = str(os.fspath(filepath))
    if "{" in path:
        directory, name, _ = split(path)
        if (prefix := named.latest(directory, name)) is None:
            raise CheckpointError(f"{directory} holds no checkpoint with a name of the template {name!r}")
        return prefix
    directory, _, name = path.removesuffix(".index").rpartition("/")
    step = name.removeprefix("ckpt-")
    if name.startswith("ckpt-") and step.isdecimal() and not files.is_dir(path):
        found = CheckpointDirectory(directory or ".", read_only=True)
        if damage := found.manifest(int(step)).damage(found.path):
            raise CheckpointError(f"{path} is damaged: {damage}")
        return found.prefix(int(step))
    return _newest_in(path)


def _newest_in(directory: str) -> str:
    for step in reversed(manifest.committed_steps(directory)):
        if manifest.damage(directory, step) is None:
            return manifest.prefix(directory, step)
    inside = [name for name in files.list_dir(directory) if manifest.committed_steps(files.join(directory, name))]
    hint = f"; there are some in its folders: {', '.join(sorted(inside))}" if inside else ""
    raise CheckpointError(f"{directory} holds no whole checkpoint{hint}")
