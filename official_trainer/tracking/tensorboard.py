"""TensorBoard event files: a folder for each split, which TensorBoard lists as the runs `DIR/train`, `DIR/validation`.

Owns: the folder and tag of a metric, the summary of each kind of media, that points after the step of a rewind
disappear, from the files and from a TensorBoard that shows them, and that a full disk costs points and not the run.
Does not own: summaries that a task writes itself with `tf.summary`; those in the run's folders are rewound too.

What training and evaluations both measure has one tag, so TensorBoard draws it in one chart: `training_loss` and
`validation_loss` are the tag `loss`, `dev/validation_loss` is `dev/loss`. Times are the tags `time/…` of training.
The config is in the folder of the evaluations, or of training in a run without any: the HParams tab lists a run with
the metrics in the folder of its config. The tab opens
with five fields before the metrics, so of a run it gets those that tell it from other runs of its experiment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_trainer import files
from official_trainer.config import TrackerConfig
from official_trainer.lazy import load
from official_trainer.nearest import nearest
from official_trainer.tracking import Histogram, Media, MetricError, Outcome, Place, Table, Text, Tracker

_logger = logging.getLogger(__name__)

_LOSSES = {"train": "training_loss", "validation": "validation_loss"}
"""Names of the loss in rows, which have the tag `loss`."""

_ALWAYS_LISTED = ("experiment", "task.train_data.global_batch_size")

_WIDTH_OF_INTEGERS = 20

_OTHER_RUN = "run.json"
"""A folder with this file belongs to another run, whose points must not be removed."""

_SECONDS = re.compile(r"\.tfevents\.(\d+)\.")
"""When an event file was begun, in its name: TensorBoard reads the files of a folder in the order of their names."""

_MARK_OF_PROFILE = ".profile-empty"
"""Suffix of a file without events by which TensorFlow's profiler shows TensorBoard that there is a profile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorBoardConfig(TrackerConfig):
    """TensorBoard's files. Every run writes them; this section is for other settings of them than these.

    Attributes:
      splits: which are written, for example `[train, validation]`; unset means all, and with `[]` there are no files.
      divide_at: the `/` in a number's name before which its sub-folder ends, which TensorBoard lists as a run of its
        own. `dev/f1/micro` of an evaluation is with `never` the tag `dev/f1/micro` in `validation`, with `first`
        `f1/micro` in `validation/dev`, and with `last` `micro` in `validation/dev/f1`.
      sub_folders: with `first` or `last`, the only ones that numbers may be in, for example `[dev, test]`; unset allows
        any.
    """

    on_error: Literal["warn", "fail"] = "fail"
    splits: tuple[str, ...] | None = None
    divide_at: Literal["first", "last", "never"] = "never"
    sub_folders: tuple[str, ...] | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.sub_folders is not None and self.divide_at == "never":
            yield "sub_folders", "has no effect, because numbers are in none; set divide_at to first or last as well"

    def build(
        self,
        place: Place,
        *,
        folders: Mapping[str, str] | None = None,
        describes: str | None = "validation",
        listed: Collection[str] | None = None,
    ) -> Tracker:
        if self.splits == ():
            return Tracker()
        if describes is not None and self.splits is not None and describes not in self.splits:
            describes = self.splits[0]
        return TensorBoardTracker(place.directory, folders=folders, describes=describes, listed=listed, options=self)

    def divide(self, name: str) -> tuple[str, str]:
        """Returns the sub-folder and the tag of a number.

        Raises:
          MetricError: it may not be in that sub-folder.
        """
        names = name.split("/")
        depth = {"first": min(1, len(names) - 1), "last": -1, "never": 0}[self.divide_at]
        folder, tag = "/".join(names[:depth]), "/".join(names[depth:])
        if folder and self.sub_folders is not None and folder not in self.sub_folders:
            near = nearest(folder, self.sub_folders)
            raise MetricError(
                f"metric {name!r} would be in the sub-folder {folder!r}; trainer.trackers: sub_folders allows "
                f"{', '.join(self.sub_folders) or 'none'}{f'; did you mean {near[0]!r}?' if near else ''}"
            )
        return folder, tag


class TensorBoardTracker(Tracker):
    """Writes scalars, histograms, images, texts and tables for TensorBoard, and the config for its HParams tab.

    Args:
      directory: the run's directory.
      folders: split → its folder below `directory`; the folder of any other split has the split's name.
      describes: the split in whose folder this process writes the config and the end of the run, and whose metrics the
        HParams tab shows; None if another process of the run does it.
      listed: the fields that the tab gets beside the experiment and the batch size; None for all of the config.
      options: which splits are written, and how names of numbers are divided.
    """

    def __init__(
        self,
        directory: str,
        *,
        folders: Mapping[str, str] | None = None,
        describes: str | None = "validation",
        listed: Collection[str] | None = None,
        options: TensorBoardConfig = TensorBoardConfig(),
    ) -> None:
        self._options = options
        self._directory = str(directory)
        self._files, self._is_url = EventFiles(self._directory), files.is_url(self._directory)
        self._folders = {"train": "train", "validation": "validation", **(folders or {})}
        self._folders["time"] = self._folders["train"]
        self._describes = describes
        self._listed = None if listed is None else {*_ALWAYS_LISTED, *listed}
        self._writers: dict[str, _EventWriter] = {}
        self._has_warned = False
        self._written: set[tuple[str, str, int]] = set()  # (folder, tag, step) of points that are not written again
        self._rewound_to: int | None = None

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Lists the run in the HParams tab, with fields of its current config, by the name of its directory."""
        if self._describes is None:
            return
        folder = self._folders.get(self._describes, self._describes)
        summary = load("tensorboard.plugins.hparams.summary_v2")
        plain = {"experiment": experiment, **config}
        values = {
            name: _as_hparam(value)
            for name, value in plain.items()
            if isinstance(value, bool | int | float | str) and (self._listed is None or name in self._listed)
        }
        parent, _, name = files.absolute(self._directory).rstrip("/").rpartition("/")
        shown = f"{name} ({parent or '/'})"  # runs of one name would share a row of the tab
        new = summary.hparams_pb(values, trial_id=shown, start_time_secs=time.time())
        tag = new.value[0].tag
        new_file = self._writers[folder].path if folder in self._writers else ""  # of this process, without a config
        self._files.cut(folder, lambda event: not any(value.tag == tag for value in event.summary.value), but=new_file)
        self._written.discard((folder, tag, 0))  # noted by a run that begins again at step 0
        self._add(0, [(folder, new)])

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        if self._options.splits is not None and split not in self._options.splits:
            return
        folder, new = self._folders.get(split, split), []
        for name, value in values.items():
            path, tag = folder, shared_name(split, name, values)
            if self._options.divide_at != "never":
                inner, tag = self._options.divide(tag)
                path = "/".join(filter(None, (folder, inner)))
            new.append((path, self._scalar_pb(f"time/{tag}" if split == "time" else tag, value)))
        self._add(step, new)

    @functools.cached_property
    def _scalar_pb(self) -> Any:
        return load("tensorboard.plugins.scalar.summary_v2").scalar_pb

    @functools.cached_property
    def _events(self) -> Any:
        return load("tensorboard.compat.proto.event_pb2")

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        """Writes media, in one folder: TensorBoard groups them by the part of a name before the first `/`.

        A table becomes a text. A text that the files hold already, which a restart may publish again, is left out.
        """
        path, new = self._folders.get(split, split), []
        if self._options.splits is not None and split not in self._options.splits:
            return
        for name, item in media.items():
            summary = _summary_of(name, item)
            if not (isinstance(item, Text | Table) and self._holds(path, step, summary)):
                new.append((path, summary))
        self._add(step, new)

    def resume(self, split: str, step: int) -> None:
        """Leaves out the points of `split` at `step` that the files hold, without changing the files."""
        for path in self._files.folders(self._folders.get(split, split)):
            self._note(path, step)

    def rewind(self, step: int) -> None:
        """Drops the points after `step` in every folder that has any."""
        events = self._events
        restart = events.SessionLog(status=events.SessionLog.START)
        self.close()  # files change, so new points go to new ones
        self._written.clear()
        self._rewound_to = step
        folders = [path for folder in (*self._folders.values(), "") for path in self._files.folders(folder)]
        for path in dict.fromkeys(folders):
            self._files.cut(path, lambda event: event.step <= step)
            # For a TensorBoard that has read the points already. It takes the first start for the beginning of the run,
            # so there are two.
            for _ in range(2):
                event = events.Event(wall_time=time.time(), step=step + 1, session_log=restart)
                self._writer_of(path).write(event.SerializeToString())
            self._writers[path].flush()

    def flush(self) -> None:
        try:
            for writer in self._writers.values():
                writer.flush()
        except Exception as error:
            self._leave_out(error)

    def end(self, outcome: Outcome) -> None:
        """Says in the HParams tab that the run has ended."""
        if self._describes is None or outcome.status != "done" or outcome.step is None:
            return
        folder = self._folders.get(self._describes, self._describes)
        self._note(folder, outcome.step)
        self._add(outcome.step, [(folder, _session_end())])

    def close(self) -> None:
        try:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()
        except Exception as error:
            self._leave_out(error)

    def _add(self, step: int, new: Sequence[tuple[str, Any]]) -> None:
        """Writes those points that are new; each is a folder and a summary of one value."""
        written = set()
        try:
            for path, summary in new:
                if (path, summary.value[0].tag, step) not in self._written:
                    event = self._events.Event(wall_time=time.time(), step=step, summary=summary)
                    self._writer_of(path).write(event.SerializeToString())
                    written.add(path)
            for path in written:
                self._writers[path].flush()
        except Exception as error:
            self._leave_out(error)

    def _writer_of(self, path: str) -> _EventWriter:
        writer = self._writers.get(path)
        if writer is not None and not (self._is_url or os.path.exists(writer.path)):
            _logger.warning("%s was removed while the run writes to it; the next points are in a new file", writer.path)
            self._writers.pop(path).close()
        if path not in self._writers:
            self._writers[path] = _EventWriter(self._files.make(path))
        return self._writers[path]

    def _leave_out(self, error: Exception) -> None:
        """Leaves points out if the storage fails, says so once, and begins new files for the next points."""
        if files.as_storage_error(error) is None:
            raise error
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "points for TensorBoard cannot be written: %s: %s. They are left out until there is space again; the "
                "run continues, and metrics.jsonl has the numbers.",
                *(getattr(error, "filename", None) or self._files.path(""), files.reason_of(error)),
            )
        for writer in self._writers.values():
            with contextlib.suppress(Exception):
                writer.close()
        self._writers.clear()

    def _holds(self, path: str, step: int, summary: Any) -> bool:
        if self._rewound_to is not None and step > self._rewound_to:
            return False  # the rewind has removed that step
        (new,) = summary.value
        return any(
            event.step == step and any(old.tag == new.tag and old.tensor == new.tensor for old in event.summary.value)
            for event in self._files.events(path)
        )

    def _note(self, path: str, step: int) -> None:
        """Remembers the points at `step` in a folder, so that they are not written again."""
        for event in self._files.events(path):
            if event.step == step:
                self._written.update((path, value.tag, step) for value in event.summary.value)


_numbers = itertools.count()


class _EventWriter:
    """A new event file of a folder, with `write(record)`; in its caller's thread, unlike TensorBoard's own writer."""

    def __init__(self, folder: str) -> None:
        begun = [int(part[1]) for name in files.list_dir(folder) if (part := _SECONDS.search(name))]
        seconds = max([int(time.time()), *(second + 1 for second in begun)])  # the clock may have gone back
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self.path = files.join(folder, name)
        file = files.open_file(self.path, "wb")
        self.write = load("tensorboard.summary.writer.record_writer").RecordWriter(file).write
        self.flush, self.close = file.flush, file.close
        event = load("tensorboard.compat.proto.event_pb2").Event(wall_time=time.time(), file_version="brain.Event:2")
        self.write(event.SerializeToString())


class EventFiles:
    """The event files below a directory; `path` is a folder's path in it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._has_directory = False

    def make(self, path: str) -> str:
        """Creates a folder, and returns its whole path; a directory that is gone since the first one stays so.

        Raises:
          FileNotFoundError: it is gone, because it was moved.
        """
        if self._has_directory and not files.is_url(self._directory):
            os.stat(self._directory)
        folder = self.path(path)
        files.make_dirs(folder)
        self._has_directory = True
        return folder

    def path(self, path: str, *names: str) -> str:
        """Returns the whole path of a folder, or of a file in it."""
        return files.join(self._directory, *(part for part in path.split("/") if part), *names)

    def folders(self, path: str) -> Iterator[str]:
        """Yields each folder with event files, from `path` downwards, except those of other runs."""
        if self._names(path):
            yield path
        for name in files.list_dir(self.path(path)):
            folder = self.path(path, name)
            if ".tfevents." not in name and files.is_dir(folder) and not files.exists(files.join(folder, _OTHER_RUN)):
                yield from self.folders(f"{path}/{name}" if path else name)

    def events(self, path: str) -> Iterator[Any]:
        """Yields the events of all files in a folder."""
        for name in self._names(path):
            for _, event in _records(self.path(path, name)):
                yield event

    def cut(self, path: str, is_kept: Callable[[Any], bool], *, but: str = "") -> None:
        """Removes summaries from the files of a folder, and temporary files of a process that was killed here.

        Args:
          path: of the folder.
          is_kept: returns whether an event stays.
          but: the whole path of a file that is left as it is.
        """
        for name in files.list_dir(self.path(path)):
            if ".tfevents." in name and ".tmp-" in name:
                files.remove(self.path(path, name))
        for name in self._names(path):
            if (file := self.path(path, name)) != but:
                _cut(file, is_kept)

    def _names(self, path: str) -> list[str]:
        names = [name for name in files.list_dir(self.path(path)) if ".tfevents." in name]
        return [name for name in names if ".tmp-" not in name and _MARK_OF_PROFILE not in name]


def _summary_of(tag: str, item: Media) -> Any:
    """Returns media as TensorBoard has them: rows of left edge, right edge, count; width, height, PNG; or a text."""
    if isinstance(item, Text | Table):
        markdown = item.markdown if isinstance(item, Text) else item.markdown()
        return load("tensorboard.plugins.text.summary_v2").text_pb(tag, markdown)
    if isinstance(item, Histogram):
        counts, edges = item.buckets()
        content: list[Any] = list(zip(edges[:-1], edges[1:], counts, strict=True))
        plugin, dtype = "histogram", "float64"
    else:
        height, width, _ = item.pixels.shape
        content = [str(width).encode(), str(height).encode(), item.png()]
        plugin, dtype = "image", None
    metadata = load(f"tensorboard.plugins.{plugin}.metadata").create_summary_metadata(None, None)
    return _summary(tag, metadata, load("tensorboard.util.tensor_util").make_tensor_proto(content, dtype=dtype))


def _summary(tag: str, metadata: Any, tensor: Any) -> Any:
    summary = load("tensorboard.compat.proto.summary_pb2").Summary()
    summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
    return summary


def _session_end() -> Any:
    """Returns the summary by which the HParams tab knows that a run has ended."""
    plugin, api = load("tensorboard.plugins.hparams.plugin_data_pb2"), load("tensorboard.plugins.hparams.api_pb2")
    info = plugin.SessionEndInfo(status=api.STATUS_SUCCESS, end_time_secs=time.time())
    metadata = load("tensorboard.plugins.hparams.metadata")
    content = metadata.create_summary_metadata(plugin.HParamsPluginData(session_end_info=info))
    return _summary(metadata.SESSION_END_INFO_TAG, content, metadata.NULL_TENSOR)


def _as_hparam(value: bool | int | float | str) -> bool | float | str:
    """Returns a value as the HParams tab shows it best: it would show the number 64 as 64.000.

    An integer is a text with spaces before it, which a browser leaves out, so that it is sorted as a number.
    """
    return f"{value:>{_WIDTH_OF_INTEGERS}}" if isinstance(value, int) and not isinstance(value, bool) else value


def shared_name(split: str, name: str, names: Collection[str]) -> str:
    """Returns the name of a number without its split, if no other number has that name."""
    *sets, last = name.split("/")
    shared = "/".join([*sets, "loss"])
    return shared if last == _LOSSES.get(split) and shared not in names else name


def _cut(path: str, is_kept: Callable[[Any], bool]) -> None:
    """Removes summaries from an event file, and the whole file if no summary is left.

    Each start begins new files, so a run that is killed often would fill its folders with empty ones.
    """
    kept, is_cut, is_needed = [], False, False
    for record, event in _records(path):
        if event.HasField("summary") and not is_kept(event):
            is_cut = True
        else:
            kept.append(record)
            is_needed = is_needed or event.WhichOneof("what") not in (None, "file_version", "session_log")
    if not is_needed:
        files.remove(path)
    elif is_cut:
        files.write_bytes_atomically(path, b"".join(kept))


def _records(path: str) -> Iterator[tuple[bytes, Any]]:
    """Yields each complete record (length, its checksum, payload, its checksum) of an event file, and its event.

    Records that are damaged are left out, with a warning.
    """
    events, messages = load("tensorboard.compat.proto.event_pb2"), load("google.protobuf.message")
    try:
        content, start = files.read_bytes(path), 0
    except FileNotFoundError:  # a link to nothing
        return
    while len(content) >= start + 12:
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + 12 + length + 4
        if end > len(content):
            return
        try:
            yield content[start:end], events.Event.FromString(content[start + 12 : end - 4])
        except messages.DecodeError:
            _logger.warning("%s is damaged: a point for TensorBoard at byte %d is left out", path, start)
        start = end
