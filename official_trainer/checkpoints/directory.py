"""The checkpoints that a directory holds: found, verified, committed, passed over when they are damaged, deleted.

Owns: when a checkpoint counts (its manifest is there and true), what is deleted and in which order.
Does not own: saving and restoring values (`store.py`), which checkpoints are kept (`retention.py`), the manifest's
format (`manifest.py`), knowing those of Model Garden (`garden.py`).

A save writes `ckpt-N.saving`, TensorFlow's files, then `ckpt-N.manifest.json`, which commits. Deleting removes the
manifest first. So a process may die anywhere, on file systems without rename too, and what is left can be recognized:
manifest and matching files, whole; `.saving` without a manifest, a save that died; anything else, damage. What is
damaged stays where it is, until a checkpoint of its step is saved or it is older than all that are kept. TensorFlow's
`checkpoint` pointer file is written for other tools, and never read. What Model Garden's driver saved is not deleted,
whole or not, until a checkpoint of the same step is saved.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import garden, manifest
from official_trainer.checkpoints.manifest import CheckpointError, Manifest, RunFacts, committed_steps
from official_trainer.tracking.record import versions

_logger = logging.getLogger(__name__)

POINTER = "checkpoint"
REPLACEMENT = "replacement"
"""Folder for a checkpoint of a step that has one already, until it takes that one's place."""


class CheckpointDirectory:
    """The checkpoints of one directory, one per global step.

    Args:
      path: local path or URL; may not exist yet.
    """

    def __init__(self, path: str) -> None:
        self.path = str(path)
        self._damaged: set[int] = set()  # the steps that this process has passed over
        self._is_ours = False

    def steps(self) -> tuple[int, ...]:
        """Returns the committed steps, rising; without damaged ones that were passed over."""
        return tuple(step for step in committed_steps(self.path) if step not in self._damaged)

    def prefix(self, step: int) -> str:
        """Returns the path of `step` as TensorFlow takes it, without suffix."""
        return manifest.prefix(self.path, step)

    def manifest(self, step: int) -> Manifest:
        """Returns the manifest of a committed step."""
        return manifest.read(self.path, step)

    def check_is_ours(self) -> None:
        """Refuses a directory in which another tool keeps its checkpoints: ours would be lost among them.

        Raises:
          CheckpointError: another tool's checkpoints are there, and none of ours.
        """
        if self._is_ours:
            return
        ours = any(manifest.state(part_of) != "unmarked" for part_of in manifest.files_by_step(self.path).values())
        foreign = [name.removesuffix(".index") for name in files.list_dir(self.path) if name.endswith(".index")]
        if foreign and not ours and not any(garden.wrote(files.join(self.path, name)) for name in foreign):
            raise CheckpointError(
                f"{self.path} holds TensorFlow checkpoints without manifests: {', '.join(foreign)}. Another tool wrote "
                "them, or their manifests were deleted, so it is unknown whether they are whole. To start from their "
                f"weights, set task.init_checkpoint={self.path} and another --model_dir; to start from fresh weights, "
                "set another --model_dir."
            )
        self._is_ours = True

    def newest_whole(self) -> int | None:
        """Returns the newest whole step, and passes over newer ones, which are damaged; None if there is nothing.

        Raises:
          CheckpointError: there are checkpoints, but none of them is whole.
        """
        step, damaged = manifest.newest_whole(self.path)
        if step is not None:
            self._damaged = {*damaged}
            for passed, reason in damaged.items():
                _logger.warning("%s is damaged: %s; an older checkpoint is used", self.prefix(passed), reason)
        elif damaged:
            raise CheckpointError(
                "\n".join(
                    [
                        f"{self.path} holds checkpoints, but none that is whole:",
                        *(f"  ckpt-{step}: {reason}" for step, reason in damaged.items()),
                        "The run does not start from step 0, because that would hide the damage. Put a good copy of",
                        "these files back, or set another --model_dir, or delete these files to start from step 0.",
                    ]
                )
            )
        return step

    def commit(self, step: int, *, run: RunFacts, extra: Mapping[str, Any]) -> None:
        """Makes the files of `step`, which are whole, a checkpoint, by writing its manifest."""
        part_of = manifest.files_by_step(self.path)[step]
        names = [name for name, part in part_of.items() if part.startswith((".index", ".data"))]
        committed = Manifest(
            step=step,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            files=manifest.describe(self.path, names),
            versions=versions(),
            run=run,
            extra=dict(extra),
        )
        manifest.write(self.path, committed)
        self._damaged.discard(step)

    def delete(self, step: int) -> None:
        """Deletes the checkpoint of `step`; one that is gone already is fine."""
        self.remove_files(step)
        self._write_pointer(self.steps())

    def remove_files(self, step: int, keep: tuple[str, ...] = ()) -> None:
        """Removes the files of `step` but those parts, in an order that leaves leftovers if this dies."""
        part_of = manifest.files_by_step(self.path).get(step, {})
        order = sorted(part_of, key=lambda name: (part_of[name] != ".manifest.json", part_of[name] == ".saving"))
        for name in order:
            if part_of[name] not in keep:
                files.remove(files.join(self.path, name))

    def tidy(self, kept: Collection[int] | None = None, committed: Collection[int] | None = None) -> None:
        """Deletes what dead saves left, and checkpoints that are not kept; only files of ours.

        Args:
          kept: the steps that are kept; None keeps all.
          committed: what `steps` has just returned, which reads every manifest; None calls it.
        """
        committed = set(self.steps() if committed is None else committed)
        gardens, wanted = manifest.gardens_steps(self.path), committed if kept is None else set(kept)
        rising = sorted(wanted)
        for step, part_of in manifest.files_by_step(self.path).items():
            if step in gardens:
                continue
            state = manifest.state(part_of)
            is_past = bool(rising) and (step < rising[0] or (step < rising[-1] and state == "unmarked"))
            if step in wanted:
                for name in (name for name, part in part_of.items() if part in (".saving", "_temp") or ".tmp-" in part):
                    files.remove(files.join(self.path, name))
            elif step in committed or state == "dead save" or is_past:  # a deletion died
                self.remove_files(step)
        files.remove_temporaries(self.path, POINTER)
        self._write_pointer([step for step in sorted(committed) if step in wanted or step in gardens])

    def _write_pointer(self, committed: Sequence[int]) -> None:
        if committed:  # an older pointer to nothing is read by TensorFlow's tools alone
            pointer = files.join(self.path, POINTER)
            names = [f"ckpt-{step}" for step in committed]
            files.write_text_atomically(pointer, pointer_text(names[-1], names), durable=False)


def finish_replacement(directory: str) -> None:
    """Moves a replacement to its place, also if an earlier process began to; removes one that is not whole."""
    replacement = files.join(directory, REPLACEMENT)
    for step in manifest.committed_steps(replacement):
        mark = manifest.name(step)
        files.remove(files.join(directory, mark))
        for name in sorted(manifest.files_by_step(replacement)[step], key=lambda name: name == mark):
            target = files.join(directory, name)
            files.remove(target)
            files.rename(files.join(replacement, name), target)
    files.remove(replacement)


def pointer_text(newest: str, names: Iterable[str]) -> str:
    """Returns the text of TensorFlow's pointer file."""
    lines = [f'model_checkpoint_path: "{newest}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
    return "\n".join(lines) + "\n"
