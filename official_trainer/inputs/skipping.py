"""Reading over the batches before a step, for pipelines that cannot start there by themselves.

Owns: `skip`, for plain and distributed datasets. Does not own: when that is needed (`engine/train_iterator.py`).
"""

from __future__ import annotations

import logging
from typing import Any

from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)


def skip(dataset: Any, num_elements: int) -> Any:
    """Returns `dataset` from element `num_elements` on; reads over the elements before, and says so."""
    if num_elements == 0:
        return dataset
    _logger.warning("reading over %d batches up to the restored step: this pipeline cannot start there", num_elements)
    if isinstance(dataset, tf.data.Dataset):
        return dataset.skip(num_elements)
    return _SkippedDistributed(dataset, num_elements)


class _SkippedDistributed:
    """A distributed dataset whose iterator has been moved on; TensorFlow offers no `skip` for these."""

    def __init__(self, dataset: Any, num_elements: int) -> None:
        self._dataset = dataset
        self._num_elements = num_elements

    def __iter__(self) -> Any:
        iterator = iter(self._dataset)
        for _ in range(self._num_elements):
            next(iterator)
        return iterator
