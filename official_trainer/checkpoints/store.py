"""CheckpointStore: saves values to a directory of checkpoints, and restores them.

Owns: the order of a save, saving beside training, which checkpoint is restored, and errors of the storage.
Does not own: what is saved (`engine/checkpoint_state.py`), at which step (`engine/loop.py`); which checkpoints
exist (`directory.py`); which of them are kept (`retention.py`); reading values, and refusing those of another model
(`restore.py`).

Values are taken when `save` is called. An asynchronous store has TensorFlow write them in a thread of its own, one save
at a time; a save counts, and is reported, only once it is committed.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import garden, manifest
from official_trainer.checkpoints.directory import REPLACEMENT, CheckpointDirectory, finish_replacement
from official_trainer.checkpoints.manifest import RunFacts
from official_trainer.checkpoints.matching import RestoreReport
from official_trainer.checkpoints.restore import read_exactly
from official_trainer.checkpoints.retention import Retention
from official_trainer.lazy import load, tf
from official_trainer.threads import WorkerThread, has_ended

_logger = logging.getLogger(__name__)


class SaveError(files.StorageError):
    """A checkpoint could not be written; those that were there before are as they were."""


class NoStore:
    """The store of a run without a directory: it has no checkpoint to restore, and saves none."""

    def restore(self) -> None:
        """Does nothing, and returns None where a step or a report is asked for."""

    latest_step = wait = close = restore

    def save(self, step: int, extra: Any) -> None:
        """Does nothing."""

    def steps(self) -> Sequence[int]:
        """Returns no steps."""
        return ()

    poll = steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """How the store of a run differs from one that only saves and restores.

    Attributes:
      keep_every_steps: checkpoints at multiples of it are kept for ever.
      in_use: called before retention deletes: returns those of the given steps that are still needed.
      read: restores from (prefix, step); in a run of several processes it makes all of them restore. None for
        `read_exactly`.
      is_asynchronous: whether `save` returns once it has taken the values, while a thread writes them. Call `poll` now
        and then, and `close` at the end.
    """

    keep_every_steps: int | None = None
    in_use: Callable[[Collection[int]], Collection[int]] = lambda steps: ()
    read: Callable[[str, int], RestoreReport] | None = None
    is_asynchronous: bool = False


class CheckpointStore(CheckpointDirectory):
    """A directory of checkpoints that saves and restores the values of one `tf.train.Checkpoint`.

    Args:
      directory: local path or URL; created by the first save.
      checkpoint: what is saved and restored. Build the optimizer's variables before `restore`; otherwise it
        cannot compare them with the checkpoint.
      max_to_keep: newest checkpoints kept; None keeps all.
      run: about the run, written into each manifest; None for a store that belongs to none.
      options: what a run needs in addition.
    """

    def __init__(
        self,
        directory: str,
        checkpoint: tf.train.Checkpoint,
        *,
        max_to_keep: int | None,
        run: RunFacts | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        assert max_to_keep is None or max_to_keep >= 1, max_to_keep
        super().__init__(directory)
        self.checkpoint = checkpoint
        self._options = options or StoreOptions()
        self._retention = Retention(max_to_keep=max_to_keep, keep_every_n_steps=self._options.keep_every_steps)
        self._run = run or RunFacts()
        self._writer = WorkerThread("checkpoint-writer") if self._options.is_asynchronous else None
        if self._writer is not None:
            atexit.register(self._writer.finish)  # a process that ends with an error still finishes its save
        self._saving: futures.Future[Any] | None = None
        self._committed: list[int] = []
        self._has_directory = False

    def describe(self, **facts: Any) -> None:
        """Changes fields of the `RunFacts` that each manifest from now on records."""
        self._run = dataclasses.replace(self._run, **facts)

    def latest_step(self) -> int | None:
        """Returns the newest committed step."""
        return max(self.steps(), default=None)

    # Saving.

    def save(
        self,
        step: int,
        extra: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Saves the values of this moment as `step`, commits them, then applies retention.

        An asynchronous store takes the values now, and writes and commits them in its thread. If the earlier save still
        runs, `save` waits for it first.

        Args:
          step: global step.
          extra: JSON state for the manifest.
          overwrite: whether a checkpoint of this step that is already committed is replaced, once the new one is whole.

        Raises:
          SaveError: this checkpoint, or the one before, could not be written.
        """
        self.wait()
        with _faults_explained(self, step):
            if overwrite:
                finish_replacement(self.path)  # which a process that died has left
            is_committed = step not in self._damaged and manifest.is_committed(self.path, step)
            self.check_is_ours()
        if is_committed and not overwrite:
            return
        if is_committed:  # never without a checkpoint of this step while another one takes its place
            replacement = files.join(self.path, REPLACEMENT)
            CheckpointStore(replacement, self.checkpoint, max_to_keep=1, run=self._run).save(step, extra)
            with _faults_explained(self, step):
                finish_replacement(self.path)
                self.retain(newly_saved=(step,))
            return
        snapshot = Snapshot(self.checkpoint)
        write = functools.partial(self._write, step, snapshot, self._run, extra or {})
        if self._writer is None:
            write()
        else:
            self._saving = self._writer.submit(write)

    def poll(self) -> list[int]:
        """Returns the steps committed since the last call.

        Raises:
          SaveError: a save in the background has failed.
        """
        if self._saving is not None and self._saving.done():
            self.wait()
        committed, self._committed = self._committed, []
        return committed

    def wait(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
          SaveError: the save that was waited for failed.
        """
        saving = self._saving
        if saving is not None:
            has_ended(saving)
            self._saving = None
            saving.result()

    def close(self) -> None:
        """Finishes what is being written; see `wait`."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()
                atexit.unregister(self._writer.finish)

    def _write(self, step: int, snapshot: Snapshot, run: RunFacts, extra: Mapping[str, Any]) -> None:
        saving = files.join(self.path, manifest.saving_mark(step))
        with _faults_explained(self, step):
            if not self._has_directory:  # once: one that is gone later was moved, and is not created again
                files.make_dirs(self.path)
                self._has_directory = True
            files.write_text_atomically(saving, "", durable=False)
            self.remove_files(step, keep=(".saving",))
            snapshot.write(self.prefix(step))
            self.commit(step, run=run, extra=extra)
            self._committed.append(step)
            files.remove(saving)
            _logger.debug("saved checkpoint %s", self.prefix(step))
            self.retain(newly_saved=(step,))

    def retain(self, newly_saved: Collection[int] = ()) -> None:
        """Applies retention, and removes what dead saves left; one process at a time may call it."""
        committed = self.steps()
        kept = self._retention.kept_steps(committed, newly_saved)
        if given_up := sorted({*committed} - {*kept}):
            kept = self._retention.kept_steps(committed, {*newly_saved, *self._options.in_use(given_up)})
        self.tidy(kept, committed)

    # Restoring.

    def restore(self) -> RestoreReport | None:
        """Restores the newest whole checkpoint.

        Checkpoints that turn out to be damaged are passed over, with a warning, and the next older one is used.

        Returns:
          What was restored, or None if nothing was ever saved here.

        Raises:
          CheckpointError: there are checkpoints, but none that is whole; or the checkpoint does not match the program
            exactly. Nothing was assigned or deleted.
          OSError: the storage fails; the checkpoints may be whole.
        """
        self.wait()
        self.check_is_ours()
        if (step := self.newest_whole()) is None:
            self.retain()
            return None
        read = self._options.read or functools.partial(read_exactly, self.checkpoint)
        report = read(self.prefix(step), step)
        if garden.wrote(self.prefix(step)):
            _logger.warning(
                "%s was saved by Model Garden: step, weights, averages and optimizer continue. It does not say which "
                "examples were read, so reading continues where a run of this program would be at step %d.",
                *(self.prefix(step), step),
            )
        else:
            _logger.info("restored %s", report)
        self.retain()
        return report


@contextlib.contextmanager
def _faults_explained(directory: CheckpointDirectory, step: int) -> Iterator[None]:
    """Turns errors of the storage into a message, after removing what was written in vain."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        saved = False
        with contextlib.suppress(OSError, tf.errors.OpError):
            names = files.list_dir(directory.path)
            saved = manifest.name(step) in names
            if not saved and manifest.saving_mark(step) in names:  # the mark means that what is there is ours
                directory.remove_files(step)  # on a full disk they would make the next start fail
        if isinstance(error, files.PathKindError):
            raise
        if (denied := files.as_denied(error)) is not None:
            raise denied from error
        reason = files.reason_of(error)
        done = "was saved, but the cleaning up after it failed" if saved else "could not be saved"
        raise SaveError(f"{directory.prefix(step)} {done}: {reason}. {files.storage_fix(reason)}") from error


class Snapshot:
    """What a `tf.train.Checkpoint` holds at one moment, so that it can be written while training goes on.

    Values are read once. On a CPU nothing is copied then: TensorFlow's variables copy on write while an older value is
    held, so the step that changes a variable makes the copy. Values on other devices are copied to the host.

    The grouping of tensors by object is TensorFlow's own, through the calls that `Checkpoint.write` makes: there is no
    public way to take values and write them later.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        """Takes the values of `checkpoint`."""
        by_object, _, registered, _ = checkpoint._saver._gather_serialized_tensors()
        with tf.device("CPU:0"):
            host = tf.constant(0).device
        for owner, tensors in by_object.items():
            by_object[owner] = {key: _read_now(value, host) for key, value in tensors.items()}
        # `Checkpoint.write` would read the values again; only it and this know slices and registered savers.
        saving = load("tensorflow.python.checkpoint.functional_saver")
        self._saver = saving.MultiDeviceSaver(by_object, registered)

    def write(self, prefix: str) -> None:
        """Writes `<prefix>.index` and `<prefix>.data-…`, as `Checkpoint.write` does; any thread may call it."""
        tf.io.gfile.makedirs(prefix.rpartition("/")[0] or ".")
        with tf.device("CPU:0"):
            self._saver.save(tf.constant(prefix))


def _read_now(value: Any, host: str) -> Any:
    """Reads the values now, not when they are written; slice by slice for a partitioned variable.

    Args:
      value: a tensor, or TensorFlow's SaveSpec of one; or a mapping of slices to these.
      host: name of the device where they are wanted.
    """
    if isinstance(value, dict):
        return {part: _read_now(inner, host) for part, inner in value.items()}
    if hasattr(type(value), "tensor"):  # a SaveSpec, whose property reads the variable, each time
        with tf.device(value.device):
            value = value.tensor
    if value.device == host:
        return value
    with tf.device("CPU:0"):
        return tf.identity(value)
