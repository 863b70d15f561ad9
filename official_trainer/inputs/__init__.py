"""Inputs: arrays, TFRecord files and TFDS as batches that start at any step.

Owns: which example is in which batch, for any number of replicas and hosts, and the messages about bad data.
Does not own: devices (`distributed/strategy.py`), the loop over batches (`engine/train_iterator.py`, `engine/loop.py`).

    order.py ──► arrays.py            order: a pure function of (seed, epoch, position), so a restart costs nothing
        └──────► records.py ──► tfds.py
    context.py   the contract with a task's build_inputs   files.py   record files, and what is wrong with them
"""

from official_trainer.inputs.arrays import from_arrays
from official_trainer.inputs.context import (
    BatchSizeError,
    DataError,
    InputContext,
    call_build_inputs,
    check_element_structure,
    with_training_flag,
)
from official_trainer.inputs.order import skip, stack_windows, without_tuning
from official_trainer.inputs.records import from_tfrecords
from official_trainer.inputs.tfds import explain_data_error, from_tfds

__all__ = [
    "BatchSizeError",
    "DataError",
    "InputContext",
    "call_build_inputs",
    "check_element_structure",
    "explain_data_error",
    "from_arrays",
    "from_tfds",
    "from_tfrecords",
    "skip",
    "stack_windows",
    "with_training_flag",
    "without_tuning",
]
