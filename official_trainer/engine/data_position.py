"""Where the training data stands: a few counters that every checkpoint holds.

Owns: which batch comes at a step, after epochs that ended, batches left out, and changes of the batch size. Does not
own: the batches (`train_iterator.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from official_trainer.lazy import tf


class DataPosition(tf.Module):
    """Where the training data stands, so that a resumed run reads what an unbroken one would."""

    def __init__(self) -> None:
        super().__init__(name="data_position")

        def counter(name: str) -> tf.Variable:
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            return tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=first, name=name)

        self.epoch = counter("epoch")
        self.epoch_start_step = counter("epoch_start_step")
        self.skipped_steps = counter("skipped_steps")

    def values(self) -> list[int]:
        """Returns what tells where the data stands."""
        return [int(counter.numpy()) for counter in self._counters]

    def go_to(self, values: Sequence[int]) -> None:
        """Takes what `values` returned elsewhere."""
        for counter, value in zip(self._counters, values, strict=True):
            counter.assign(value)

    @property
    def _counters(self) -> tuple[tf.Variable, ...]:
        return self.epoch, self.epoch_start_step, self.skipped_steps

    def start_step(self, global_step: int) -> int:
        """Returns how many batches of the iterator lie before the batch of `global_step`."""
        return global_step + int(self.skipped_steps.numpy()) - int(self.epoch_start_step.numpy())

    def change_batch_size(self, global_step: int, before: int, after: int) -> None:
        """Goes on with the same examples in batches of another size; less than one batch is left out."""
        done = (global_step + int(self.skipped_steps.numpy())) * before
        epoch_start = int(self.epoch_start_step.numpy()) * before
        # A position is counted from the epoch's start; both are rounded up, so nothing is seen twice.
        self.epoch_start_step.assign(-(-epoch_start // after))
        self.skipped_steps.assign(-(-(done - epoch_start) // after) + int(self.epoch_start_step.numpy()) - global_step)

    def begin_epoch(self, global_step: int) -> None:
        """Marks that the data ended and that its first batch is the batch of `global_step`."""
        self.epoch.assign_add(1)
        self.epoch_start_step.assign(global_step + int(self.skipped_steps.numpy()))
