"""Named checkpoints: one in each folder of a directory, the best or the newest of them kept across restarts.

Owns: their folders, and that each is an ordinary committed checkpoint whose manifest is its only record. A better one
is committed before a worse one is deleted.
Does not own: names (`name_template.py`), which are kept (`retention.py`), when one is saved (`actions/checkpoint.py`).

    checkpoints/00000300/ckpt-300.index  ckpt-300.data-…  ckpt-300.manifest.json

A name that two steps have in common is that of the better one, or else of the newer one, which takes the other's place
once it is committed. So a template may be one word, for a path that stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.best import read_records
from official_trainer.checkpoints.directory import POINTER, REPLACEMENT, CheckpointDirectory, finish_replacement
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.name_template import NameTemplate
from official_trainer.checkpoints.retention import Candidate, Retention
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.lazy import tf
from official_trainer.lock import remove_abandoned
from official_trainer.tracking.monitored import find_value

EXPORT = "saved_model"
"""Folder of a named checkpoint for a SavedModel of it."""


class NamedCheckpoints:
    """The named checkpoints of one directory, for the one process that writes there."""

    def __init__(self, directory: str, policy: Retention, *, owner: str = "") -> None:
        """Reads what an earlier process has left, and finishes what it had begun.

        Args:
          directory: where they are; created by the first.
          policy: which of them are kept.
          owner: name that distinguishes these from others in the same directory, which are left alone; empty if there
            are no others.
        """
        self.directory = str(directory)
        self.policy = policy
        self._owner = owner
        self._found = self._read_candidates()
        self.tidy()

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The checkpoints that are there, best or newest first."""
        return tuple(self.policy.kept(self._found))

    @property
    def best(self) -> tuple[str, int] | None:
        """The folder and the step of the best one, or of the newest."""
        return next(((self.folder(one.name), one.step) for one in self.kept), None)

    def folder(self, name: str) -> str:
        """Returns the path of a folder."""
        return files.join(self.directory, name)

    def candidate(self, name: str, step: int, logs: Mapping[str, float]) -> Candidate:
        """Returns what an evaluation offers for saving."""
        value = find_value(logs, self.policy.monitor, self.policy.direction) if self.policy.monitor else None
        return Candidate(name=name, step=step, value=value)

    def save(self, new: Candidate, checkpoint: tf.train.Checkpoint, logs: Mapping[str, float]) -> None:
        """Saves `new`, which the policy takes, with its results in the manifest; then deletes what is no longer kept.

        One that is there already, with the same value, is not written again: the evaluation was repeated.

        Raises:
          CheckpointError: the folder belongs to another owner.
        """
        if new not in self._found or new.value is None:
            if any((one.name, one.step) == (new.name, new.step) for one in self._found):
                files.remove(files.join(self.folder(new.name), EXPORT))  # of other weights, but of this step
            record = {"metric": self.policy.monitor, "value": new.value, "logs": dict(logs)}
            _mark(self.folder(new.name), self._owner)
            store = CheckpointStore(self.folder(new.name), checkpoint, max_to_keep=None)
            store.save(new.step, record, overwrite=True)
            self._found = [one for one in self._found if one.step != new.step] + [new]
        self.tidy()

    def tidy(self) -> None:
        """Deletes what is not kept, and what dead processes left; only in folders that were made here."""
        kept = {one.name: one.step for one in self.kept}
        for name in files.list_dir(self.directory):
            folder = self.folder(name)
            if files.is_dir(folder) and _is_ours(folder, self._owner):
                _keep_only(folder, kept.get(name))
        self._found = list(self.kept)

    def _read_candidates(self) -> list[Candidate]:
        candidates = []
        for name in files.list_dir(self.directory):
            if not files.is_dir(self.folder(name)) or not _is_ours(self.folder(name), self._owner):
                continue
            finish_replacement(self.folder(name))
            for step, record in read_records(self.folder(name)).items():
                candidates.append(self.candidate(name, step, record.get("logs", {})))
        return candidates


def latest(directory: str, template: str | None = None) -> str | None:
    """Returns the prefix of the newest named checkpoint, by the step in its manifest; None if there is none.

    Args:
      directory: of the `checkpoint` action.
      template: only names that this template may have produced; None means all.
    """
    matches = NameTemplate(template).matches if template is not None else lambda name: True
    steps_and_folders = [
        (step, files.join(directory, name))
        for name in files.list_dir(directory)
        if files.is_dir(files.join(directory, name)) and matches(name)
        for step in read_records(files.join(directory, name))
    ]
    if not steps_and_folders:
        return None
    step, folder = max(steps_and_folders)
    return manifest.prefix(folder, step)


_MARK = ".named_checkpoint"
"""A file that marks a folder as made here, and holds the owner's name. A folder without it is never changed."""

_OWN = {POINTER, REPLACEMENT, EXPORT, _MARK}


def _mark(folder: str, owner: str) -> None:
    mark = files.join(folder, _MARK)
    files.make_dirs(folder)
    if not files.exists(mark):
        files.write_text_atomically(mark, owner)
    elif (holder := files.read_text(mark)) != owner:
        raise CheckpointError(f"{folder} belongs to {holder!r}, not to {owner!r}; give one of them another directory")


def _is_ours(folder: str, owner: str) -> bool:
    """Whether a folder was made here; an empty one is a leftover of ours where there are no other owners."""
    mark = files.join(folder, _MARK)
    if files.exists(mark):
        return files.read_text(mark) == owner
    return not owner and all(name.startswith(_MARK) for name in files.list_dir(folder))


def _keep_only(folder: str, step: int | None) -> None:
    """Deletes all checkpoints of a folder but one; without one, everything of ours, and the folder if that was all."""
    directory = CheckpointDirectory(folder)
    for other in manifest.parts(folder).keys() - {step}:
        directory.delete(other)
    if step is not None:
        directory.tidy()
        return
    remove_abandoned(folder, rf"{EXPORT}\.(writing|removing)(-.*)?")  # of `tasks/export.py`
    # The mark is removed last: with it, the next process continues here.
    for name in sorted(files.list_dir(folder), key=lambda name: name == _MARK):
        if name.partition(".tmp-")[0] in _OWN:
            files.remove(files.join(folder, name))
    if not files.list_dir(folder):
        files.remove(folder)
