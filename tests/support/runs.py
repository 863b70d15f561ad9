"""Reading what runs leave behind, and what two of them have in common, bit for bit."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.tracking.jsonl import read_rows


def values(model_dir, step):
    """Returns every value of a checkpoint by its key."""
    return _read(f"{model_dir}/ckpt-{step}")


def bits(prefix):
    """Returns every value below a prefix, of a checkpoint or an export, as bytes by its key."""
    return {name: np.asarray(value).tobytes() for name, value in _read(prefix).items()}


def _read(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name}


def contents(directory):
    """Returns the bytes of each file below a folder by its path there, but for hidden ones."""
    paths = [path for path in Path(directory).rglob("[!.]*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def assert_same_checkpoint(left, right, step):
    """The checkpoints of a step of two runs hold the same bits."""
    a, b = bits(f"{left}/ckpt-{step}"), bits(f"{right}/ckpt-{step}")
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []


def rows(model_dir):
    """Returns the rows of `metrics.jsonl` without their times, and without those about time."""
    found = [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] != "time"]
    return [{k: v for k, v in row.items() if k != "time"} for row in found]


def differences(ours, theirs):
    """Returns what differs between the newest checkpoints, and between the rows, of two runs."""
    steps = max(committed_steps(ours)), max(committed_steps(theirs))
    if steps[0] != steps[1]:
        return [f"newest checkpoint: {steps[0]}, not {steps[1]}"]
    left, right = bits(f"{ours}/ckpt-{steps[0]}"), bits(f"{theirs}/ckpt-{steps[1]}")
    found = [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]
    ours, theirs = rows(ours), rows(theirs)
    found += [f"metrics.jsonl: {row}" for row in ours if row not in theirs]
    found += [f"metrics.jsonl: not {row}" for row in theirs if row not in ours]
    if not found and ours != theirs:
        found.append("metrics.jsonl: other order, or rows that are there twice")
    return found
