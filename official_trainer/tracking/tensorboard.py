"""TensorBoard event files: `train/`, `validation/`, and sub-folders for nested names.

Owns: which folder and tag a metric goes to, and that points of an abandoned stretch of a run disappear after a rewind,
from the files and from a TensorBoard that is watching.
Does not own: summaries that a task writes itself with `tf.summary`; those in the same folders are rewound too.

Nested names become sub-folders, as orbit does it: `dev/accuracy` of the split `validation` is the tag `accuracy` in
`validation/dev`, so that TensorBoard draws the same metric of several sets in one chart.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer import files
from official_trainer.lazy import load
from official_trainer.tracking import Media, Text, Tracker


class TensorBoardTracker(Tracker):
    """Writes scalars and text for TensorBoard.

    Args:
      directory: the run's directory.
      folders: split → its folder below `directory`; a split that is not named has a folder of its own name.
      clock: tells the time in Unix seconds.
    """

    def __init__(
        self, directory: str, *, folders: Mapping[str, str] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = str(directory)
        self._folders = {"train": "train", "validation": "validation", "time": "time", **(folders or {})}
        self._clock = clock
        self._writers: dict[str, Any] = {}
        self._there: set[tuple[str, str, int]] = set()  # (folder, tag, step) of points that are not written again

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        scalar = load("tensorboard.plugins.scalar.summary_v2")
        written = set()
        for name, value in values.items():
            folder, _, tag = name.rpartition("/")
            path = "/".join(part for part in (self._folders.get(split, split), folder) if part)
            if (path, tag, step) in self._there:
                continue
            self._write(path, step, scalar.scalar_pb(tag, value))
            written.add(path)
        for path in written:
            self._writers[path].flush()

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        for name, thing in media.items():
            if isinstance(thing, Text):
                self.text(name, thing.markdown, step)

    def text(self, name: str, markdown: str, step: int = 0) -> None:
        """Shows `markdown` under the tag `name` in TensorBoard's text tab, among those of `train`.

        A restart that says the same again adds nothing.
        """
        text = load("tensorboard.plugins.text.summary_v2")
        path = self._folders["train"]
        summary = text.text_pb(name, markdown)
        if self._holds(path, step, summary):
            return
        self._write(path, step, summary)
        self._writers[path].flush()

    def resume(self, split: str, step: int) -> None:
        """Has `log` leave out the points of `split` at `step` that are there, from a process that died after them.

        For writers that share the files with a live process, which a rewind would pull from under it.
        """
        events = load("tensorboard.compat.proto.event_pb2")
        for path, names in self._below(self._folders.get(split, split)):
            for name in names:
                for _, payload in _records(files.read_bytes(files.join(self.directory, *path.split("/"), name))):
                    event = events.Event.FromString(payload)
                    if event.step == step:
                        self._there.update((path, value.tag, step) for value in event.summary.value)

    def rewind(self, step: int) -> None:
        """Drops the points after `step` in every folder that has any."""
        events = load("tensorboard.compat.proto.event_pb2")
        restart = events.SessionLog(status=events.SessionLog.START)
        self.close()  # files change, so new points go to new ones
        for path, names in self._event_files():
            for name in names:
                if ".tmp-" in name:  # a rewind that died
                    files.remove(files.join(self.directory, *path.split("/"), name))
                    continue
                _cut(files.join(self.directory, *path.split("/"), name), step)
            # For a TensorBoard that has read them already. It takes the first start it sees for the beginning of the
            # run, so there are two.
            for _ in range(2):
                event = events.Event(wall_time=self._clock(), step=step + 1, session_log=restart)
                self._writer(path).add_event(event)
            self._writer(path).flush()

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, path: str, step: int, summary: Any) -> None:
        events = load("tensorboard.compat.proto.event_pb2")
        self._writer(path).add_event(events.Event(wall_time=self._clock(), step=step, summary=summary))

    def _writer(self, path: str) -> Any:
        if path not in self._writers:
            module = load("tensorboard.summary.writer.event_file_writer")
            self._writers[path] = module.EventFileWriter(files.join(self.directory, *path.split("/")))
        return self._writers[path]

    def _holds(self, path: str, step: int, summary: Any) -> bool:
        events = load("tensorboard.compat.proto.event_pb2")
        for folder, names in self._below(path):
            for name in names if folder == path else ():
                content = files.read_bytes(files.join(self.directory, *path.split("/"), name))
                found = (events.Event.FromString(payload) for _, payload in _records(content))
                if any(event.step == step and event.summary == summary for event in found):
                    return True
        return False

    def _event_files(self) -> list[tuple[str, list[str]]]:
        """Returns folder and names for each folder with event files."""
        return [entry for folder in dict.fromkeys(self._folders.values()) for entry in self._below(folder)]

    def _below(self, path: str) -> Iterator[tuple[str, list[str]]]:
        directory = files.join(self.directory, *path.split("/"))
        names = files.list_dir(directory)
        if events := [name for name in names if ".tfevents." in name]:
            yield path, events
        for name in names:
            if name not in events and files.is_dir(files.join(directory, name)):
                yield from self._below(f"{path}/{name}")


def _cut(path: str, step: int) -> None:
    """Removes the summaries after `step` from an event file; the whole file, if nothing is left that says anything.

    Each start begins new files. Without that, a run that is killed again and again would fill its folders with them.
    """
    events = load("tensorboard.compat.proto.event_pb2")
    content = files.read_bytes(path)
    kept, dropped, says = [], False, False
    for record, payload in _records(content):
        event = events.Event.FromString(payload)
        if event.step > step and event.HasField("summary"):
            dropped = True
        else:
            kept.append(record)
            says = says or event.WhichOneof("what") not in (None, "file_version", "session_log")
    if not says:
        files.remove(path)
    elif dropped:
        files.write_bytes_atomically(path, b"".join(kept))


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields each whole record (length, its checksum, payload, its checksum) of a TFRecord file, and its payload."""
    start = 0
    while len(content) >= start + 12:
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + 12 + length + 4
        if end > len(content):
            return
        yield content[start:end], content[start + 12 : end - 4]
        start = end
