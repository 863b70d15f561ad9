"""Reading the same files by `inputs` and by tf.data tuned by hand, both in a Trainer whose step does nothing.

Ours shuffles all examples of an epoch and starts at any step. tf.data shuffles arrays as well, TFRecord and CSV within
10,000 examples, and Parquet, which it does not read by itself, within a row group.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
import tf_keras
from pyarrow import csv, parquet

from benchmarks import harness
from benchmarks.harness import Promise
from official_trainer import Task, inputs
from official_trainer.config import DataConfig, ExperimentConfig, SourceConfig, TaskConfig, TrainerConfig
from official_trainer.engine.trainer import Trainer

OURS, TF_DATA = "inputs", "tf.data, tuned by hand"
ARRAYS, CSV = "from_arrays, 784 bytes (µs/example)", "CSV, 11 columns (µs/example)"
PARQUET, RECORDS = "Parquet, 11 columns (µs/example)", "TFRecord, 512 tokens (µs/example)"

ROUNDS = 7
PROMISES = (
    Promise(ARRAYS, OURS, TF_DATA, 1.1),
    Promise(RECORDS, OURS, TF_DATA, 1.1),
    Promise(CSV, OURS, TF_DATA, 1.1),
    Promise(PARQUET, OURS, TF_DATA, 1.1),
)

TOKENS, COLUMNS = 512, 10
WINDOW_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Examples that there are, and of a batch."""

    examples: int
    batch: int


SIZES = {ARRAYS: Sizes(60_000, 256), CSV: Sizes(200_000, 256), PARQUET: Sizes(400_000, 256), RECORDS: Sizes(50_000, 64)}


def write(folder: Path, sizes: dict[str, Sizes]) -> None:
    random = np.random.RandomState(0)
    for name in (CSV, PARQUET):
        count = sizes[name].examples
        columns = {f"x{number}": random.rand(count).astype(np.float32) for number in range(COLUMNS)}
        table = pyarrow.table({**columns, "label": random.randint(0, 10, count)})
        if name == CSV:
            csv.write_csv(table, folder / "rows.csv")
        else:
            parquet.write_table(table, folder / "rows.parquet", row_group_size=max(1, count // 40))
    with tf.io.TFRecordWriter(str(folder / "tokens.tfrecord")) as records:
        for _ in range(sizes[RECORDS].examples):
            records.write(random.randint(0, 50_000, TOKENS, np.int32).tobytes())


def decoded(records: Any) -> Any:
    """Parses tokens, one record or a batch of them."""
    return tf.io.decode_raw(records, tf.int32, fixed_length=4 * TOKENS)


@functools.cache
def images(count: int) -> Any:
    return np.random.RandomState(0).randint(0, 256, [count, 784], np.uint8)


# Ours.


def our_arrays(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    return inputs.from_arrays(images(sizes.examples), params, context)


def our_csv(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    return inputs.from_source(SourceConfig.named("csv")(files=f"{folder}/rows.csv"), params, context)


def our_parquet(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    return inputs.from_source(SourceConfig.named("parquet")(files=f"{folder}/rows.parquet"), params, context)


def our_records(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    source = SourceConfig.named("tfrecord")(files=f"{folder}/tokens.tfrecord")
    return inputs.from_source(source, params, context, transform_fn=lambda records, seeds: decoded(records))


# tf.data, as its guides say.


def tf_arrays(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(images(sizes.examples)).shuffle(sizes.examples).repeat()
    return dataset.batch(sizes.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def tf_csv(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    return tf.data.experimental.make_csv_dataset(
        str(folder / "rows.csv"), sizes.batch, shuffle_buffer_size=10_000, num_parallel_reads=os.cpu_count()
    )


def tf_parquet(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    path = str(folder / "rows.parquet")
    names = parquet.read_schema(path).names

    def group(number: Any) -> list[Any]:
        table = parquet.ParquetFile(path).read_row_group(int(number))
        order = np.random.permutation(len(table))
        return [table[name].to_numpy()[order] for name in names]

    def load(number: Any) -> Any:
        columns = tf.numpy_function(group, [number], [tf.float32] * COLUMNS + [tf.int64])
        return {name: tf.ensure_shape(column, [None]) for name, column in zip(names, columns, strict=True)}

    groups = parquet.ParquetFile(path).num_row_groups
    dataset = tf.data.Dataset.range(groups).shuffle(groups).repeat().map(load, tf.data.AUTOTUNE)
    return dataset.rebatch(sizes.batch, drop_remainder=True).prefetch(2)


def tf_records(folder: Path, sizes: Sizes, params: DataConfig, context: Any) -> Any:
    dataset = tf.data.TFRecordDataset(str(folder / "tokens.tfrecord")).shuffle(10_000).repeat().batch(sizes.batch)
    return dataset.map(decoded, tf.data.AUTOTUNE).prefetch(2)


READERS: dict[str, dict[str, Callable[..., Any]]] = {
    ARRAYS: {OURS: our_arrays, TF_DATA: tf_arrays},
    CSV: {OURS: our_csv, TF_DATA: tf_csv},
    PARQUET: {OURS: our_parquet, TF_DATA: tf_parquet},
    RECORDS: {OURS: our_records, TF_DATA: tf_records},
}


class ReadingTask(Task):
    """Reads, and computes nothing."""

    def __init__(self, params: Any, read: Callable[..., Any]) -> None:
        super().__init__(params)
        self._read = read

    def build_model(self) -> tf_keras.Model:
        return tf_keras.Sequential([tf_keras.layers.InputLayer([1]), tf_keras.layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return self._read(params, input_context)

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> dict[str, Any]:
        optimizer.iterations.assign_add(1)
        return {self.loss: tf.cast(tf.size(tf.nest.flatten(inputs)[0]), tf.float32)}


def microseconds(name: str, side: str, folder: Path, sizes: Sizes) -> dict[str, float]:
    """Returns what an example took, after a window that traces and one that starts threads."""
    gc.collect()  # the pipeline before
    data = DataConfig(global_batch_size=sizes.batch, is_training=True, shuffle_buffer_size=10_000)
    config = ExperimentConfig(task=TaskConfig(train_data=data), trainer=TrainerConfig(steps_per_loop=WINDOW_STEPS))
    task = ReadingTask(config.task, functools.partial(READERS[name][side], folder, sizes))
    trainer = Trainer(config, task, task.build_model(), tf_keras.optimizers.legacy.SGD(), evaluate=False)
    num_windows = max(1, min(8, sizes.examples // (sizes.batch * WINDOW_STEPS)))
    for _ in range(2):
        trainer.train(tf.constant(WINDOW_STEPS))
    start = time.perf_counter()
    for _ in range(num_windows):
        trainer.train(tf.constant(WINDOW_STEPS))
    return {name: 1e6 * (time.perf_counter() - start) / (num_windows * WINDOW_STEPS * sizes.batch)}


def measure(num_rounds: int, quick: bool) -> harness.Values:
    sizes = dict.fromkeys(SIZES, Sizes(512, 8)) if quick else SIZES
    values: harness.Values = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        write(folder, sizes)
        for name in READERS:
            variants = {
                side: functools.partial(microseconds, name, side, folder, sizes[name]) for side in READERS[name]
            }
            values |= harness.in_turns(variants, num_rounds)
    return values
