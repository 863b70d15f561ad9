"""The checkpoints of evaluated models that a policy keeps, the best by a metric or the newest, across restarts.

Owns: their folders, and that each is an ordinary committed checkpoint whose manifest, with the results of its
evaluation, is its only record. A better one is committed before a worse one is deleted, so whenever this process dies,
the best are there and rank as before.
Does not own: names (`name_template.py`), which are kept (`retention.py`), when one is offered (`actions/checkpoint.py`,
`program/checkpoint.py`), the run's own best checkpoint (`best.py`, which keeps its set in one folder).

    checkpoints/00000300/ckpt-300.index  ckpt-300.data-…  ckpt-300.manifest.json

A name that two steps have in common is that of the better one, or else of the newer one, which takes the other's place
once it is committed. So a template may be one word, for a path that stays the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.directory import POINTER, REPLACEMENT, CheckpointDirectory, finish_replacement
from official_trainer.checkpoints.manifest import CheckpointError, RunFacts
from official_trainer.checkpoints.retention import Candidate, Retention
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.lazy import tf
from official_trainer.tracking.monitored import find_value, is_nan

_logger = logging.getLogger(__name__)

_MARK = ".named_checkpoint"
"""A file that marks a folder as made here, and holds the template of its name. A folder without it is never changed."""

_OURS = {POINTER, REPLACEMENT, _MARK}


class KeptCheckpoints:
    """The checkpoints of one set, for the one process that writes there.

    Attributes:
      directory: where they are; created by the first.
      policy: which of them are kept.
    """

    def __init__(
        self,
        directory: str,
        policy: Retention,
        *,
        template: str | None = None,
        is_shared: bool = False,
        run: RunFacts | None = None,
    ) -> None:
        """Reads what an earlier process has left; changes nothing.

        Args:
          directory: where they are.
          policy: which of them are kept.
          template: of the names of their folders, by which `latest` finds them; None if all lie in the directory.
          is_shared: whether the directory holds sets of other templates too, which are left alone.
          run: about the run, for the manifests.
        """
        self.directory, self.policy = str(directory), policy
        self._template, self._is_shared, self._run = template, is_shared, run
        self._candidates = self._read()

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The checkpoints that are kept, best or newest first; those without a value of the metric last."""
        return tuple(self.policy.kept(self._candidates))

    @property
    def best(self) -> tuple[str, int] | None:
        """The folder and the step of the best one, or of the newest where no metric decides."""
        first = next(iter(self.kept), None)
        if first is None or (self.policy.monitor and not has_value(first)):
            return None
        return self.folder(first.name), first.step

    def folder(self, name: str) -> str:
        """Returns the path of the folder of a checkpoint."""
        return self.directory if self._template is None else files.join(self.directory, name)

    def candidate(self, name: str, step: int, logs: Mapping[str, Any]) -> Candidate:
        """Returns what an evaluation offers for saving, with its results."""
        value = find_value(logs, self.policy.monitor, self.policy.direction) if self.policy.monitor else None
        return Candidate(name=name, step=step, value=value, logs=logs)

    def takes(self, new: Candidate) -> bool:
        """Whether the policy keeps `new`."""
        return self.policy.takes(new, self.kept)

    def save(self, new: Candidate, checkpoint: tf.train.Checkpoint) -> None:
        """Saves `new`, which the policy takes, with its results in the manifest; then deletes what is no longer kept.

        One that is there already, with the same value, is not written again: the evaluation was repeated.

        Raises:
          CheckpointError: the folder belongs to another set.
        """
        folder, before = self.folder(new.name), self._candidates
        if new not in before or new.value is None:
            if self._template is not None:
                self._prepare_folder(new, self._template)
            store = CheckpointStore(folder, checkpoint, max_to_keep=None, run=self._run)
            store.save(new.step, {"logs": dict(new.logs)}, overwrite=True)
            self._candidates = [one for one in before if one.step != new.step] + [new]
        self._delete_others({folder, *(self.folder(one.name) for one in before)})

    def tidy(self) -> None:
        """Finishes what a process that died had begun, and deletes what is not kept; only what was made here."""
        self._candidates = self._read()
        self._delete_others(self._folders())

    def _folders(self) -> list[str]:
        """Returns the folders that were made here; an empty one is a leftover where there are no other sets."""
        if self._template is None:
            return [self.directory]
        folders = [self.folder(name) for name in files.list_dir(self.directory)]
        return [folder for folder in folders if files.is_dir(folder) and self._is_ours(folder)]

    def _is_ours(self, folder: str) -> bool:
        template = _template_of(folder)
        if self._is_shared:
            return template == self._template
        return template is not None or all(name.startswith(_MARK) for name in files.list_dir(folder))

    def _read(self) -> list[Candidate]:
        """Returns what is there."""
        return [
            self.candidate(f"ckpt-{step}" if self._template is None else files.base_name(folder), step, logs)
            for folder in self._folders()
            for step, logs in _logs_by_step(folder).items()
        ]

    def _prepare_folder(self, new: Candidate, template: str) -> None:
        """Marks the folder for `new`."""
        folder = self.folder(new.name)
        before = _template_of(folder)
        if self._is_shared and before not in (None, template):
            raise CheckpointError(
                f"{folder} belongs to {before!r}, not to {template!r}; give one of them another directory"
            )
        files.make_dirs(folder)
        if before != template:
            files.write_text_atomically(files.join(folder, _MARK), template)

    def _needed(self) -> list[Candidate]:
        """Returns the checkpoints that stay."""
        return list(self.kept)

    def _delete_others(self, folders: Iterable[str]) -> None:
        needed = self._needed()
        for folder in folders:
            finish_replacement(folder)
            self._keep_only(folder, {one.step for one in needed if self.folder(one.name) == folder})
        self._candidates = needed

    def _keep_only(self, folder: str, steps: Collection[int]) -> None:
        """Deletes the other checkpoints of a folder; without steps all that is ours, and the folder if that was all."""
        directory = CheckpointDirectory(folder)
        for other in manifest.files_by_step(folder).keys() - steps:
            directory.remove_files(other)
        if steps:
            directory.tidy()
            return
        # The mark is removed last: with it, the next process continues here.
        for name in sorted(files.list_dir(folder), key=lambda name: name == _MARK):
            if name.partition(".tmp-")[0] in _OURS:
                files.remove(files.join(folder, name))
        if not files.list_dir(folder):
            files.remove(folder)


def has_value(candidate: Candidate) -> bool:
    """Whether a checkpoint has the metric that decides, and it is a number."""
    return candidate.value is not None and not is_nan(candidate.value)


def latest(directory: str, template: str) -> str | None:
    """Returns the prefix of the newest checkpoint of a template, by its step; None if there is none."""
    folders = [files.join(directory, name) for name in files.list_dir(directory)]
    steps_and_folders = [
        (step, folder)
        for folder in folders
        if files.is_dir(folder) and _template_of(folder) == template
        for step in _logs_by_step(folder)
    ]
    return manifest.prefix(*max(steps_and_folders)[::-1]) if steps_and_folders else None


def templates(directory: str) -> list[str]:
    """Returns the templates of the sets in a directory."""
    marks = (_template_of(files.join(directory, name)) for name in files.list_dir(directory))
    return sorted({template for template in marks if template})


def _template_of(folder: str) -> str | None:
    """Returns the template by which a folder was named; None if it was not made here."""
    mark = files.join(folder, _MARK)
    return files.read_text(mark) if files.exists(mark) else None


def _logs_by_step(folder: str) -> dict[int, Mapping[str, Any]]:
    """Returns step → results of the checkpoints that are whole, or are moving to their place."""
    replacements = files.join(folder, REPLACEMENT)
    moving = set(manifest.committed_steps(replacements))  # some of its files may be in their place already
    logs = {step: manifest.read(replacements, step).extra.get("logs", {}) for step in moving}
    for step in manifest.committed_steps(folder):
        if step in moving:
            continue
        if damage := manifest.damage(folder, step, checksums=False):
            _logger.warning("%s is damaged: %s; its record does not count", manifest.prefix(folder, step), damage)
        else:
            logs[step] = manifest.read(folder, step).extra.get("logs", {})
    return logs
