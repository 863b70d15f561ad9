"""The numbers in TensorBoard's files of a run, read without TensorFlow.

Owns: which events are numbers, in the forms that TensorFlow 1 and 2 write. Does not own:
the files and the records in them (`tracking/tensorboard.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from official_trainer.lazy import load
from official_trainer.tracking.tensorboard import EventFiles


def scalars(directory: str) -> Iterator[tuple[str, str, int, float, float]]:
    """Yields folder, name, step, value and Unix time of each number in a run directory, without other runs in it."""
    events = EventFiles(directory)
    for split in events.folders(""):
        for event in events.events(split):
            for value in event.summary.value:
                if (number := _number(value)) is not None:
                    yield split, value.tag, event.step, number, event.wall_time


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
