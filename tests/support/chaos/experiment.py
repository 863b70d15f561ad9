"""`digits_chaos`: the digits CNN with one of everything that has state, which writes down what it trains on.

Copied, beside `digits.py`, into a workspace that the tests make. Each training step appends one line a replica to
`<model_dir>.ids`: process, step, replica, checksum of the (augmented) images, numbers of the examples.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from typing import Any, Literal

import numpy as np

from experiments.digits import CNNConfig, DigitsConfig, DigitsModel, DigitsTask, convolutions, experiment, load_digits
from official_trainer import inputs
from official_trainer.actions.replica_integrity import ReplicaIntegrityConfig
from official_trainer.config import DataConfig, ExperimentConfig, When
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf
from official_trainer.tasks import registry

NUM_EXAMPLES = 352
"""An epoch is 22 batches of 16."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChaosConfig(DigitsConfig):
    """Digits, from several kinds of source.

    Attributes:
      source: `arrays` in memory, `records` in files, or a plain finite `stream` that cannot start at a step.
    """

    source: Literal["arrays", "records", "stream"] = "arrays"


@registry.register_task_cls(ChaosConfig)
class ChaosTask(DigitsTask):
    """Digits with noise, batch norm, dropout, augmentation and shuffling."""

    _log: int | None = None

    def build_model(self) -> keras.Model:
        params = self.task_config.model.get()
        image = keras.Input([8, 8, 1], name="image")
        x = keras.layers.BatchNormalization()(keras.layers.GaussianNoise(0.1)(image))
        x = keras.layers.Dropout(params.dropout)(convolutions(x, params))
        return keras.Model(image, keras.layers.Dense(10, dtype="float32", name="logits")(x))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        if not params.is_training:
            return super().build_inputs(params, input_context)
        if self.task_config.source == "records":
            return inputs.from_tfrecords(params, input_context, parse_fn=parse, transform_fn=darken)
        if self.task_config.source == "arrays":
            return inputs.from_arrays(numbered_digits(), params, input_context, transform_fn=darken)
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = tf.data.Dataset.from_tensor_slices(numbered_digits()).shuffle(50)
        return dataset.batch(size, drop_remainder=True).with_options(options)

    def train_step(self, batch: Any, model: Any, optimizer: Any, metrics: Any = None) -> dict[str, Any]:
        (image, numbers), label = batch
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        tf.numpy_function(self._write_line, [optimizer.iterations, replica, image, numbers], [])
        return super().train_step((image, label), model, optimizer, metrics)

    def _write_line(self, step: np.ndarray, replica: np.ndarray, image: np.ndarray, numbers: np.ndarray) -> None:
        if self._log is None:
            self._log = os.open(f"{self.logging_dir}.ids", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        listed = ",".join(map(str, numbers))
        line = f"{os.getpid()} {step} {replica} {zlib.crc32(image.tobytes())} {listed}\n"
        os.write(self._log, line.encode())  # one call, so that a kill leaves no half line


def numbered_digits() -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Returns ((images, numbers of the examples), labels)."""
    (images, labels), _ = load_digits(0.8)
    return (images[:NUM_EXAMPLES], np.arange(NUM_EXAMPLES)), labels[:NUM_EXAMPLES]


def write_records(pattern: str) -> None:
    """Writes the examples to three TFRecord files."""
    (images, numbers), labels = numbered_digits()
    for part in range(3):
        with tf.io.TFRecordWriter(pattern.replace("*", str(part))) as writer:
            for i in numbers[part::3]:
                writer.write(images[i].tobytes() + labels[i].tobytes() + numbers[i].tobytes())


def parse(record: tf.Tensor) -> Any:
    image = tf.reshape(tf.io.decode_raw(tf.strings.substr(record, 0, 256), tf.float32), [8, 8, 1])
    label = tf.io.decode_raw(tf.strings.substr(record, 256, 4), tf.int32)[0]
    return (image, tf.io.decode_raw(tf.strings.substr(record, 260, 8), tf.int64)[0]), label


def darken(batch: Any, seeds: tf.Tensor) -> Any:
    """Augments by stateless random numbers: every batch has a brightness of its own."""
    (image, numbers), label = batch
    return (image * tf.random.stateless_uniform([], seeds[0], 0.5, 1.0), numbers), label


@registry.register_config_factory("digits_chaos")
def digits_chaos() -> ExperimentConfig:
    """Forty-eight steps with every kind of event, at intervals that do not coincide."""
    model = DigitsModel(type="cnn", cnn=CNNConfig(filters=(4,), hidden=8, dropout=0.4))
    base = experiment(model, train_steps=200, learning_rate=1e-2)
    task = ChaosConfig(
        model=model,
        held_out=0.8,
        train_data=DataConfig(global_batch_size=16, shuffle_buffer_size=100),
        validation_data=DataConfig(global_batch_size=720),
    )
    optimizer = base.trainer.optimizer_config.replace(ema=opt.EMAConfig(average_decay=0.9), warmup=opt.WarmupConfig())
    trainer = base.trainer.replace(
        train_steps=48, steps_per_loop=7, summary_interval=5, checkpoint_interval=6, validation_interval=26,
        max_to_keep=2, on_data_end="repeat", optimizer_config=optimizer,
        actions=(ReplicaIntegrityConfig(when=When(every=4)),),
    )  # fmt: skip
    return base.replace(task=task, trainer=trainer)
