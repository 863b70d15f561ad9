"""Microseconds per example of `inputs.from_source`: beside tf.data tuned by hand, Grain and PyTorch on the same files.

Owns: the files, which are made in a temporary folder, and a reader of each library for them. All yield batches of the
same shapes; each reader has as many threads or processes as there are cores, or none where that is quicker. Grain and
PyTorch shuffle all examples of an epoch, as ours does; tf.data does so for images and `.npy`, within 10,000 records or
rows for TFRecord and CSV, and within a row group for Parquet. Does not own: the tables (`report.py`).

Each is read as a training loop of its library does: tf.data in a function of TensorFlow, some steps in a call; ours in
one too, from blocks of steps where a pipeline offers them, as `Trainer` does; Grain and PyTorch in Python. All images
are decoded at half their size and resized with averages (antialias).

Run as a process of its own (`python -m benchmarks.data FILE --rounds=N`), because it imports TensorFlow. PyTorch's
worker processes import this module too, so TensorFlow is imported in functions.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.lazy import tf

OURS, TF_DATA, GRAIN, TORCH = "from_source", "tf.data, tuned by hand", "Grain", "PyTorch DataLoader"
BEST = "the best of the others"
AT_MOST = 1 / 0.9
CORES = os.cpu_count() or 1
SIDE, TOKENS, COLUMNS = 64, 512, 10
HALF = 2  # of the size of images is enough
LOOP = 20  # batches that TensorFlow reads in a call
WARM_BATCHES = 2 * LOOP


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much there is: examples, and of them those of a batch, and the batches that are timed."""

    examples: int
    batch: int
    batches: int


SIZES = {
    "images": Sizes(4_000, 32, 60),
    "Parquet": Sizes(400_000, 256, 800),
    "CSV": Sizes(200_000, 256, 800),
    "tokens in .npy": Sizes(100_000, 64, 2000),
    "tokens in ArrayRecord": Sizes(50_000, 64, 300),
    "tokens in TFRecord": Sizes(50_000, 64, 300),
}

Batches = Iterator[Any]
Read = Callable[[Path, Sizes], Any]
"""Returns a `tf.data.Dataset` of batches, or an iterator of them."""


def write(folder: Path, sizes: dict[str, Sizes]) -> None:
    """Writes all files below a folder."""
    import pyarrow
    from array_record.python import array_record_module
    from PIL import Image
    from pyarrow import csv, parquet

    random = np.random.RandomState(0)
    for number in range(sizes["images"].examples):
        path = folder / "images" / f"class_{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.randint(0, 255, (15, 20, 3), np.uint8)  # smooth, as a photograph is
        Image.fromarray(pixels).resize((320, 240)).save(path, quality=90)
    for kind in ("Parquet", "CSV"):
        rows = sizes[kind].examples
        columns = {f"x{number}": random.rand(rows).astype(np.float32) for number in range(COLUMNS)}
        table = pyarrow.table({**columns, "label": random.randint(0, 10, rows)})
        if kind == "CSV":
            csv.write_csv(table, folder / "rows.csv")
        else:
            parquet.write_table(table, folder / "rows.parquet", row_group_size=max(1, rows // 40))
    np.save(folder / "tokens.npy", random.randint(0, 50_000, (sizes["tokens in .npy"].examples, TOKENS), np.int32))
    writer = array_record_module.ArrayRecordWriter(str(folder / "tokens.array_record"), "group_size:1")
    for _ in range(sizes["tokens in ArrayRecord"].examples):
        writer.write(random.randint(0, 50_000, TOKENS, np.int32).tobytes())
    writer.close()
    with tf.io.TFRecordWriter(str(folder / "tokens.tfrecord")) as records:
        for _ in range(sizes["tokens in TFRecord"].examples):
            records.write(random.randint(0, 50_000, TOKENS, np.int32).tobytes())


def in_loops(dataset: Any) -> Batches:
    """Yields once for each batch of a dataset, which are read in a function of TensorFlow."""
    iterator = iter(dataset)

    @tf.function
    def read() -> None:
        for _ in tf.range(LOOP):
            next(iterator)

    while True:
        read()
        yield from range(LOOP)


# Ours.


def in_blocks(blocks: Any) -> Batches:
    """Yields the last batch of a call, once for each of them; they are taken from blocks as `Trainer` does."""

    @tf.function
    def run(block: Any, start: Any, stop: Any) -> Any:
        def batch(number: Any) -> Any:
            return tf.nest.map_structure(lambda part: part[number], block)

        return tf.while_loop(lambda i, _: i < stop, lambda i, _: (i + 1, batch(i)), (start, batch(start)))[1]

    for block in blocks:
        steps = len(tf.nest.flatten(block)[0])
        for start in range(0, steps, LOOP):
            stop = min(start + LOOP, steps)
            yield from itertools.repeat(run(block, tf.constant(start), tf.constant(stop)), stop - start)


def ours(type_: str, fields: Callable[[Path], dict[str, Any]], **options: Any) -> Read:
    """Returns a reader of a section's source."""

    def read(folder: Path, sizes: Sizes) -> Any:
        from official_trainer import inputs
        from official_trainer.config import DataConfig, SourceConfig

        source = SourceConfig.named(type_)(**fields(folder))
        params = DataConfig(global_batch_size=sizes.batch, is_training=True, shuffle_buffer_size=10_000)
        context = inputs.InputContext()
        batches = inputs.from_source(source, params, context, **options)
        blocks = context.blocks_of(batches)
        return batches if blocks is None else in_blocks(blocks)

    return read


def decoded(records: Any) -> Any:
    """Parses tokens, one record or a batch of them, with TensorFlow."""
    return tf.io.decode_raw(records, tf.int32, fixed_length=4 * TOKENS)


def decoded_batch(records: Any, seeds: Any) -> Any:
    """Parses a batch at once, as `transform_fn`."""
    del seeds
    return decoded(records)


# tf.data, as its guides say.


def tf_images(folder: Path, sizes: Sizes) -> Any:
    paths = sorted(str(path) for path in (folder / "images").glob("*/*"))
    labels = [int(Path(path).parent.name[-1]) for path in paths]

    def load(path: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, ratio=HALF)
        return tf.cast(tf.image.resize(image, [SIDE, SIDE], antialias=True), tf.uint8), label

    dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
    return dataset.map(load, tf.data.AUTOTUNE).batch(sizes.batch, drop_remainder=True).prefetch(2)


def tf_parquet(folder: Path, sizes: Sizes) -> Any:
    """TensorFlow reads no Parquet: pyarrow reads row groups, and the rows of each are shuffled."""
    from pyarrow import parquet

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


def tf_csv(folder: Path, sizes: Sizes) -> Any:
    return tf.data.experimental.make_csv_dataset(
        str(folder / "rows.csv"), sizes.batch, shuffle_buffer_size=10_000, num_parallel_reads=CORES
    )


def tf_npy(folder: Path, sizes: Sizes) -> Any:
    tokens = np.load(folder / "tokens.npy", mmap_mode="r")

    def load(indices: Any) -> Any:
        rows = tf.numpy_function(lambda found: np.asarray(tokens[found]), [indices], tf.int32)
        return tf.ensure_shape(rows, [None, TOKENS])

    order = tf.data.Dataset.range(len(tokens)).shuffle(len(tokens)).repeat().batch(sizes.batch)
    return order.map(load, tf.data.AUTOTUNE).prefetch(2)


def tf_records(folder: Path, sizes: Sizes) -> Any:
    dataset = tf.data.TFRecordDataset(str(folder / "tokens.tfrecord")).shuffle(10_000).repeat().batch(sizes.batch)
    return dataset.map(decoded, tf.data.AUTOTUNE).prefetch(2)


# Sources that Grain and PyTorch read, as their users write them.


class Images:
    """Images by their number."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(str(path) for path in (folder / "images").glob("*/*"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self._paths[index]) as image:
            image.draft(None, (image.width // HALF, image.height // HALF))
            resized = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.asarray(resized), int(Path(self._paths[index]).parent.name[-1])


class Rows:
    """Rows of a table in memory; many at once, which PyTorch asks for."""

    def __init__(self, folder: Path, *, kind: str) -> None:
        from pyarrow import csv, parquet

        path = folder / f"rows.{kind}"
        table = csv.read_csv(path) if kind == "csv" else parquet.read_table(path)
        self._columns = {name: table[name].to_numpy() for name in table.column_names}

    def __len__(self) -> int:
        return len(self._columns["label"])

    def __getitem__(self, index: int) -> Any:
        return {name: column[index] for name, column in self._columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return {name: column[indices] for name, column in self._columns.items()}


class Tokens:
    """Rows of a memory map."""

    def __init__(self, folder: Path) -> None:
        self._tokens = np.load(folder / "tokens.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Any:
        return np.array(self._tokens[index])

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self._tokens[indices]


class Records:
    """Records of an ArrayRecord file, by Grain's own source."""

    def __init__(self, folder: Path) -> None:
        import grain

        self._source = grain.sources.ArrayRecordDataSource(str(folder / "tokens.array_record"))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(self._source[index], np.int32)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return np.stack([np.frombuffer(record, np.int32) for record in self._source.__getitems__(indices)])


def of_grain(source: Callable[[Path], Any]) -> Read:
    """Returns Grain's reader: a shuffled `MapDataset`, read by threads."""

    def read(folder: Path, sizes: Sizes) -> Batches:
        import grain

        data = grain.MapDataset.source(source(folder)).seed(0).shuffle().repeat().batch(sizes.batch)
        return iter(data.to_iter_dataset(grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=2 * CORES)))

    return read


def of_torch(source: Callable[[Path], Any], *, workers: int = 0, whole: bool = True) -> Read:
    """Returns PyTorch's reader; `whole` says that the source returns batches."""

    def read(folder: Path, sizes: Sizes) -> Batches:
        from torch.utils import data

        options = {"num_workers": workers, "multiprocessing_context": "spawn"} if workers else {}
        collate = {"collate_fn": _as_tensors} if whole else {}
        loader = data.DataLoader(source(folder), sizes.batch, shuffle=True, drop_last=True, **options, **collate)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    return read


def _as_tensors(batch: Any) -> Any:
    import torch

    if isinstance(batch, dict):
        return {name: torch.from_numpy(column) for name, column in batch.items()}
    return torch.from_numpy(batch)


READERS: dict[str, dict[str, Read]] = {
    "images": {
        OURS: ours("images", lambda folder: {"folder": f"{folder}/images", "size": (SIDE, SIDE)}),
        TF_DATA: tf_images,
        GRAIN: of_grain(Images),
        TORCH: of_torch(Images, workers=CORES, whole=False),
    },
    "Parquet": {
        OURS: ours("parquet", lambda folder: {"files": f"{folder}/rows.parquet"}),
        TF_DATA: tf_parquet,
        GRAIN: of_grain(functools.partial(Rows, kind="parquet")),
        TORCH: of_torch(functools.partial(Rows, kind="parquet")),
    },
    "CSV": {
        OURS: ours("csv", lambda folder: {"files": f"{folder}/rows.csv"}),
        TF_DATA: tf_csv,
        GRAIN: of_grain(functools.partial(Rows, kind="csv")),
        TORCH: of_torch(functools.partial(Rows, kind="csv")),
    },
    "tokens in .npy": {
        OURS: ours("npy", lambda folder: {"files": {"tokens": f"{folder}/tokens.npy"}}),
        TF_DATA: tf_npy,
        GRAIN: of_grain(Tokens),
        TORCH: of_torch(Tokens),
    },
    "tokens in ArrayRecord": {
        OURS: ours(
            "array_record", lambda folder: {"files": f"{folder}/tokens.array_record"}, transform_fn=decoded_batch
        ),
        GRAIN: of_grain(Records),
        TORCH: of_torch(Records),
    },
    "tokens in TFRecord": {
        OURS: ours("tfrecord", lambda folder: {"files": f"{folder}/tokens.tfrecord"}, transform_fn=decoded_batch),
        TF_DATA: tf_records,
    },
}


def is_there(name: str) -> bool:
    """Whether the library of a reader is installed."""
    return name != TORCH or importlib.util.find_spec("torch") is not None


def microseconds(read: Read, folder: Path, sizes: Sizes) -> dict[str, float]:
    """Returns microseconds per example, after some batches."""
    found = read(folder, sizes)
    batches = in_loops(found) if isinstance(found, tf.data.Dataset) else found
    for _ in range(WARM_BATCHES):
        next(batches)
    start = time.perf_counter()
    for _ in range(sizes.batches):
        next(batches)
    return {"microseconds": 1e6 * (time.perf_counter() - start) / (sizes.batches * sizes.batch)}


def measure_all(num_rounds: int) -> dict[str, Any]:
    """Returns microseconds per example by kind of data and reader, round by round."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), SIZES)
        for kind, readers in READERS.items():
            variants = {
                name: functools.partial(microseconds, read, Path(folder), SIZES[kind])
                for name, read in readers.items()
                if is_there(name)
            }
            rounds.interleave(variants, 1)
            found[kind] = rounds.interleave(variants, num_rounds)["microseconds"]
    return found


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    if not is_there(TORCH):
        print(f"{TORCH}: not installed")
    measured = processes.results_of("benchmarks.data", num_rounds)
    return [
        Comparison(
            title=f"reading {kind}",
            unit="µs/example",
            digits=2,
            values={**values, BEST: _best(values)},
            baseline=OURS,
            targets=[Target(name=OURS, against=BEST, at_most=AT_MOST)],
        )
        for kind, values in measured.items()
    ]


def _best(values: dict[str, Sequence[float]]) -> list[float]:
    """Returns the values of the reader with the smallest median, of all but ours."""
    others = [each for name, each in values.items() if name != OURS]
    return list(min(others, key=np.median))


if __name__ == "__main__":
    # PyTorch's worker processes find its classes by the name of the module, which is not that of the command.
    processes.write_results(importlib.import_module("benchmarks.data").measure_all)
