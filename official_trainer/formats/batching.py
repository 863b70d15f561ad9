"""Requests that wait while a batch is computed become the next batch: no request waits for others to come.

Owns: the queue, its bound, one thread that computes, the answer of each request. Does not own: requests (`serving.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from official_trainer.formats.readers import Arrays


class QueueFullError(RuntimeError):
    """As many requests wait as may."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    key: Hashable
    inputs: Arrays
    rows: int
    answer: asyncio.Future[Arrays]


class Batches:
    """Computes requests, several at once where they have the same key."""

    def __init__(self, compute: Callable[[Hashable, Arrays], Arrays], *, max_rows: int, max_waiting: int) -> None:
        """Takes a function of a key and a batch; it is called in one thread, never twice at once."""
        self._compute, self._max_rows, self._max_waiting = compute, max_rows, max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._came = asyncio.Event()

    async def answer(self, key: Hashable, inputs: Arrays, rows: int) -> Arrays:
        """Returns the outputs for some rows.

        Raises:
          QueueFullError: nothing was taken.
        """
        if len(self._waiting) >= self._max_waiting:
            raise QueueFullError(f"{len(self._waiting)} requests wait already; try again")
        request = _Waiting(key, inputs, rows, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._came.set()
        return await request.answer  # one that is cancelled is skipped

    async def work(self) -> None:
        """Computes what comes, until this is cancelled."""
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(1, "batches") as thread:
            while True:
                await self._came.wait()
                self._came.clear()
                while batch := self._next():
                    answers = await loop.run_in_executor(thread, self._computed, batch)
                    for request, answer in zip(batch, answers, strict=True):
                        if request.answer.done():  # its client is gone
                            continue
                        if isinstance(answer, Exception):
                            request.answer.set_exception(answer)
                        else:
                            request.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        for request in list(self._waiting):
            if request.answer.done():
                self._waiting.remove(request)
            elif not batch or (
                request.key == batch[0].key and sum(each.rows for each in (*batch, request)) <= self._max_rows
            ):
                self._waiting.remove(request)
                batch.append(request)
        return batch

    def _computed(self, batch: Sequence[_Waiting]) -> list[Arrays | Exception]:
        import numpy as np

        if len(batch) > 1:
            names, ends = batch[0].inputs, np.cumsum([each.rows for each in batch])
            together = {name: np.concatenate([each.inputs[name] for each in batch]) for name in names}
            outputs = self._tried(batch[0].key, together)
            if not isinstance(outputs, Exception) and all(value.shape[:1] == (ends[-1],) for value in outputs.values()):
                parts = {name: np.split(value, ends[:-1]) for name, value in outputs.items()}
                return [{name: part[number] for name, part in parts.items()} for number in range(len(batch))]
        # Alone, so that one that cannot be computed fails no other.
        return [self._tried(each.key, each.inputs) for each in batch]

    def _tried(self, key: Hashable, inputs: Arrays) -> Arrays | Exception:
        try:
            return self._compute(key, inputs)
        except Exception as error:  # of any library
            return error
