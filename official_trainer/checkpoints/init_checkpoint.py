"""Which checkpoint `task.init_checkpoint` means: what a user names, as TensorFlow takes it.

Owns: finding it by its prefix, by one of its files or by its directory, and the message about what is there instead.
Does not own: reading it (`restore.py`, or the Task's own `initialize`), which checkpoint of a run is restored
(`store.py`), or when one of this package is whole (`manifest.py`).

A directory of this package or of Model Garden's driver is known by its files; a checkpoint that is damaged is passed
over. A SavedModel holds its values as a checkpoint. In a directory of another tool, TensorFlow's pointer file says
which checkpoint is the newest, and without that file the number in its name. All values are read, and TensorFlow
compares their checksums.
"""

from __future__ import annotations

import logging
import re

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.lazy import tf
from official_trainer.shown import first_few

_logger = logging.getLogger(__name__)

FIELD = "task.init_checkpoint"
"""Where a config names it."""

_FILE_OF_CHECKPOINT = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_NAME_ONE = "Name a directory with checkpoints, or a checkpoint such as …/ckpt-100."
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


def find(path_or_dir: str, field: str = FIELD) -> str:
    """Returns the prefix of the checkpoint that a user names; of a directory, of its newest one that is whole.

    Args:
      path_or_dir: `runs/a/ckpt-100`, one of its files, or `runs/a`.
      field: of the config, for messages.

    Raises:
      CheckpointError: nothing is there, or nothing that is whole; the message says what there is.
      StorageError: the storage fails.
    """
    setting = f"{field}: {path_or_dir}"
    if not path_or_dir:  # from an `initialize` of the user's, which needs one
        raise CheckpointError(f"{field} is not set. {_NAME_ONE}")
    if problem := files.pattern_problem(path_or_dir):
        raise CheckpointError(f"{setting} {problem}.")
    try:
        return _find(path_or_dir.rstrip("/") or path_or_dir, setting)
    except tf.errors.OpError as error:  # of a file system
        if (fault := files.as_storage_error(error, path_or_dir)) is not None:
            raise fault from error
        raise CheckpointError(f"{setting} cannot be read: {files.reason_of(error)}") from error


def is_other_format(path: str) -> bool:
    """Whether a file or a directory is there that holds something, but no file of a checkpoint of TensorFlow."""
    if not files.is_dir(path):
        return files.exists(path) and not _FILE_OF_CHECKPOINT.search(path)
    names = files.list_dir(path)
    return bool(names) and not any(map(_FILE_OF_CHECKPOINT.search, names))


def _find(path: str, setting: str) -> str:
    prefix = _FILE_OF_CHECKPOINT.sub("", path)
    if files.exists(f"{prefix}.index"):
        _check_manifest(prefix, setting)
        return prefix
    if not files.exists(path):
        saved = [f"ckpt-{step}" for step in manifest.committed_steps(path.rpartition("/")[0] or ".")]
        beside = f" Saved there: {first_few(saved[::-1])}." if saved else ""
        raise CheckpointError(f"{setting} does not exist.{beside} {_NAME_ONE}")
    if not files.is_dir(path):
        what = "is not a checkpoint" if prefix == path else "belongs to a checkpoint whose index is missing"
        raise CheckpointError(f"{setting} {what}. Name a checkpoint of TensorFlow without suffix, such as …/ckpt-100.")
    if files.exists(files.join(path, "saved_model.pb")):
        values = files.join(path, "variables", "variables")
        damage = manifest.damage_of_values(values) if files.exists(f"{values}.index") else "variables.index is missing"
        if damage is not None:
            raise CheckpointError(f"{setting} is a SavedModel, and its values are damaged: {damage}.")
        return values
    if not manifest.committed_steps(path):
        return _newest_of_another_tool(path, setting)
    newest, damaged = manifest.newest_whole(path)
    for step, damage in damaged.items():
        _logger.warning("%s: ckpt-%d is damaged: %s; using an older one", path, step, damage)
    if newest is None:
        raise CheckpointError(f"{setting} holds checkpoints, but none that is whole.")
    return manifest.find(path, newest)


def _newest_of_another_tool(directory: str, setting: str) -> str:
    """Returns the prefix of the checkpoint that the pointer file names, or else of the one with the highest number."""
    names = files.list_dir(directory)
    saved_names = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    if not saved_names:
        instead = f": it holds {first_few(names)}" if names else ": it is empty"
        raise CheckpointError(f"{setting} holds no checkpoint{instead}.")
    newest = tf.train.latest_checkpoint(directory)  # None where there is no pointer, or what it names is gone
    if newest is None:
        if len({_LAST_NUMBER.sub("", name) for name in saved_names}) > 1:
            raise CheckpointError(f"{setting} holds several checkpoints; name one of them: {', '.join(saved_names)}.")
        numbered = max(saved_names, key=lambda name: int((_LAST_NUMBER.search(name) or ["0"])[0]))
        newest = files.join(directory, numbered)
    if damage := manifest.damage_of_values(newest):
        others = ", ".join(name for name in saved_names if name != files.base_name(newest))
        fix = f"; name another one: {others}" if others else ""
        raise CheckpointError(f"{setting}: its newest checkpoint {files.base_name(newest)} is damaged: {damage}{fix}.")
    return newest


def _check_manifest(prefix: str, setting: str) -> None:
    """Refuses a damaged checkpoint of ours; those of other tools have no manifest to compare with."""
    directory, _, name = prefix.rpartition("/")
    step = name.removeprefix("ckpt-")
    if not step.isdecimal() or not files.exists(f"{prefix}.manifest.json"):
        return
    if damage := manifest.damage(directory or ".", int(step)):
        raise CheckpointError(f"{setting} is damaged: {damage}.")
