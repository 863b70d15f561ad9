"""How the random numbers of a run are drawn on several replicas: recorded, so that a run goes on as it has begun.

Owns: the record in a checkpoint's manifest, and which way a run directory asks for. Does not own: the draws
(`tasks/batch_draws.py`).
"""

from __future__ import annotations

import contextlib
from typing import Literal

from official_trainer import files
from official_trainer.checkpoints import manifest

KEY = "draws"
"""Where a manifest's metadata holds `Way`; not there in checkpoints of earlier versions, which are `by_replica`."""

Way = Literal["by_batch", "by_replica"]
"""`by_batch`: replicas take slices of one draw for the global batch. `by_replica`: each draws for itself."""


def way_of(model_dir: str) -> Way:
    """Returns how a run draws: as its newest checkpoint says; in slices if it has none, or one of Model Garden's."""
    steps = manifest.committed_steps(model_dir) if model_dir and files.exists(model_dir) else ()
    for step in reversed(steps):
        with contextlib.suppress(manifest.UnreadableManifestError):  # it is deleted meanwhile
            found = manifest.read(model_dir, step)
            return found.metadata.get(KEY, "by_replica" if found.files else "by_batch")
    return "by_batch"
