"""What it costs to begin at a later step: from building the training feed there to its first batch.

Owns: the pipelines compared, and the steps. Does not own: the tables (`report.py`).

The records of the file pipeline are so many that steps 1,000 and 1,000,000 lie at the same place of an epoch, because
that place is what its start depends on; the first and the last step of an epoch are shown beside them.

Run as a process of its own (`python -m benchmarks.resume FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import functools
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.config import schema
from official_trainer.lazy import keras, tf
from official_trainer.tasks.task import Task

BATCH = 64
EARLY, LATE = 1_000, 1_000_000
NUM_RECORDS = 99_900  # divides BATCH * (LATE - EARLY)
RECORD_BYTES = 784
NUM_FILES = 27
EPOCH_FIRST, EPOCH_LAST = 156_094, 157_653  # the first and the last whole batch of one epoch
FOREIGN_STEPS = (1_000, 11_000)

MEMORY, CACHED, RECORDS = "in-memory pipeline", "TFRecord pipeline, cache: true", "TFRecord pipeline"
SOURCE = "a source, read one by one"
FOREIGN = "a pipeline of one's own, read over"


class _FeedTask(Task):
    """A task of nothing but data."""

    def __init__(self, params: Any, kind: str) -> None:
        super().__init__(params)
        self._kind = kind
        self._images = np.zeros([NUM_RECORDS, RECORD_BYTES], np.uint8)

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.layers.InputLayer([RECORD_BYTES]), keras.layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        from official_trainer import inputs

        if self._kind == MEMORY:
            return inputs.from_arrays(self._images, params, input_context)
        if self._kind == SOURCE:
            return inputs.from_source(list(self._images), params, input_context)
        if self._kind == FOREIGN:  # nothing to decode, nothing to read: as cheap as such a pipeline gets
            return tf.data.Dataset.from_tensor_slices(self._images).shuffle(10_000).repeat().batch(BATCH)
        return inputs.from_tfrecords(
            params, input_context, parse_fn=lambda record: tf.io.decode_raw(record, tf.uint8, fixed_length=RECORD_BYTES)
        )


def build_trainer(kind: str, folder: str) -> Any:
    """Our Trainer over one of the pipelines."""
    from official_trainer.engine.trainer import Trainer

    data = schema.DataConfig(
        global_batch_size=BATCH,
        is_training=True,
        input_path=f"{folder}/*.tfrecord" if kind in (RECORDS, CACHED) else "",
        cache=kind == CACHED,
    )
    config = schema.ExperimentConfig(task=schema.TaskConfig(train_data=data))
    task = _FeedTask(config.task, kind)
    return Trainer(config, task, task.build_model(), keras.optimizers.legacy.SGD(), evaluate=False)


def write_records(folder: str) -> None:
    """Writes the files: image `i` holds its number."""
    for number in range(NUM_FILES):
        with tf.io.TFRecordWriter(f"{folder}/{number:02}.tfrecord") as writer:
            for record in range(NUM_RECORDS // NUM_FILES):
                writer.write(record.to_bytes(2, "little") * (RECORD_BYTES // 2))


def first_batch(trainer: Any, step: int) -> dict[str, float]:
    """Returns what it takes from building the feed at `step` to the batch of that step."""
    trainer.train_iterator.reset()
    trainer.global_step.assign(step)
    start = time.perf_counter()
    next(trainer.train_iterator.iterator())
    return {"seconds": time.perf_counter() - start}


def measure_all(num_rounds: int) -> dict[str, Any]:
    """Returns seconds by variant, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        write_records(folder)
        trainers = {kind: build_trainer(kind, folder) for kind in (MEMORY, CACHED, RECORDS, SOURCE, FOREIGN)}
        cases = [(kind, step) for kind in (MEMORY, CACHED, RECORDS) for step in (EARLY, LATE)]
        cases += [(RECORDS, step) for step in (0, EPOCH_FIRST, EPOCH_LAST)]
        cases += [(SOURCE, step) for step in (0, LATE)]
        cases += [(FOREIGN, step) for step in (0, *FOREIGN_STEPS)]
        variants = {name(*case): functools.partial(first_batch, trainers[case[0]], case[1]) for case in cases}
        rounds.interleave(variants, 1)
        return rounds.interleave(variants, num_rounds)["seconds"]


def name(kind: str, step: int) -> str:
    """Returns how a measurement is called."""
    places = {EPOCH_FIRST: ", where an epoch begins", EPOCH_LAST: ", where it ends"}
    return f"{kind}, step {step:,}{places.get(step, '')}"


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    seconds = processes.results_of("benchmarks.resume", num_rounds)
    few, many = (seconds[name(FOREIGN, step)] for step in FOREIGN_STEPS)
    skipped = FOREIGN_STEPS[1] - FOREIGN_STEPS[0]
    return [
        Comparison(
            title="to the first batch",
            unit="ms",
            digits=1,
            quartiles=True,
            values={name: [1e3 * value for value in values] for name, values in seconds.items()},
            targets=[
                Target(name=name(kind, LATE), against=name(kind, early), at_most=1.1)
                for kind, early in ((MEMORY, EARLY), (CACHED, EARLY), (RECORDS, EARLY), (SOURCE, 0))
            ],
        ),
        Comparison(
            title="reading over batches",
            unit="µs/batch",
            quartiles=True,
            values={FOREIGN: [1e6 * (b - a) / skipped for a, b in zip(few, many, strict=True)]},
        ),
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
