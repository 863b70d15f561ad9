"""`sequences`: a small model of tokens, over packed parts that are mixed, or over a mixture of a config.

Copied into a workspace that the tests make. Each training step appends one line a replica to `<model_dir>.ids`:
process, step, replica, and the tokens that it saw.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from typing import Any, Literal

import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig, opt
from official_trainer.lazy import keras, tf

VOCABULARY = 64


def sentences(count: int, first: int) -> list[dict[str, Any]]:
    """Returns examples whose tokens, and how many, follow from their number."""
    return [
        {"id": number, "tokens": [1 + (number * 7 + place) % (VOCABULARY - 1) for place in range(1 + number * 5 % 29)]}
        for number in range(first, first + count)
    ]


def padded(example: dict[str, Any]) -> dict[str, Any]:
    """Returns an example whose tokens are as many as those of every other."""
    return {**example, "tokens": example["tokens"] + [0] * (32 - len(example["tokens"]))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequencesConfig(TaskConfig):
    """Sequences.

    Attributes:
      way: whether two parts are packed and then mixed, or the examples of `source` are padded.
    """

    way: Literal["packed", "mixed"] = "packed"


@register_task_cls(SequencesConfig)
class SequencesTask(Task):
    """Predicts each token from itself."""

    _log: int | None = None

    def build_model(self):
        return keras.Sequential(
            [
                keras.Input([None, VOCABULARY]),
                keras.layers.Dense(8),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(VOCABULARY),
            ]
        )

    def build_inputs(self, params, input_context=None):
        if self.task_config.way == "mixed":
            return inputs.from_source(params.source, params, input_context, transforms=[padded])
        parts = {
            "short": (inputs.Mapped(inputs.Packed(sentences(90, 0), 32), lambda row: {**row, "id": 0}), 2),
            "long": (inputs.Mapped(inputs.Packed(sentences(200, 100), 32), lambda row: {**row, "id": 1}), 1),
        }
        return inputs.from_source(inputs.Mixture(parts), params, input_context)

    def train_step(self, batch, model, optimizer, metrics=None):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        if not self.logging_dir.endswith("xla"):  # XLA compiles no Python
            tf.numpy_function(self._write_line, [optimizer.iterations, replica, batch["id"], batch["tokens"]], [])
        tokens = tf.cast(batch["tokens"], tf.int32)
        return super().train_step((tf.one_hot(tokens, VOCABULARY), tokens), model, optimizer, metrics)

    def validation_step(self, batch, model, metrics=None):
        tokens = tf.cast(batch["tokens"], tf.int32)
        return super().validation_step((tf.one_hot(tokens, VOCABULARY), tokens), model, metrics)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(losses * tf.cast(labels > 0, losses.dtype))

    def _write_line(self, step, replica, numbers, tokens):
        if self._log is None:
            self._log = os.open(f"{self.logging_dir}.ids", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        listed = ",".join(map(str, numbers))
        line = f"{os.getpid()} {step} {replica} {zlib.crc32(np.ascontiguousarray(tokens).tobytes())} {listed}"
        os.write(self._log, f"{line} {tokens.shape[1]}\n".encode())  # one call, so that a kill leaves no half line


@register_config_factory("sequences")
def sequences() -> ExperimentConfig:
    """Forty-eight steps over sequences."""
    return ExperimentConfig(
        task=SequencesConfig(
            train_data=DataConfig(global_batch_size=8), validation_data=DataConfig(global_batch_size=8)
        ),
        trainer=TrainerConfig(
            train_steps=48, steps_per_loop=7, summary_interval=6, checkpoint_interval=6, validation_interval=24,
            optimizer_config=opt.adam(0.01),
        ),
    )  # fmt: skip
