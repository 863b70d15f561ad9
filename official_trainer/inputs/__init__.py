"""Inputs: arrays, TFRecord files and TFDS as batches that start at any step.

Owns: which example is in which batch, for any number of replicas and hosts, and the messages about bad data.
Does not own: devices (`distributed/strategy.py`), the loop over batches (`engine/train_iterator.py`, `engine/loop.py`).

    order.py ──► arrays.py            order: a pure function of (seed, epoch, position), so a restart costs nothing
        └──────► records.py ──► tfds.py
    context.py   the contract with a task's build_inputs   files.py   record files, and what is wrong with them
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
