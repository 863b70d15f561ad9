"""Sources of examples that tests read: one by one, in columns, in groups."""

import numpy as np

from official_trainer.inputs import Source


class Numbers(Source):
    """Examples `{"id", "text"}`, whose `text` says their number."""

    def __init__(self, count, *, groups=()):
        self._count, self.groups = count, groups

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return {"id": index, "text": f"number {index}"}


class Columns(Numbers):
    """The same, many at once."""

    def take(self, indices):
        return {
            "id": np.asarray(indices, np.int64),
            "text": np.array([f"number {index}".encode() for index in indices], object),
        }
