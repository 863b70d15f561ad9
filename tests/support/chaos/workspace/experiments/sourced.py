"""`sourced`: a run over any source of numbered examples, which writes down the examples of each step.

The loss is linear, and its gradient a mean of sixteen zeros and ones. So the weights are the same bits on any number of
replicas, and those of Adam depend on the order of the steps. Each step appends a line for each replica to
`<model_dir>.ids`: process, step, replica, numbers of the examples; the worker processes are in `<model_dir>.workers`.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle

from official_trainer import Task, register_config_factory, register_task_cls
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    TaskConfig,
    TrainerConfig,
    opt,
)
from official_trainer.lazy import keras, tf

BATCH, BITS = 16, 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourcedConfig(TaskConfig):
    """Numbers and the bits that they are written with.

    Attributes:
      pickled: the file of a source that no section describes.
    """

    pickled: str | None = None


@register_task_cls(SourcedConfig)
class SourcedTask(Task):
    """Adds up bits."""

    _log = _workers = None

    def build_model(self):
        bits = keras.Input([BITS])
        return keras.Model(bits, keras.layers.Dense(3, use_bias=False)(bits))

    def build_inputs(self, params, input_context=None):
        from tests.support.source_cases import pipeline

        source = params.source
        if self.task_config.pickled is not None:
            with open(self.task_config.pickled, "rb") as file:
                source = pickle.load(file)
        return pipeline(source, params, input_context).map(lambda example: example["id"])

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_sum(model_outputs, axis=1)

    def train_step(self, inputs, model, optimizer, metrics=None):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        tf.numpy_function(self._write_line, [optimizer.iterations, replica, inputs], [])
        bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(inputs[:, None], tf.range(BITS, dtype=tf.int64)), 1)
        return super().train_step((tf.cast(bits, tf.float32), inputs), model, optimizer, metrics)

    def _write_line(self, step, replica, numbers):
        if self._log is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._log, self._workers = (os.open(f"{self.logging_dir}.{kind}", flags) for kind in ("ids", "workers"))
        listed = ",".join(map(str, numbers))
        os.write(self._log, f"{os.getpid()} {step} {replica} {listed}\n".encode())  # so that a kill leaves no half line
        os.write(self._workers, "".join(f"{child.pid}\n" for child in multiprocessing.active_children()).encode())


@register_config_factory("sourced")
def sourced() -> ExperimentConfig:
    """Twenty-four steps with several checkpoints and summaries."""
    return ExperimentConfig(
        task=SourcedConfig(train_data=DataConfig(global_batch_size=BATCH, shuffle_buffer_size=12, workers=2)),
        trainer=TrainerConfig(
            train_steps=24, steps_per_loop=3, summary_interval=6, checkpoint_interval=4,
            max_to_keep=2, export=ExportConfig(at_end=False),
            optimizer_config=opt.adam(0.01),
        ),
    )  # fmt: skip
