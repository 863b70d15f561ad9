"""Named checkpoints: one in each folder of a directory, the best or the newest of them kept across restarts.

Owns: which are kept, and that each is an ordinary committed checkpoint whose manifest is its only record. A better one
is committed before a worse one is deleted.
Does not own: names (`name_template.py`), when one is saved (`actions/checkpoint.py`), its format (`store.py`).

    checkpoints/00000300/ckpt-300.index  ckpt-300.data-…  ckpt-300.manifest.json

A name that two steps have in common is that of the better one, or else of the newer one, which takes the other's place
once it is committed. So a template may be one word, for a path that stays the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.best import REPLACEMENT, finish_replacement, read_records, save
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.name_template import NameTemplate
from official_trainer.checkpoints.store import POINTER, CheckpointStore
from official_trainer.lazy import tf
from official_trainer.tracking.monitored import Direction, find_metric, is_better
from official_trainer.triggers import Every

EXPORT = "saved_model"
"""Folder of a named checkpoint for a SavedModel of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedCheckpoint:
    """One of them.

    Attributes:
      name: of its folder.
      step: global step.
      value: of the monitored metric; None without one.
    """

    name: str
    step: int
    value: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Which are saved, and which of them stay. The same for the same ones, in whatever order they came.

    Attributes:
      monitor: name of the metric that decides; empty means that the newest are kept.
      direction: whether its higher (`max`) or lower (`min`) values are better.
      max_to_keep: how many are kept; None keeps all.
      save_best_only: whether only what is better than all before is saved.
      threshold: only better values than this are saved.
      keep_every_n_steps: those at multiples of it are kept beside them for ever; None for no such rule.
    """

    monitor: str = ""
    direction: Direction = "max"
    max_to_keep: int | None = None
    save_best_only: bool = False
    threshold: float | None = None
    keep_every_n_steps: int | None = None

    def kept(self, found: Collection[NamedCheckpoint]) -> list[NamedCheckpoint]:
        """Returns those that stay, best or newest first: one of each name and of each step."""
        kept: list[NamedCheckpoint] = []
        for candidate in sorted(found, key=self._rank):
            if all(candidate.name != other.name and candidate.step != other.step for other in kept):
                kept.append(candidate)
        if self.max_to_keep is None or self.keep_every_n_steps is None:
            return kept[: self.max_to_keep]
        forever = Every(self.keep_every_n_steps)
        first, rest = kept[: self.max_to_keep], kept[self.max_to_keep :]
        return first + [one for one in rest if forever.is_due_at(one.step)]

    def takes(self, new: NamedCheckpoint, found: Collection[NamedCheckpoint]) -> bool:
        """Whether `new` is saved and stays, given those that are there."""
        others = [other for other in found if other.step != new.step]
        if self.monitor:
            if new.value is None or not is_better(new.value, self.threshold, self.direction):
                return False
            values = [other.value for other in others if other.value is not None]
            if self.save_best_only and not all(is_better(new.value, value, self.direction) for value in values):
                return False
            others = [other for other in found if other != new]
        return new in self.kept([new, *others])

    def _rank(self, candidate: NamedCheckpoint) -> tuple[bool, float, int, str]:
        if not self.monitor:
            return False, 0.0, -candidate.step, candidate.name
        value = math.nan if candidate.value is None else candidate.value
        if math.isnan(value):
            return True, 0.0, candidate.step, candidate.name
        return False, value if self.direction == "min" else -value, candidate.step, candidate.name


class NamedCheckpoints:
    """Those of one directory, for the one process that writes there."""

    def __init__(self, directory: str, policy: Policy, *, owner: str = "") -> None:
        """Reads what an earlier process has left, and finishes what it had begun.

        Args:
          directory: where they are; created by the first.
          policy: which of them stay.
          owner: tells these from others in the same directory, none of which is looked at; empty if there are none.
        """
        self.directory = str(directory)
        self.policy = policy
        self._owner = owner
        self._found = self._read()
        self.tidy()

    @property
    def kept(self) -> tuple[NamedCheckpoint, ...]:
        """Those that are there, best or newest first."""
        return tuple(self.policy.kept(self._found))

    @property
    def best(self) -> tuple[str, int] | None:
        """The folder and the step of the best one, or of the newest."""
        return next(((self.folder(one.name), one.step) for one in self.kept), None)

    def folder(self, name: str) -> str:
        """Returns the path of a folder."""
        return files.join(self.directory, name)

    def candidate(self, name: str, step: int, logs: Mapping[str, float]) -> NamedCheckpoint:
        """Returns what an evaluation offers, saved or not."""
        value = find_metric(logs, self.policy.monitor) if self.policy.monitor else None
        return NamedCheckpoint(name=name, step=step, value=value)

    def save(self, new: NamedCheckpoint, checkpoint: tf.train.Checkpoint, logs: Mapping[str, float]) -> None:
        """Saves `new`, which the policy takes, with its results in the manifest; then deletes what gives way to it.

        One that is there already, with the same value, is not written again: the evaluation was repeated.

        Raises:
          CheckpointError: the folder is that of another owner's.
        """
        if new not in self._found or new.value is None:
            if any((one.name, one.step) == (new.name, new.step) for one in self._found):
                files.remove(files.join(self.folder(new.name), EXPORT))  # of other weights, but of this step
            record = {"metric": self.policy.monitor, "value": new.value, "logs": dict(logs)}
            _mark(self.folder(new.name), self._owner)
            save(self.folder(new.name), checkpoint, new.step, record, metadata={})
            self._found = [one for one in self._found if one.step != new.step] + [new]
        self.tidy()

    def tidy(self) -> None:
        """Deletes what does not stay, and what processes left that died; of what is in the directory, only our own."""
        kept = {one.name: one.step for one in self.kept}
        for name in files.list_dir(self.directory):
            folder = self.folder(name)
            if files.is_dir(folder) and _is_ours(folder, self._owner):
                _keep_only(folder, kept.get(name))
        self._found = list(self.kept)

    def _read(self) -> list[NamedCheckpoint]:
        found = []
        for name in files.list_dir(self.directory):
            if not files.is_dir(self.folder(name)) or not _is_ours(self.folder(name), self._owner):
                continue
            finish_replacement(self.folder(name))
            for step, record in read_records(self.folder(name)).items():
                found.append(self.candidate(name, step, record.get("logs", {})))
        return found


def latest(directory: str, template: str | None = None) -> str | None:
    """Returns the prefix of the newest named checkpoint, by the step in its manifest; None if there is none.

    Args:
      directory: of the `checkpoint` action.
      template: only names that this may have given; None means all.
    """
    matches = NameTemplate(template).matches if template is not None else lambda name: True
    found = [
        (step, files.join(directory, name))
        for name in files.list_dir(directory)
        if files.is_dir(files.join(directory, name)) and matches(name)
        for step in read_records(files.join(directory, name))
    ]
    if not found:
        return None
    step, folder = max(found)
    return manifest.prefix(folder, step)


_MARK = ".named_checkpoint"
"""A file that says that a folder was made here, and for whom. What has none is never touched, whatever it holds."""

_OWN = {POINTER, REPLACEMENT, EXPORT, f"{EXPORT}.writing", _MARK}


def _mark(folder: str, owner: str) -> None:
    mark = files.join(folder, _MARK)
    files.make_dirs(folder)
    if not files.exists(mark):
        files.write_text_atomically(mark, owner)
    elif (found := files.read_text(mark)) != owner:
        raise CheckpointError(f"{folder} belongs to {found!r}, not to {owner!r}; give one of them another directory")


def _is_ours(folder: str, owner: str) -> bool:
    """Whether this made a folder; one without anything is what is left of that, where nobody else makes any."""
    mark = files.join(folder, _MARK)
    if files.exists(mark):
        return files.read_text(mark) == owner
    return not owner and all(name.startswith(_MARK) for name in files.list_dir(folder))


def _keep_only(folder: str, step: int | None) -> None:
    """Deletes all checkpoints of a folder but one; without one, everything of ours, and the folder if that was all."""
    store = CheckpointStore(folder, tf.train.Checkpoint(), max_to_keep=None)
    for other in manifest.parts(folder).keys() - {step}:
        store.delete(other)
    if step is not None:
        store.tidy()
        return
    for name in sorted(
        files.list_dir(folder), key=lambda name: name == _MARK
    ):  # the mark last: it says that this goes on
        if name.partition(".tmp-")[0] in _OWN:
            files.remove(files.join(folder, name))
    if not files.list_dir(folder):
        files.remove(folder)
