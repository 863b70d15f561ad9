"""Predictions into shards: which batches are computed, in which order, and where the rows end.

Owns: that order. Does not own: computing a batch (`engine/inference.py`), the files (`shards.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from official_trainer.engine.inference import Columns
from official_trainer.inputs import DataError
from official_trainer.runs.predictions.shards import PredictionShards


def predict_into(
    shards: PredictionShards,
    batches_from: Callable[[int], Iterator[tuple[int, Columns]]],
    *,
    max_rows: int | None = None,
    on_batch: Callable[[], object] = lambda: None,
) -> None:
    """Writes predictions until they end: those that `shards` wants, of which an earlier process wrote none.

        shards = PredictionShards("predictions", source={"weights": "…"}, format="npy")
        inference = Inference(task, model)
        predict_into(shards, lambda first: inference.batches(dataset.skip(first), first))

    Args:
      shards: where they go.
      batches_from: gives what `Inference.batches` yields from a batch number on; later calls want later batches.
      max_rows: how many there are, for data that does not end there; None for all.
      on_batch: called after each batch.

    Raises:
      DataError: there is no example.
    """
    while not shards.is_done and _predict_from_there(shards, batches_from, max_rows, on_batch):
        pass
    if shards.is_empty:
        raise DataError("there is nothing to predict: the data holds no example; check input_path")
    shards.finish()


def _predict_from_there(
    shards: PredictionShards,
    batches_from: Callable[[int], Iterator[tuple[int, Columns]]],
    max_rows: int | None,
    on_batch: Callable[[], object],
) -> bool:
    """Writes predictions from the row that is wanted next; returns whether others are wanted behind a gap."""
    position = shards.position
    batches = batches_from(position.batch)
    for number, columns in _until(max_rows, batches, shards.next_row - position.row):
        shards.add(number, columns)
        on_batch()
        if shards.is_done or shards.position.batch > number + 1:
            return True
    return False


def _until(max_rows: int | None, batches: Iterator[tuple[int, Columns]], seen: int) -> Iterator[tuple[int, Columns]]:
    """Yields batches up to row number `max_rows`; `seen` rows are in those before."""
    while max_rows is None or seen < max_rows:
        if (found := next(batches, None)) is None:
            return
        number, columns = found
        left = None if max_rows is None else max_rows - seen
        seen += len(next(iter(columns.values())))
        yield number, {name: values[:left] for name, values in columns.items()}
