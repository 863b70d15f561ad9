"""Which checkpoint `task.init_checkpoint` means: what a user names, as TensorFlow takes it.

Owns: finding it by its prefix, by one of its files or by its directory, and the message about what is there instead.
Does not own: reading it (`restore.py`, or the Task's own `initialize`), which checkpoint of a run is restored
(`store.py`), or when one of this package is whole (`manifest.py`).

A directory of this package or of Model Garden's driver is known by its files. A SavedModel holds its values as a
checkpoint. In one of another tool, TensorFlow's
pointer file says which checkpoint is the newest, and without that file the number in its name. In each, a checkpoint
that is damaged is passed over: its files are all read, and TensorFlow compares their checksums.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.lazy import tf
from official_trainer.shown import first_few

_logger = logging.getLogger(__name__)

FIELD = "task.init_checkpoint"
"""Where a config names it."""

_FILE_OF_CHECKPOINT = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
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
        raise CheckpointError(
            f"{setting} does not exist. Name a directory with checkpoints, or a checkpoint such as …/ckpt-100."
        )
    if not files.is_dir(path):
        what = "is not a checkpoint" if prefix == path else "belongs to a checkpoint whose index is missing"
        raise CheckpointError(f"{setting} {what}. Name a checkpoint of TensorFlow without suffix, such as …/ckpt-100.")
    if files.exists(files.join(path, "saved_model.pb")):
        values = files.join(path, "variables", "variables")
        damage = manifest.damage_of_values(values) if files.exists(f"{values}.index") else "variables.index is missing"
        if damage is not None:
            raise CheckpointError(f"{setting} is a SavedModel, and its values are damaged: {damage}.")
        return values
    if manifest.committed_steps(path):
        newest, damaged = manifest.newest_whole(path)
        for step, damage in damaged.items():
            _logger.warning("%s: ckpt-%d is damaged: %s; using an older one", path, step, damage)
        if newest is not None:
            return manifest.find(path, newest)
    else:
        for candidate in _newest_first(path, setting):
            if (damage := manifest.damage_of_values(candidate)) is None:
                return candidate
            _logger.warning("%s is damaged: %s; using an older one", candidate, damage)
    raise CheckpointError(f"{setting} holds checkpoints, but none that is whole.")


def _newest_first(directory: str, setting: str) -> Iterator[str]:
    """Yields the prefixes of the checkpoints that another tool has left in a directory."""
    names = files.list_dir(directory)
    saved_names = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    if not saved_names:
        instead = f": it holds {first_few(names)}" if names else ": it is empty"
        raise CheckpointError(f"{setting} holds no checkpoint{instead}.")
    pointed = tf.train.latest_checkpoint(directory)  # None where there is no pointer, or what it names is gone
    newest = "" if pointed is None else files.base_name(pointed)
    stems = {_LAST_NUMBER.sub("", name) for name in ([newest] if newest else saved_names)}
    if len(stems) > 1:
        raise CheckpointError(f"{setting} holds several checkpoints; name one of them: {', '.join(saved_names)}.")
    if pointed is not None:
        yield pointed
    alike = [name for name in saved_names if _LAST_NUMBER.sub("", name) in stems]
    for name in sorted(alike, key=_number, reverse=True):
        if not newest or _number(name) < _number(newest):
            yield files.join(directory, name)


def _number(name: str) -> int:
    match = _LAST_NUMBER.search(name)
    return -1 if match is None else int(match[0])


def _check_manifest(prefix: str, setting: str) -> None:
    """Refuses a damaged checkpoint of ours; those of other tools have no manifest to compare with."""
    directory, _, name = prefix.rpartition("/")
    step = name.removeprefix("ckpt-")
    if not step.isdecimal() or not files.exists(f"{prefix}.manifest.json"):
        return
    if damage := manifest.damage(directory or ".", int(step)):
        raise CheckpointError(f"{setting} is damaged: {damage}.")
