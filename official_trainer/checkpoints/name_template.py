"""Templates of checkpoint names: `{epoch:02d}-{step:08d}-{validation_loss:.2f}`.

Owns: what a template may hold, the name of an evaluation, which names a template may have produced. Does not own: what
is kept under a name (`named.py`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

from official_trainer.tracking.monitored import find_metric

COUNTERS = ("epoch", "batch", "step")
"""Placeholders for whole numbers; every other one is for a metric of the evaluation."""

_HINT = "placeholders are {epoch}, {batch}, {step} and metrics of the evaluation, such as {validation_loss:.2f}"


class NameTemplate:
    """A template that was checked.

    Attributes:
      metrics: names of the metrics in it; `a|b` is `b` inside `a`.
      needs_place: whether it has the epoch or the batch in it.
    """

    def __init__(self, text: str) -> None:
        """Takes a template.

        Raises:
          ValueError: it cannot be read, or its names cannot be those of folders.
        """
        self._parts = _parse(text)
        names = [name for _, name, _ in self._parts if name is not None]
        self.metrics = tuple(dict.fromkeys(name for name in names if name not in COUNTERS))
        self.needs_place = "epoch" in names or "batch" in names
        sample = self.format(1, (1, 1), dict.fromkeys(self.metrics, 1.0))
        if sample in ("", ".", "..") or set(sample) & set("/\\\0"):
            raise ValueError(f"produces names such as {sample!r}, which no folder can have")

    def format(self, step: int, place: tuple[int, int] | None, logs: Mapping[str, float]) -> str:
        """Returns the name for an evaluation.

        Args:
          step: global step.
          place: the epoch, and the batch in it; may be None where the template has neither.
          logs: the results, which have its metrics.
        """
        epoch, batch = place or (None, None)
        counters = dict(zip(COUNTERS, (epoch, batch, step), strict=True))
        name = ""
        for literal, field, spec in self._parts:
            name += literal
            if field is not None:
                name += format(counters[field] if field in counters else find_metric(logs, field), spec)
        return name

    def matches(self, name: str) -> bool:
        """Whether this template may have produced `name`."""
        pattern = ""
        for literal, field, _ in self._parts:
            pattern += re.escape(literal)
            if field is not None:
                pattern += r".*\d.*" if field in COUNTERS else ".+"
        return re.fullmatch(pattern, name) is not None


def _parse(text: str) -> list[tuple[str, str | None, str]]:
    """Returns the parts of a template: text, the placeholder after it, and the format of that."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be read: {error}; {_HINT}") from None
    found: list[tuple[str, str | None, str]] = []
    for literal, field, spec, conversion in parts:
        if field is None:
            found.append((literal, None, ""))
            continue
        written = f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
        if not field or conversion:
            raise ValueError(f"cannot hold {written}; {_HINT}")
        spec = spec or ""
        try:
            format(1 if field in COUNTERS else 1.0, spec)
        except ValueError as error:
            kind = "a whole number" if field in COUNTERS else "a number with a fraction"
            raise ValueError(f"cannot hold {written}: {error}; it stands for {kind}") from None
        found.append((literal, field, spec))
    return found
