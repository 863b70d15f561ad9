"""The values of a checkpoint at one moment, held so that they can be written while training goes on.

Owns: taking them, and writing them as the files that `tf.train.Checkpoint.write` makes. Does not own: when, or what
makes the files count (`store.py`).

Values are read once. On a CPU this copies nothing: TensorFlow's variables copy on write while somebody holds an older
value, so the copying is done by the step that changes a variable. Values on other devices are copied to the host.
"""

from __future__ import annotations

from typing import Any

from official_trainer.lazy import load, tf


class Snapshot:
    """What `checkpoint` holds now.

    The grouping of tensors by object is TensorFlow's own, through the calls that `Checkpoint.write` makes: there is no
    public way to take values and write them later.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        by_object, _, registered, _ = checkpoint._saver._gather_serialized_tensors()
        for owner, tensors in by_object.items():
            by_object[owner] = {key: _held(value) for key, value in tensors.items()}
        saving = load("tensorflow.python.checkpoint.functional_saver")
        self._saver = saving.MultiDeviceSaver(by_object, registered)

    def write(self, prefix: str) -> None:
        """Writes `<prefix>.index` and `<prefix>.data-…`; any thread may call it."""
        tf.io.gfile.makedirs(prefix.rpartition("/")[0] or ".")
        with tf.device("CPU:0"):
            self._saver.save(tf.constant(prefix))


def _held(value: Any) -> Any:
    """Returns tensors in place of what would be read when it is written: by slice where a variable is partitioned."""
    if isinstance(value, dict):
        return {part: _held(inner) for part, inner in value.items()}
    if hasattr(value, "tensor"):  # TensorFlow's SaveSpec: reads the variable when asked
        with tf.device(value.device):
            value = value.tensor
    with tf.device("CPU:0"):
        return tf.identity(value)
