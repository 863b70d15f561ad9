"""CheckpointStore: saves, finds, verifies, restores and retains the checkpoints of one directory.

Owns: when a checkpoint counts (its manifest is there and true), which one is restored, what is deleted.
Does not own: what is saved, and at which step (`engine/loop.py`); the manifest's format (`manifest.py`); reading
values, and refusing those of another model (`restore.py`).

Order is the whole trick. A save writes `ckpt-N.saving`, TensorFlow's files, then `ckpt-N.manifest.json`, which commits.
Deleting removes the manifest first. So a process may die anywhere, on file systems without rename too, and what is left
can be told apart: manifest and matching files, whole; `.saving` without a manifest, a save that died; anything else,
damage. TensorFlow's `checkpoint` pointer file is written for other tools and never read.

Values are taken when `save` is called. An asynchronous store writes them in a thread of its own, one save at a time; a
save counts, and is reported, only once it is committed.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.background import Background
from official_trainer.checkpoints.manifest import CheckpointError, Manifest, committed_steps
from official_trainer.checkpoints.matching import RestoreReport, saved_specs
from official_trainer.checkpoints.restore import read_into
from official_trainer.checkpoints.retention import Retention
from official_trainer.checkpoints.snapshot import Snapshot
from official_trainer.lazy import tf
from official_trainer.tracking.record import versions

_logger = logging.getLogger(__name__)

QUARANTINE = "quarantine"
POINTER = "checkpoint"
LACKS_KEY = "lacks"
"""Where a manifest's metadata holds patterns of variables that the tool which wrote the checkpoint does not have."""


class SaveError(files.StorageError):
    """A checkpoint could not be written; those that were there before are as they were."""


class CheckpointStore:
    """The checkpoints of one directory, one per global step.

    Args:
      directory: local path or URL; created by the first save.
      checkpoint: what is saved and restored. Optimizers should have created their variables before `restore`, or
        those cannot be checked.
      max_to_keep: newest checkpoints kept; None keeps all.
      keep_every_steps: checkpoints at multiples of it are kept for ever.
      metadata: about the run, written into each manifest.
      read_only: leaves the directory as it is, for evaluating what another process writes.

    Attributes:
      in_use: asked before retention deletes: returns those of the given steps that somebody else still needs.
      allow_mismatch: patterns of variables that `restore` lets differ; see `read_exactly`.
      read: reads the files of a prefix and step with this allowance; other processes may have to do the same.
    """

    def __init__(
        self,
        directory: str,
        checkpoint: tf.train.Checkpoint,
        *,
        max_to_keep: int | None,
        keep_every_steps: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        read_only: bool = False,
    ) -> None:
        self.directory = str(directory)
        self.checkpoint = checkpoint
        self.in_use: Callable[[Collection[int]], Collection[int]] = lambda steps: ()
        self._retention = Retention(newest=max_to_keep, every_steps=keep_every_steps)
        self._metadata = dict(metadata or {})
        self._read_only = read_only
        self._pinned: set[int] = set()
        self._unmovable: set[int] = set()
        self.allow_mismatch: Sequence[str] = ()
        self.read: Callable[[str, int, Sequence[str]], RestoreReport] = functools.partial(read_into, checkpoint)
        self._directory_is_ours = False
        self._background = Background("checkpoint-writer", asynchronous=False)
        self._committed: list[int] = []

    def write_in_background(self) -> None:
        """Has `save` return once it has taken the values, while a thread writes them.

        Call `poll` now and then, and `close` at the end.
        """
        self._background = Background("checkpoint-writer", asynchronous=True)

    # What is there.

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Adds to what each manifest says about the run from now on."""
        self._metadata = {**self._metadata, **metadata}

    def steps(self) -> tuple[int, ...]:
        """Returns the committed steps, rising; without damaged ones that could not be moved to quarantine."""
        return tuple(step for step in committed_steps(self.directory) if step not in self._unmovable)

    def latest_step(self) -> int | None:
        """Returns the newest committed step."""
        return max(self.steps(), default=None)

    def prefix(self, step: int) -> str:
        """Returns the path of `step` as TensorFlow wants it, without suffix."""
        return manifest.prefix(self.directory, step)

    def manifest(self, step: int) -> Manifest:
        """Returns the manifest of a committed step.

        Raises:
          CheckpointError: it is not committed; the message lists the steps that are.
        """
        if step not in self.steps():
            raise CheckpointError(_no_such_step(self.directory, step, self.steps()))
        return manifest.read(self.directory, step)

    # Saving.

    def save(
        self,
        step: int,
        extra: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        only_if: Callable[[], bool] = lambda: True,
    ) -> None:
        """Saves the values of this moment as `step`, commits them, then applies retention.

        An asynchronous store does all but the first in its own thread. It waits for the save before this one.

        Args:
          step: global step.
          extra: JSON state for the manifest.
          overwrite: whether a checkpoint of this step that is already committed is written again.
          only_if: asked once the values have been taken; nothing is saved if it says no.

        Raises:
          SaveError: this checkpoint, or the one before, could not be written.
        """
        assert not self._read_only, "a read-only store cannot save"
        self.wait()
        with self._faults_explained(step):
            committed = step in self.steps()
            if committed and not overwrite:
                return
            self._check_directory_is_ours()
        snapshot = Snapshot(self.checkpoint)
        if only_if():
            self._background.do(functools.partial(self._write, step, snapshot, extra or {}, replaces=committed))

    def poll(self) -> list[int]:
        """Returns the steps committed since the last call.

        Raises:
          SaveError: a save in the background has failed.
        """
        self._background.check()
        committed, self._committed = self._committed, []
        return committed

    def wait(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
          SaveError: the save that was waited for failed.
        """
        self._background.wait()

    def close(self) -> None:
        """Finishes what is being written; see `wait`."""
        self._background.close()

    def _write(self, step: int, snapshot: Snapshot, extra: Mapping[str, Any], *, replaces: bool) -> None:
        saving = files.join(self.directory, manifest.saving_mark(step))
        with self._faults_explained(step):
            files.make_dirs(self.directory)
            if not replaces:
                # A save that replaces a committed checkpoint is not marked: if it dies, that is worth stopping for.
                files.write_text_atomically(saving, "", durable=False)
            self._delete(step, keep=(".saving",))
            snapshot.write(self.prefix(step))
            commit(self.directory, step, metadata=self._metadata, extra=extra)
            self._committed.append(step)
            self._unmovable.discard(step)
            files.remove(saving)
            _logger.info("saved checkpoint %s", self.prefix(step))
            self.tidy(newly_saved=step)

    @contextlib.contextmanager
    def _faults_explained(self, step: int) -> Iterator[None]:
        """Turns errors of the storage into a message, after taking back what was written in vain."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            saved = False
            with contextlib.suppress(OSError, tf.errors.OpError):
                names = files.list_dir(self.directory)
                saved = manifest.name(step) in names
                if not saved and manifest.saving_mark(step) in names:  # the mark says that what is there is ours
                    self._delete(step)  # on a full disk these files would keep the next start from beginning
            reason = files.reason_of(error)
            done = "was saved, but not everything after it was done" if saved else "could not be saved"
            raise SaveError(f"{self.prefix(step)} {done}: {reason}. {files.storage_fix(reason)}") from error

    # Restoring.

    def restore(self, step: int | None = None, *, verify: bool = True) -> RestoreReport | None:
        """Restores the newest whole checkpoint, or the one of `step`.

        Checkpoints that turn out to be damaged are moved to `quarantine/` and the next older one is used.

        Args:
          step: committed step to restore; damage is then an error.
          verify: whether checksums are compared; existence and sizes always are.

        Returns:
          What was restored, or None if nothing was ever saved here.

        Raises:
          CheckpointError: there are checkpoints, but none that is whole; or `step` is not there; or the checkpoint does
            not match the program exactly. Nothing was assigned or deleted.
          OSError: the storage fails, which says nothing about the checkpoints.
        """
        self.wait()
        self._check_directory_is_ours()
        if step is None:
            step = self._newest_whole(verify=verify)
        elif damage := self.manifest(step).damage(self.directory, checksums=verify):
            raise CheckpointError(
                f"{self.prefix(step)} is damaged: {damage}. Saved steps: {_listed(self.steps())}. "
                "Restore another step, or none in particular to get the newest whole one."
            )
        if step is None:
            self.tidy()
            return None
        lacks = manifest.read(self.directory, step).metadata.get(LACKS_KEY, ())
        report = self.read(self.prefix(step), step, (*self.allow_mismatch, *lacks))
        _logger.info("restored %s", report)
        self.tidy()
        return report

    def _newest_whole(self, *, verify: bool) -> int | None:
        """Returns the newest whole step after quarantining newer ones that are not; None if there never was one."""
        damaged: dict[int, str] = {}
        for step, parts in sorted(manifest.parts(self.directory).items(), reverse=True):
            if manifest.is_dead_save(parts):
                continue
            damage = manifest.damage(self.directory, step, checksums=verify)
            if damage is None:
                for damaged_step, reason in damaged.items():
                    self._quarantine(damaged_step, reason)
                return step
            damaged[step] = damage
        if damaged or files.list_dir(files.join(self.directory, QUARANTINE)):
            raise CheckpointError(_nothing_whole(self.directory, damaged))
        return None

    def _check_directory_is_ours(self) -> None:
        """Refuses a directory in which another tool keeps its checkpoints: ours would be lost among them."""
        if self._directory_is_ours:
            return
        names = files.list_dir(self.directory)
        known = manifest.parts(self.directory)
        ours = any(part in (".manifest.json", ".saving") for parts in known.values() for part in parts.values())
        foreign = [name.removesuffix(".index") for name in names if name.endswith(".index")]
        if foreign and not ours and QUARANTINE not in names:
            raise CheckpointError(
                f"{self.directory} holds TensorFlow checkpoints without manifests: {_listed(foreign)}. Another tool "
                "wrote them, or their manifests were deleted, so it is unknown whether they are whole. To start from "
                f"their weights, set task.init_checkpoint={self.directory} and another --model_dir; to start from "
                "nothing, set another --model_dir."
            )
        self._directory_is_ours = True

    # Keeping and deleting.

    def pin(self, step: int) -> None:
        """Keeps `step` whatever `max_to_keep` says, until `unpin` or the end of the process."""
        self._pinned.add(step)

    def unpin(self, step: int) -> None:
        """Leaves `step` to retention again."""
        self._pinned.discard(step)

    def delete(self, step: int) -> None:
        """Deletes the checkpoint of `step`, pinned or not; one that is gone already is fine."""
        assert not self._read_only, "a read-only store cannot delete"
        self._delete(step)
        self._write_pointer()

    def tidy(self, newly_saved: int | None = None) -> None:
        """Deletes checkpoints that retention gives up and what dead saves left; only files named as ours."""
        if self._read_only:
            return
        committed = self.steps()
        kept = self._kept(committed, self._pinned if newly_saved is None else self._pinned | {newly_saved})
        for step, parts in manifest.parts(self.directory).items():
            if step in kept:
                self._remove(name for name, part in parts.items() if manifest.is_leftover(part))
            elif step in committed or manifest.is_dead_save(parts) or _is_past(step, parts, kept):
                self._delete(step)
        files.remove_temporaries(self.directory, POINTER)
        self._write_pointer()

    def _kept(self, committed: tuple[int, ...], protected: Collection[int]) -> tuple[int, ...]:
        kept = self._retention.kept(committed, protected)
        given_up = [step for step in committed if step not in kept]
        if not given_up:
            return kept
        in_use = set(self.in_use(given_up))
        return tuple(step for step in committed if step in kept or step in in_use)

    def _delete(self, step: int, keep: tuple[str, ...] = ()) -> None:
        parts = manifest.parts(self.directory).get(step, {})
        # Manifest first, mark last: whatever is left if this dies is known as leftovers.
        order = sorted(parts, key=lambda name: (parts[name] != ".manifest.json", parts[name] == ".saving"))
        self._remove(name for name in order if parts[name] not in keep)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            files.remove(files.join(self.directory, name))

    def _quarantine(self, step: int, reason: str) -> None:
        if self._read_only:
            _logger.warning("%s is damaged: %s; using an older checkpoint", self.prefix(step), reason)
            return
        target = files.join(self.directory, QUARANTINE)
        files.make_dirs(target)
        taken = set(files.list_dir(target))
        parts = manifest.parts(self.directory).get(step, {})
        for name in sorted(parts, key=lambda name: parts[name] != ".manifest.json"):  # without it, it does not count
            number = next(n for n in range(len(taken) + 1) if _numbered(name, n) not in taken)
            try:
                files.rename(files.join(self.directory, name), files.join(target, _numbered(name, number)))
            except (OSError, tf.errors.OpError) as error:
                _logger.warning("%s stays where it is: %s", files.join(self.directory, name), error)
                self._unmovable.add(step)
        _logger.warning("%s is damaged: %s; moved to %s, using an older checkpoint", self.prefix(step), reason, target)

    def _write_pointer(self) -> None:
        committed = self.steps()
        if not committed:
            return  # a pointer that is there names nothing any more; nobody but TensorFlow looks
        lines = [f'model_checkpoint_path: "ckpt-{committed[-1]}"']
        lines += [f'all_model_checkpoint_paths: "ckpt-{step}"' for step in committed]
        pointer = files.join(self.directory, POINTER)
        files.write_text_atomically(pointer, "\n".join(lines) + "\n", durable=False)


def commit(directory: str, step: int, *, metadata: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Makes the files of `step`, which are whole, a checkpoint, by writing its manifest."""
    parts = manifest.parts(directory)[step]
    names = [name for name, part in parts.items() if part.startswith((".index", ".data"))]
    specs = saved_specs(manifest.prefix(directory, step))
    committed = Manifest(
        step=step,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        files=manifest.describe(directory, names),
        variables={key: {"shape": list(spec.shape or ()), "dtype": spec.dtype} for key, spec in specs.items()},
        versions=versions(),
        metadata=metadata,
        extra=dict(extra),
    )
    manifest.write(directory, committed)


def _is_past(step: int, parts: Mapping[str, str], kept: tuple[int, ...]) -> bool:
    """Tells whether files that are no checkpoint are what a deletion left that died half-way."""
    return bool(kept) and (step < kept[0] or (step < kept[-1] and ".manifest.json" not in parts.values()))


def _numbered(name: str, number: int) -> str:
    return f"{name}.{number}" if number else name


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values)) or "none"


def _no_such_step(directory: str, step: int, saved: tuple[int, ...]) -> str:
    message = f"no checkpoint of step {step} in {directory}. Saved steps: {_listed(saved)}."
    return message + (f" Nearest: {min(saved, key=lambda s: abs(s - step))}." if saved else "")


def _nothing_whole(directory: str, damaged: Mapping[int, str]) -> str:
    lines = [f"{directory} holds checkpoints, but none that is whole:"]
    lines += [f"  ckpt-{step}: {reason}" for step, reason in damaged.items()]
    lines += [f"  {QUARANTINE}/{name}" for name in files.list_dir(files.join(directory, QUARANTINE))]
    lines.append("Starting again from step 0 would hide that. Put a good copy of these files back, or start anew with")
    lines.append("another --model_dir, or delete them to start from nothing here.")
    return "\n".join(lines)
