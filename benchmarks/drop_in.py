"""An experiment of Model Garden by its name, ours beside Model Garden's own command: `resnet_imagenet`, made small.

Owns: both commands, with the same YAML file, flags and TFRecords; and reading from their TensorBoard files when each
loop ended. Does not own: data (`tests/support/garden/data.py`) and overlay (`configs/garden/resnet.yaml`).
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target

OURS, GARDEN = "python train.py", "python -m official.vision.train"
DRIVERS = {OURS: ["train.py"], GARDEN: ["-m", "official.vision.train"]}

LOOP_STEPS = 10
NUM_LOOPS = 25
WARM_LOOPS = 5
BATCH = 8


def compare(num_rounds: int) -> list[Comparison]:
    """Measures both commands in every round, after one round that warms the file cache."""
    with tempfile.TemporaryDirectory() as folder:
        processes.run([sys.executable, "-m", "tests.support.garden.data", folder, "images"])
        variants = {name: functools.partial(run, argv, folder) for name, argv in DRIVERS.items()}
        rounds.interleave(variants, 1)
        results = rounds.interleave(variants, num_rounds)
    titles = {"start": ("from the start to the end of the first loop", "s", 1, 0.85), "step": ("a step", "ms", 1, 1.05)}
    return [
        Comparison(
            title=f"resnet_imagenet, {title}",
            unit=unit,
            digits=digits,
            values=results[quantity],
            baseline=GARDEN,
            targets=[Target(name=OURS, against=GARDEN, at_most=at_most)],
        )
        for quantity, (title, unit, digits, at_most) in titles.items()
    ]


def run(argv: Sequence[str], data: str) -> dict[str, float]:
    """Trains in a fresh directory and returns seconds until the first loop's end, and milliseconds of a later step.

    Raises:
      RuntimeError: the command failed, or not every loop was written down.
    """
    overrides = {
        "task.train_data.input_path": f"{data}/images/train*",
        "task.validation_data.input_path": f"{data}/images/validation*",
        "task.train_data.global_batch_size": BATCH,
        "trainer.train_steps": LOOP_STEPS * NUM_LOOPS,
        "trainer.steps_per_loop": LOOP_STEPS,
        "trainer.summary_interval": LOOP_STEPS,
        "trainer.checkpoint_interval": LOOP_STEPS * NUM_LOOPS,
    }
    flags = [
        "--experiment=resnet_imagenet",
        "--mode=train",
        "--config_file=configs/garden/resnet.yaml",
        f"--params_override={','.join(f'{name}={value}' for name, value in overrides.items())}",
    ]
    with tempfile.TemporaryDirectory() as model_dir:
        start = time.time()
        processes.run([sys.executable, *argv, *flags, f"--model_dir={model_dir}"])
        ends = _loop_ends(Path(model_dir, "train"))
    expected = [LOOP_STEPS * number for number in range(1, NUM_LOOPS + 1)]
    if list(ends) != expected:
        raise RuntimeError(f"summaries of steps {list(ends)} were written, expected {expected}")
    first, last = LOOP_STEPS * WARM_LOOPS, LOOP_STEPS * NUM_LOOPS
    return {"start": ends[LOOP_STEPS] - start, "step": (ends[last] - ends[first]) / (last - first) * 1e3}


def _loop_ends(folder: Path) -> dict[int, float]:
    """Returns when the first number of each step's summary was made, in seconds since 1970."""
    ends: dict[int, float] = {}
    for record in itertools.chain.from_iterable(map(_records, folder.glob("events.out.tfevents.*"))):
        event = Event.FromString(record)
        if event.step and event.HasField("summary"):
            ends[event.step] = min(event.wall_time, ends.get(event.step, math.inf))
    return dict(sorted(ends.items()))


def _records(path: Path) -> Iterator[bytes]:
    """Yields the records of a TFRecord file: length, its checksum, data, the data's checksum."""
    content, place = path.read_bytes(), 0
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        yield content[place + 12 : place + 12 + size]
        place += size + 16
