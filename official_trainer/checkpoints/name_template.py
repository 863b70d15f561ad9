"""Templates of checkpoint names: `{epoch:02d}-{step:08d}-{validation_loss:.2f}`.

Owns: what a template may hold, and the name of an evaluation. Does not own: what is kept under a name (`kept.py`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

from official_trainer.shown import shorten
from official_trainer.tracking.monitored import find_metric

COUNTERS = ("epoch", "batch", "step")
"""Placeholders for whole numbers; every other one is for a metric of the evaluation."""

_MOST_BYTES = 255
_LARGEST_COUNT = 2**63 - 1
_LONG_VALUES = (-3.4028234663852886e38, -2.2250738585072014e-308)
"""Numbers of an evaluation that many digits can be needed for: the largest of 32 bits, and one of 64 bits."""
_SHORT = "shorten the text, or write metrics as {validation_loss:.4g}, which is short for large numbers too"
_HINT = "placeholders are {epoch}, {batch}, {step} and metrics of the evaluation, such as {validation_loss:.2f}"


class NameTemplate:
    """A template that was checked.

    Attributes:
      metrics: names of the metrics in it; `a|b` is `b` inside `a`.
      needs_epochs: whether it has the epoch or the batch in it.
    """

    def __init__(self, text: str) -> None:
        """Takes a template.

        Raises:
          ValueError: it cannot be read, or its names cannot be those of folders.
        """
        self._parts = _parse(text)
        names = [name for _, name, _ in self._parts if name is not None]
        self.metrics = tuple(dict.fromkeys(name for name in names if name not in COUNTERS))
        self.needs_epochs = "epoch" in names or "batch" in names
        sample = self._sample(1, 1.0)
        if sample in ("", ".", "..") or set(sample) & set("/\\") or not sample.isprintable():
            raise ValueError(f"produces names such as {shorten(repr(sample))}, which no folder can have")
        length = max(len(self._sample(_LARGEST_COUNT, value).encode()) for value in _LONG_VALUES)
        if length > _MOST_BYTES:
            raise ValueError(
                f"produces names of up to {length} bytes, and a folder's has at most {_MOST_BYTES}; {_SHORT}"
            )

    def _sample(self, count: int, value: float) -> str:
        return self.format(count, (count, count), dict.fromkeys(self.metrics, value))

    def format(self, step: int, epoch_and_batch: tuple[int, int] | None, logs: Mapping[str, float]) -> str:
        """Returns the name for an evaluation.

        Args:
          step: global step.
          epoch_and_batch: the epoch, and the batch in it; may be None where the template has neither.
          logs: the results, which have its metrics.
        """
        epoch, batch = epoch_and_batch or (None, None)
        counters = dict(zip(COUNTERS, (epoch, batch, step), strict=True))
        name = ""
        for literal, field, spec in self._parts:
            name += literal
            if field is not None:
                name += format(counters[field] if field in counters else find_metric(logs, field), spec)
        return name


def _parse(text: str) -> list[tuple[str, str | None, str]]:
    """Returns the parts of a template: text, the placeholder after it, and the format of that."""
    try:
        segments = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{shorten(text)!r} cannot be read: {error}; {_HINT}") from None
    parsed: list[tuple[str, str | None, str]] = []
    for literal, field, spec, conversion in segments:
        if field is None:
            parsed.append((literal, None, ""))
            continue
        written = f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
        if not field or conversion:
            raise ValueError(f"cannot hold {shorten(written)}; {_HINT}")
        spec = spec or ""
        sizes = [digits.lstrip("0") for digits in re.findall(r"\d+", spec)]
        if any(len(digits) > 3 or int(digits or 0) > _MOST_BYTES for digits in sizes):
            what = f"more than the {_MOST_BYTES} characters that the name of a folder can have"
            raise ValueError(f"cannot hold {shorten(written)}: {what}; write a smaller number")
        try:
            format(_LARGEST_COUNT if field in COUNTERS else 1.0, spec)
        except (ValueError, OverflowError) as error:
            meaning = "a whole number" if field in COUNTERS else "a number with a fraction"
            raise ValueError(f"cannot hold {shorten(written)}: {error}; it stands for {meaning}") from None
        parsed.append((literal, field, spec))
    return parsed
