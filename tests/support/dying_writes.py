"""Checkpoints of one weight, written by a process that dies at a write."""

import tensorflow as tf

from official_trainer import files


class Died(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def evaluated(step):
    return tf.train.Checkpoint(global_step=tf.Variable(step, dtype=tf.int64), model=tf.Variable(float(step)))


def saved_weight(directory, step):
    return float(tf.train.load_variable(f"{directory}/ckpt-{step}", "model/.ATTRIBUTES/VARIABLE_VALUE"))


class Writes:
    """Counts what changes the disk, and dies at the n-th."""

    CALLS = ("write_bytes_atomically", "remove", "rename")

    def __init__(self, monkeypatch, die_at):
        self.count, self._die_at = 0, die_at
        for name in self.CALLS:
            monkeypatch.setattr(files, name, self._counted(getattr(files, name)))
        write = tf.train.Checkpoint.write
        monkeypatch.setattr(tf.train.Checkpoint, "write", self._counted(write))

    def _counted(self, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.count == self._die_at:
                raise Died
            return call(*args, **kwargs)

        return counted
