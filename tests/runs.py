"""Reading what runs leave behind, and what two of them have in common, bit for bit."""

import tensorflow as tf

from official_trainer.manifest import committed_steps
from official_trainer.tracking.jsonl import read_rows


def values(model_dir, step):
    """Returns every value of a checkpoint by its key."""
    reader = tf.train.load_checkpoint(f"{model_dir}/ckpt-{step}")
    names = [name for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name]
    return {name: reader.get_tensor(name) for name in names}


def rows(model_dir):
    """Returns the rows of `metrics.jsonl` without their times."""
    return [{k: v for k, v in row.items() if k != "time"} for row in read_rows(f"{model_dir}/metrics.jsonl")]


def differences(ours, theirs):
    """Returns what differs between the newest checkpoints, and between the rows, of two runs."""
    steps = max(committed_steps(ours)), max(committed_steps(theirs))
    if steps[0] != steps[1]:
        return [f"newest checkpoint: {steps[0]}, not {steps[1]}"]
    left, right = values(ours, steps[0]), values(theirs, steps[1])
    found = [name for name in sorted(left.keys() | right.keys()) if _bits(left, name) != _bits(right, name)]
    ours, theirs = rows(ours), rows(theirs)
    found += [f"metrics.jsonl: {row}" for row in ours if row not in theirs]
    found += [f"metrics.jsonl: not {row}" for row in theirs if row not in ours]
    if not found and ours != theirs:
        found.append("metrics.jsonl: other order, or rows that are there twice")
    return found


def _bits(values, name):
    return values[name].tobytes() if name in values else None
