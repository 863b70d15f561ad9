"""How the examples of a source are divided among the input pipelines of a job, in words and numbers.

Owns: describing it, and when shares are uneven enough for a warning.
Does not own: which pipeline reads which example (`order.py`, `records.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

By = Literal["batches", "files", "examples", "nothing"]

_EVEN = 0.75
"""Shares are uneven if the smallest is less than this part of the largest."""


_LISTED = 8
"""The numbers of at most so many pipelines are shown one by one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharing:
    """What each input pipeline of a job reads in one pass over the data.

    Attributes:
      by: `batches`: each reads its part of every global batch, so the order of examples does not depend on the number
        of pipelines. `files`: whole files of its own. `examples`: all files, and of these every n-th example.
        `nothing`: everything.
      pipelines: input pipelines of the job.
      files: how many files each pipeline reads; None where there are no files.
      examples: how many examples each reads; None if the files would have to be read to count them.
      size_bytes: how large the files of each are; None if that is unknown too.
    """

    by: By
    pipelines: int
    files: tuple[int, ...] | None = None
    examples: tuple[int, ...] | None = None
    size_bytes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"training data for {self.pipelines} input pipelines: {self._in_words()}"

    def as_dict(self) -> dict[str, Any]:
        """Returns all that is known, for the run's record."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def warnings(self) -> Iterator[str]:
        """Yields what a user should know before spending time on a training run with these shares."""
        if self.by == "nothing":
            yield (
                f"train_data.sharding is false: each of the {self.pipelines} input pipelines reads all the data, so "
                f"each example is used {self.pipelines} times in an epoch; set it to true to divide them"
            )
        known, unit = (self.examples, "examples") if self.examples is not None else (self.size_bytes, "bytes")
        if self.by == "files" and known is not None and 0 < min(known) < _EVEN * max(known):
            least, most = min(known), max(known)
            yield (
                f"the training data are divided very unevenly: input pipeline {known.index(least)} reads {least:,} "
                f"{unit}, and pipeline {known.index(most)} reads {most:,}, at the same speed. So the examples of the "
                f"first are used {most / least:.1f} times as often as those of the second. Write the data in files of "
                f"equal size, {self.pipelines} or a multiple of that; or use from_arrays, if they fit in memory"
            )

    def _in_words(self) -> str:
        if self.by == "batches":
            return "each reads its part of every global batch"
        if self.by == "nothing":
            return "each reads everything"
        what = "whole files" if self.by == "files" else f"all files, and uses every {self.pipelines}th example of them"
        return f"each reads {what} ({', '.join(self._numbers())})"

    def _numbers(self) -> Iterator[str]:
        if self.files is not None and (self.by == "files" or self.examples is None):
            yield _listed(self.files if self.by == "files" else self.files[:1], "file")
        if self.examples is not None:
            yield _listed(self.examples, "example")
        elif self.by == "files" and self.size_bytes is not None:
            yield _listed([round(size / 2**20) for size in self.size_bytes], "MiB", plural="MiB")


def _listed(numbers: Sequence[int], unit: str, *, plural: str = "") -> str:
    """Returns `7, 5 and 6 files`, `1 file each`, or the range where there are many."""
    plural = plural or f"{unit}s"
    if len(set(numbers)) == 1:
        each = " each" if len(numbers) > 1 else ""
        return f"{numbers[0]:,} {unit if numbers[0] == 1 else plural}{each}"
    if len(numbers) > _LISTED:
        return f"{min(numbers):,} to {max(numbers):,} {plural}"
    texts = [f"{number:,}" for number in numbers]
    return f"{', '.join(texts[:-1])} and {texts[-1]} {plural}"
