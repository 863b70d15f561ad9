"""Checkpoints that Model Garden's driver wrote, which have no manifest: found, told from ours, never changed.

Owns: by which names and contents they are known. Does not own: reading their values (`restore.py`), which checkpoint of
a directory is used (`directory.py`, `best.py`).

The driver saves `ckpt-STEP`, its best checkpoint `best_ckpt-N`, where `N` counts saves, and beside that `info.json`,
which holds the step and the results. TensorFlow writes an index when all values are on the disk, so one that is there
belongs to a whole checkpoint, unless something has damaged it since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.lazy import tf

INFO = "info.json"
"""The file beside a best checkpoint, which holds the results of its evaluation."""

LACKS = ("training/*", "state/*")
"""Patterns of variables that ours hold and theirs do not.

Means and counters since the last summary, which start again, the place in the data, which the step gives, and what is
attached to a Task beside the model and its optimizer.
"""

BEST_STEP = "best_ckpt_global_step"
"""Where that file holds the step."""

_BEST_NAME = re.compile(r"best_ckpt-(\d+)\.index")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def step_of(prefix: str) -> int | None:
    """Returns the global step of a checkpoint that Model Garden's driver wrote; None if another program wrote it.

    Only TensorFlow's CheckpointManager counts its saves in the checkpoint, and only ours hold `training`.

    Raises:
      StorageError: the storage fails, so it is not known.
    """
    if not files.is_file(f"{prefix}.index"):  # TensorFlow would wait for ever at a named pipe
        return None
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        keys = reader.get_variable_to_shape_map()
        if f"save_counter{_VALUE}" not in keys or any(key.startswith("training/") for key in keys):
            return None
        return int(reader.get_tensor(f"global_step{_VALUE}"))
    except (tf.errors.OpError, ValueError, IndexError) as error:
        if (fault := files.as_storage_error(error, prefix)) is not None:
            raise fault from error
        return None  # it is damaged, or holds no step


def prefix_of(directory: str, step: int) -> str | None:
    """Returns the prefix of the checkpoint of `step` that the driver wrote: `ckpt-STEP`, or the best of a directory."""
    prefix = files.join(directory, f"ckpt-{step}")
    if step_of(prefix) == step:
        return prefix
    prefix_and_step = best(directory)
    return prefix_and_step[0] if prefix_and_step is not None and prefix_and_step[1] == step else None


def wrote(prefix: str) -> bool:
    """Whether the driver wrote a checkpoint, under the name that it gives it."""
    step = step_of(prefix)
    return step is not None and (is_best(prefix) or files.base_name(prefix) == f"ckpt-{step}")


def best(directory: str) -> tuple[str, int, dict[str, Any]] | None:
    """Returns prefix, step and results of the best checkpoint that the driver keeps in a directory; None without one.

    The results have no checkpoint if the driver was killed between the writing of both.
    """
    path = files.join(directory, INFO)
    names = [match for name in files.list_dir(directory) if (match := _BEST_NAME.fullmatch(name))]
    if not names or not files.exists(path):
        return None
    results = files.read_json(path)
    step = results.pop(BEST_STEP, None)
    for match in sorted(names, key=lambda match: -int(match[1])):
        prefix = files.join(directory, match[0].removesuffix(".index"))
        if step_of(prefix) == step:
            return prefix, int(step), results
    return None


def info(step: int, results: Mapping[str, Any]) -> str:
    """Returns the text of the file beside a best checkpoint."""
    return json.dumps({**results, BEST_STEP: float(step)}, indent=4) + "\n"


def lacking_data(prefix: str) -> str | None:
    """Returns the message if data files of a checkpoint are missing, by the count that each name holds; else None."""
    directory, _, name = prefix.rpartition("/")
    data_files = [file_name for file_name in files.list_dir(directory or ".") if file_name.startswith(f"{name}.data-")]
    wanted = int(data_files[0].rpartition("-")[2]) if data_files else 1
    return None if len(data_files) >= wanted else f"{name} has {len(data_files)} of {wanted} data files"


def is_best(prefix: str) -> bool:
    """Whether a checkpoint is named as a best one, whose weights are averages already if the run averages them."""
    return files.base_name(prefix).startswith("best_ckpt-")
