"""What TensorBoard's files of a run hold: numbers, images, texts and histograms, read without TensorFlow.

Owns: which events are numbers, images, texts and histograms, in the forms that TensorFlow 1 and 2 write. Does not own:
the files and the records in them (`tracking/tensorboard.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer.lazy import load
from official_trainer.tracking.tensorboard import EventFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """An image, a text or a histogram of a run.

    Attributes:
      kind: `image`, whose content is a picture in PNG or another format of the web; `text`, which is Markdown; or
        `histogram`, which TensorBoard draws, and whose content is empty.
      split: the folder of its event file, such as `validation`.
      name: its tag.
      step: the global step.
      time: when it was recorded, in Unix seconds.
      content: the picture, or the text in UTF-8.
    """

    kind: Literal["image", "text", "histogram"]
    split: str
    name: str
    step: int
    time: float
    content: bytes = dataclasses.field(repr=False)


def scalars(directory: str) -> Iterator[tuple[str, str, int, float, float]]:
    """Yields folder, name, step, value and Unix time of each number in a run directory, without other runs in it."""
    events = EventFiles(directory)
    for split in events.folders(""):
        for event in events.events(split):
            for value in event.summary.value:
                if (number := _number(value)) is not None:
                    yield split, value.tag, event.step, number, event.wall_time


def shown(directory: str) -> Iterator[Shown]:
    """Yields the images, texts and histograms in a run directory, in the order in which they were recorded."""
    events = EventFiles(directory)
    for split in events.folders(""):
        for event in events.events(split):
            for value in event.summary.value:
                yield from _shown(split, event, value)


def _shown(split: str, event: Any, value: Any) -> Iterator[Shown]:
    where: dict[str, Any] = {"split": split, "name": value.tag, "step": event.step, "time": event.wall_time}
    kind, plugin = value.WhichOneof("value"), value.metadata.plugin_data.plugin_name
    texts = list(value.tensor.string_val)
    if kind == "image":
        yield Shown(kind="image", content=value.image.encoded_image_string, **where)
    elif kind == "histo" or plugin == "histograms":
        yield Shown(kind="histogram", content=b"", **where)
    elif plugin == "images":  # width, height, then the images
        yield from (Shown(kind="image", content=image, **where) for image in texts[2:])
    elif plugin == "text":
        yield from (Shown(kind="text", content=text, **where) for text in texts[:1])


def _number(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or value.metadata.plugin_data.plugin_name not in ("scalars", ""):
        return None
    if len(value.tensor.float_val) == 1:
        return float(value.tensor.float_val[0])
    array = load("tensorboard.util.tensor_util").make_ndarray(value.tensor)
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiu" else None
