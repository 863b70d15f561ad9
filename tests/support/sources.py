"""Sources of examples that tests read: one by one, in columns, in groups."""

import multiprocessing
import os
import signal

import numpy as np

from official_trainer.inputs import Source


class Numbers(Source):
    """Examples `{"id", "text"}`, whose `text` says their number."""

    def __init__(self, count, *, groups=(), bad=()):
        self._count, self.groups, self._bad = count, groups, bad

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        if index in self._bad:
            raise ValueError("its checksum is wrong")
        return {"id": index, "text": f"number {index}"}


class Columns(Numbers):
    """The same, many at once."""

    def take(self, indices):
        return {
            "id": np.asarray(indices, np.int64),
            "text": np.array([f"number {index}".encode() for index in indices], object),
        }


class Sequences(Source):
    """Examples `{"id", "tokens"}` of several lengths, whose tokens count from a thousand times the number."""

    def __init__(self, lengths, *, groups=(), bad=(), floats=(), first=0):
        self._lengths, self.groups, self._bad, self._floats, self._first = lengths, groups, bad, floats, first

    def __len__(self):
        return len(self._lengths)

    def __getitem__(self, index):
        if index in self._bad:
            raise ValueError("its checksum is wrong")
        number = self._first + index
        tokens = 1000 * number + np.arange(self._lengths[index])
        return {"id": number, "tokens": tokens.astype(float) if index in self._floats else tokens}


def kills_its_worker(example):
    """A transform that ends the worker process that reads example 21, as a machine without memory does."""
    if example["id"] == 21 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return example
