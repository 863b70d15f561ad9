"""Files of records as one source: which file an example is in, files that stay open.

Owns: numbers of examples over all files. Does not own: how a file is read (`tfrecord.py`, `array_record.py`), where it
is found (`paths.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from official_trainer.inputs import Source
from official_trainer.inputs.source import by_part
from official_trainer.sources import paths

_MOST_OPEN = 256


class RecordFiles(Source):
    """Records, bytes, by their number over all files. A subclass defines how some of a file are read."""

    def __init__(self, files: Sequence[str], counts: Sequence[int], opened: Callable[[str], Any]) -> None:
        """Takes the paths, the number of records in each, and what opens one, a function of a module.

        At most 256 files are open; one that is no longer used has to close itself.
        """
        import numpy as np

        self.files, self._counts, self._open = files, counts, opened
        self._firsts = np.cumsum([0, *counts])
        self.opened = functools.lru_cache(maxsize=_MOST_OPEN)(opened)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, opened=functools.lru_cache(maxsize=_MOST_OPEN)(state["_open"]))

    def read(self, number: int, records: Sequence[int]) -> Sequence[bytes]:
        """Returns records of a file, by the number of the file and theirs in it."""
        raise NotImplementedError

    def location(self, number: int, record: int) -> str:
        """Returns where a record is, for messages."""
        return f"{self.files[number]}: record {record}"

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no record {index}; there are {len(self)}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        batch: list[bytes] = [b""] * len(indices)
        for number, rows, records in by_part(self._firsts, indices):
            for at, record in zip(rows.tolist(), self.read(number, records.tolist()), strict=True):
                batch[at] = record
        return batch

    def take(self, indices: Sequence[int]) -> Any:
        import numpy as np

        batch = np.empty(len(indices), object)
        batch[:] = self.__getitems__(indices)
        return batch

    def where(self, index: int) -> str:
        number = int(self._firsts.searchsorted(index, side="right")) - 1
        return self.location(number, index - int(self._firsts[number]))

    def samples(self) -> Sequence[int]:
        return [int(first) for first, count in zip(self._firsts, self._counts, strict=False) if count]

    def fingerprint(self) -> str:
        return paths.fingerprint(self.files)
