"""Where numbers go: the Tracker contract, and sending the same numbers to several trackers.

Owns: turning nested results of tensors into flat names with Python floats and media of NumPy arrays, in the caller;
the end of a tracker. Does not own: any format or destination; each has a file in this package. Nothing here
imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.shown import shorten
from official_trainer.tracking.media import Histogram, Image, Media, MediaError, Table, Text, on_host

if TYPE_CHECKING:
    from official_trainer.tracking.jsonl import JsonlTracker

__all__ = [
    "Histogram",
    "Image",
    "Media",
    "MediaError",
    "MetricError",
    "Outcome",
    "Place",
    "Point",
    "Table",
    "Text",
    "Tracker",
    "Trackers",
    "closing",
    "flatten",
    "numbers_in",
    "points",
]

_logger = logging.getLogger(__name__)

EVALUATION = "validation"
"""The split whose rows a restart looks for: an evaluation that has a row is not repeated."""

IMAGES = "image/"
"""How the names of images begin that tasks of Model Garden return as tensors."""


class MetricError(UserError, TypeError):
    """A metric that cannot be recorded: it is not one number, or another metric has its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The run for which the config of a tracker builds it.

    Attributes:
      directory: where this process writes: the run directory, or a folder of its own there; a local path or a URL.
      experiment: registered name of the experiment.
      name: of the run, for people: the last part of the run directory, and the name of this process's folder there.

    Example:
      A service gets the same name for a run after a restart:

      >>> from official_trainer.tracking import Place
      >>> place = Place(directory="runs/digits", experiment="digits_cnn", name="digits")
      >>> place.read_identity("service.json") == place.read_identity("service.json")
      True
    """

    directory: str
    experiment: str
    name: str

    def read_identity(self, file: str) -> dict[str, Any]:
        """Returns what a tracking service's `file` in the directory holds, at least its name for the run, `run`.

        Where there is no such file, it is written with a new name before the service gets that name, so that a restart
        finds the run of a process that was killed in between.

        Raises:
          UnreadableFileError: the file was not written here.
        """
        path = files.join(self.directory, file)
        if files.exists(path):
            identity = files.read_json(path)
            if isinstance(identity.get("run"), str):
                return identity
            raise files.UnreadableFileError(f"{path} names no run. Put a good copy back, or remove it.")
        new = {"run": uuid.uuid4().hex}
        files.make_dirs(self.directory)
        self.write_identity(file, new)
        return new

    def write_identity(self, file: str, identity: Mapping[str, Any]) -> None:
        """Replaces the content of `file`."""
        files.write_text_atomically(files.join(self.directory, file), json.dumps(identity) + "\n", durable=False)


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """How a process of a run ended.

    Attributes:
      status: `stopped` if the same command continues it.
      step: the last step, of a run that is done.
      metrics: the final metrics, flat, of a run that is done.

    Example:
      >>> from official_trainer.tracking import Outcome, Tracker
      >>> class Mail(Tracker):
      ...     def end(self, outcome):
      ...         print(f"{outcome.status} at step {outcome.step}: {outcome.metrics}")
      >>> Mail().end(Outcome(status="done", step=2000, metrics={"accuracy": 0.98}))
      done at step 2000: {'accuracy': 0.98}
    """

    status: Literal["done", "stopped", "failed"] = "done"
    step: int | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Tracker:
    """A destination of metrics. Subclasses override the methods for what they can show; the others do nothing.

    `values` are flat when they come through `Trackers`: `{"loss": 0.5, "dev/accuracy": 0.9}`, Python floats; and
    `media` hold NumPy arrays of their own. Nothing is opened before the first call. This class itself writes nothing.

    Example:
      >>> from official_trainer.tracking import Histogram, Tracker
      >>> class Lines(Tracker):
      ...     '''Prints numbers, and how many values each histogram has.'''
      ...
      ...     def log(self, split, step, values):
      ...         print(f"{split} {step}: {values}")
      ...
      ...     def publish(self, split, step, media):
      ...         sizes = {name: thing.values.size for name, thing in media.items() if isinstance(thing, Histogram)}
      ...         print(f"{split} {step}: {sizes}")
      >>> Lines().log("train", 100, {"loss": 0.5, "accuracy": 0.75})
      train 100: {'loss': 0.5, 'accuracy': 0.75}
    """

    spent_seconds = 0.0
    """How long callers have waited, where that is counted."""

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Takes what describes the run, once at each start, after `rewind`.

        Args:
          experiment: its registered name.
          config: values of the config by their paths, as `config.flat` returns them.
        """

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Records the metrics of a split at a global step.

        Args:
          split: `train`, `validation`, or the name that an action has given.
          step: the global step.
          values: numbers by name, flat.
        """

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        """Records histograms, images, texts and tables.

        Args:
          split: as for `log`.
          step: the global step.
          media: by name, flat. Histograms hold their finite values as one row, images uint8 pixels.
        """

    def rewind(self, step: int) -> None:
        """Drops everything after a step, at which the run continues; called at every start.

        Args:
          step: the global step; 0 for a fresh run.
        """

    def resume(self, split: str, step: int) -> None:
        """Announces numbers of `split` at `step` that a killed process may have logged already; they count once."""

    def flush(self) -> None:
        """Brings everything logged so far to its destination; called before each checkpoint."""

    def end(self, outcome: Outcome) -> None:
        """Takes the outcome of this process, once, before `close`."""

    def close(self) -> None:
        """Flushes and closes all files and connections; nothing is logged afterwards."""


class Trackers(Tracker):
    """Sends everything to several trackers, in their order; a row of `metrics.jsonl` is written after everything else.

    So the row of an evaluation means that everything about it was written: a kill loses none of it, and a restart
    writes none of it twice.
    """

    def __init__(self, trackers: Sequence[Tracker], rows: JsonlTracker | None = None) -> None:
        self._others, self._rows = tuple(trackers), rows
        self._trackers = self._others if rows is None else (*self._others, rows)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Records numbers and media, in all the forms that `points` takes.

        Raises:
          MetricError: a value is neither one number nor media, or two have one name.
          MediaError: media cannot be shown.
        """
        recorded = points(values)
        numbers = numbers_in(recorded)
        start = time.monotonic()
        for tracker in self._others:
            tracker.log(split, step, numbers)
        if len(numbers) < len(recorded):
            media = {name: value for name, value in recorded.items() if isinstance(value, Media)}
            for tracker in self._others:
                tracker.publish(split, step, media)
        if self._rows is not None:
            if split == EVALUATION:
                for tracker in self._others:
                    tracker.flush()
            self._rows.log(split, step, numbers)
        self.spent_seconds += time.monotonic() - start

    def publish(self, split: str, step: int, media: Mapping[str, Any]) -> None:
        """Records media, which may be nested as metrics may.

        Raises:
          MediaError: a value is a number, or an image does not have an image's shape.
          MetricError: a value is neither media nor a number, or two have one name.
        """
        flat = {name: on_host(name, value) for name, value in points(media).items()}
        start = time.monotonic()
        for tracker in self._trackers:
            tracker.publish(split, step, flat)
        self.spent_seconds += time.monotonic() - start

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.describe(experiment, config)

    def rewind(self, step: int) -> None:
        for tracker in self._trackers:
            tracker.rewind(step)
        if self._rows is not None and not self._rows.has_row(step, EVALUATION):
            for tracker in self._others:
                tracker.resume(EVALUATION, step)  # of a process that was killed before it wrote the row

    def resume(self, split: str, step: int) -> None:
        for tracker in self._trackers:
            tracker.resume(split, step)

    def flush(self) -> None:
        start = time.monotonic()
        for tracker in self._trackers:
            tracker.flush()
        self.spent_seconds += time.monotonic() - start

    def end(self, outcome: Outcome) -> None:
        """Calls every tracker, also when one fails; then raises the error."""
        with contextlib.ExitStack() as calls:
            for tracker in reversed(self._trackers):
                calls.callback(tracker.end, outcome)

    def close(self) -> None:
        """Closes every tracker, also when one fails; then raises the error."""
        with contextlib.ExitStack() as calls:
            for tracker in reversed(self._trackers):
                calls.callback(tracker.close)


def _end(tracker: Tracker, outcome: Outcome) -> None:
    try:
        tracker.end(outcome)
    finally:
        tracker.close()


@contextlib.contextmanager
def closing(tracker: Tracker) -> Iterator[Outcome]:
    """Ends and closes a tracker after the block; an error of the block has priority over the tracker's.

    Yields:
      The outcome, for the block to fill in.
    """
    outcome = Outcome()
    try:
        yield outcome
    except BaseException as error:
        will_continue = getattr(error, "exit_code", None) in (ExitCode.PREEMPTED, ExitCode.RETRY)
        ended = Outcome(status="stopped" if will_continue else "failed")
        try:
            _end(tracker, ended)
        except Exception as other:
            _logger.error("%s", files.as_storage_error(other) or other)
        raise
    _end(tracker, outcome)


Point = float | Media
"""What a tracker records under one name at one step."""


class Points(dict[str, Point]):
    """What `points` returns, which is flat and on the host already."""


def points(values: Mapping[str, Any]) -> Points:
    """Returns nested results with names joined by `/`, in their order: Python floats, and media on the host.

    Args:
      values: numbers (tensors, NumPy, Python), media, texts (`str` or a tensor of one), mappings of these, and objects
        with a method `as_logs()` that returns such a mapping. As in Model Garden, a name that begins with `image/` may
        hold images, `[images, height, width, channels]`.

    Raises:
      MetricError: a value is none of these, or two have one name.
      MediaError: media cannot be shown.

    Example:
      >>> import numpy as np
      >>> from official_trainer.tracking import points
      >>> flat = points({"dev": {"accuracy": np.float32(0.5)}, "note": "*so*", "image/worst": np.zeros([2, 4, 4, 3])})
      >>> list(flat)
      ['dev/accuracy', 'note', 'image/worst/0', 'image/worst/1']
      >>> flat["note"]
      Text(markdown='*so*')
    """
    if isinstance(values, Points):
        return values
    recorded = Points()
    for names, value in leaves(values):
        path, shown = "/".join(names), [value]
        if names[-1].startswith(IMAGES) and len(getattr(value, "shape", ())) == 4:
            shown = [Image(image) for image in value]
        elif getattr(value, "shape", None) == () and "str" in str(getattr(value, "dtype", "")):  # a tensor
            shown = [value.numpy().decode("utf-8", "replace") if hasattr(value, "numpy") else str(value)]
        for number, item in enumerate(shown):
            name = f"{path}/{number}" if len(shown) > 1 else path
            item = Text(item) if isinstance(item, str) else item
            if name in recorded:
                raise MetricError(f"two metrics are named {name!r}; rename one")
            recorded[name] = on_host(name, item) if isinstance(item, Media) else _number(name, item)
    return recorded


def numbers_in(recorded: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers among `points`.

    Args:
      recorded: numbers and media by their flat names.

    Example:
      >>> from official_trainer.tracking import Text, numbers_in
      >>> numbers_in({"dev/accuracy": 0.5, "note": Text("*so*")})
      {'dev/accuracy': 0.5}
    """
    return {name: value for name, value in recorded.items() if not isinstance(value, Media)}


def flatten(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of nested results, as `points` does."""
    return numbers_in(points(values))


def leaves(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields what nested results or settings hold, each with the names that lead to it, from the outermost on.

    Example:
      >>> from official_trainer.tracking import leaves
      >>> list(leaves({"loss": 1.0, "dev": {"accuracy": 0.5}}))
      [(('loss',), 1.0), (('dev', 'accuracy'), 0.5)]
    """
    for name, value in values.items():
        value = value.as_logs() if hasattr(value, "as_logs") else value
        if isinstance(value, Mapping):
            yield from (((str(name), *inner), leaf) for inner, leaf in leaves(value))
        else:
            yield (str(name),), value


def _number(name: str, value: Any) -> float:
    array = value.numpy() if hasattr(value, "numpy") else value
    shape = tuple(getattr(array, "shape", ()))
    if shape:
        raise MetricError(
            f"metric {name!r} has shape {list(shape)}; metrics are single numbers: reduce it, or leave it out, or "
            "show it as a Histogram, an Image or a Table of official_trainer.tracking"
        )
    try:
        return float(array)
    except (TypeError, ValueError):
        given = type(value).__name__
        raise MetricError(f"metric {name!r} is {shorten(repr(array))} ({given}); metrics are single numbers") from None
