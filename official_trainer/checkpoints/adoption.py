"""Checkpoints that Model Garden's driver has left in a run directory: made ours, so that its run goes on here.

Owns: which of them can be continued, and what ours hold that they do not.
Does not own: the manifest that makes them ours (`store.py`), reading values (`restore.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.store import LACKS_KEY, commit
from official_trainer.lazy import tf

_STEP = "global_step/.ATTRIBUTES/VARIABLE_VALUE"
_LACKS = ("training/*",)
"""Means and counters since the last summary, which begin afresh, and the place in the data, which is the step's."""


def adopt(directory: str, metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Writes a manifest for each checkpoint that TensorFlow's pointer names and that has none; returns their steps.

    The pointer is written after a checkpoint is whole. One whose name is not the step that it holds stays as it is.

    Args:
      directory: the run directory.
      metadata: about the run, for the manifests.
    """
    state = tf.train.get_checkpoint_state(directory)
    found = manifest.parts(directory)
    steps = [step for prefix in _prefixes(state) if (step := _step_of(prefix)) is not None]
    adopted = tuple(step for step in steps if _is_whole(found.get(step, {})))
    for step in adopted:
        commit(directory, step, metadata={**metadata, LACKS_KEY: _LACKS}, extra={})
    return adopted


def _prefixes(state: Any) -> list[str]:
    return [] if state is None else list(state.all_model_checkpoint_paths)


def _step_of(prefix: str) -> int | None:
    """Returns the global step that a checkpoint holds, if it is named by it."""
    if not files.exists(f"{prefix}.index"):
        return None
    reader = tf.train.load_checkpoint(prefix)
    if not reader.has_tensor(_STEP):
        return None
    step = int(reader.get_tensor(_STEP))
    return step if files.base_name(prefix) == f"ckpt-{step}" else None


def _is_whole(parts: Mapping[str, str]) -> bool:
    return ".index" in parts.values() and not {".manifest.json", ".saving"} & set(parts.values())
