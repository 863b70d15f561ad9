"""What it costs to begin at a later step: from building a pipeline there to its first batch.

The records are so many that both steps lie at the same place of an epoch, because that place is what a start in files
depends on: those of the epoch that come before are read over as raw bytes.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import harness
from benchmarks.harness import Promise
from official_trainer import inputs
from official_trainer.config import DataConfig

BATCH = 64
EARLY, LATE = 1_000, 1_000_000
NUM_RECORDS, NUM_FILES, RECORD_BYTES = 99_900, 27, 784  # NUM_RECORDS divides BATCH * (LATE - EARLY)

ARRAYS, RECORDS, SOURCE = "from_arrays (ms)", "from_tfrecords (ms)", "from_source (ms)"
AT_LATE, AT_EARLY = f"first batch, step {LATE:,}", f"first batch, step {EARLY:,}"

ROUNDS = 15
PROMISES = tuple(Promise(name, AT_LATE, AT_EARLY, 1.1) for name in (ARRAYS, RECORDS, SOURCE))


def write_records(folder: str, count: int) -> None:
    for number in range(NUM_FILES):
        with tf.io.TFRecordWriter(f"{folder}/{number:02}.tfrecord") as writer:
            for _ in range(count // NUM_FILES):
                writer.write(bytes(RECORD_BYTES))


def first_batch(name: str, build: Callable[..., Any], step: int) -> dict[str, float]:
    start = time.perf_counter()
    next(iter(build(input_context=inputs.InputContext(start_step=step))))
    return {name: 1e3 * (time.perf_counter() - start)}


def measure(num_rounds: int, quick: bool) -> harness.Values:
    count = 27 * 37 if quick else NUM_RECORDS
    images = np.zeros([count, RECORD_BYTES], np.uint8)
    params = DataConfig(global_batch_size=BATCH, is_training=True)
    parse = functools.partial(tf.io.decode_raw, out_type=tf.uint8, fixed_length=RECORD_BYTES)
    values: harness.Values = {}
    with tempfile.TemporaryDirectory() as folder:
        write_records(folder, count)
        files = params.replace(input_path=f"{folder}/*.tfrecord")
        pipelines = {
            ARRAYS: functools.partial(inputs.from_arrays, images, params),
            RECORDS: functools.partial(inputs.from_tfrecords, files, parse_fn=parse),
            SOURCE: functools.partial(inputs.from_source, list(images), params),
        }
        for name, build in pipelines.items():
            variants = {
                variant: functools.partial(first_batch, name, build, step)
                for variant, step in {AT_LATE: LATE, AT_EARLY: EARLY}.items()
            }
            harness.in_turns(variants, 1)  # reads the files once
            values |= harness.in_turns(variants, num_rounds)
    return values
