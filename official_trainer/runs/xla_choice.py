"""What `runtime.enable_xla: auto` means for a run, once a trial has found it.

Owns: the choice in the manifests of checkpoints and in `run.json`, and its line. Does not own: the trial
(`xla_trial.py`). Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_trainer.checkpoints import manifest
from official_trainer.runs.resume import config_changes
from official_trainer.tracking.record import read_run

KEY = "xla"
"""Where a manifest's metadata, and `run.json`, hold the choice."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlaChoice:
    """A choice.

    Attributes:
      enables: whether XLA compiles the training steps of the run.
      found: why.
    """

    enables: bool
    found: str

    def __str__(self) -> str:
        return f"runtime.enable_xla: auto is {str(self.enables).lower()} for this run: {self.found}"

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> XlaChoice | None:
        """Returns the choice in the metadata of a manifest, or in `run.json`; None if there is none."""
        found = record.get(KEY)
        return None if found is None else cls(enables=found["enables"], found=found["found"])

    def as_dict(self) -> dict[str, Any]:
        """Returns what stands under `KEY`."""
        return dataclasses.asdict(self)


def of_run(model_dir: str) -> XlaChoice | None:
    """Returns the choice that a run goes on with: of its checkpoint, or of a start that has not saved one yet."""
    step = config_changes.newest_step(model_dir)
    if step is not None:
        return XlaChoice.of_record(manifest.read(model_dir, step).metadata)
    return XlaChoice.of_record(read_run(model_dir) or {})
