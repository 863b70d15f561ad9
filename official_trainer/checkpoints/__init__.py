"""Saving, verifying, restoring and retaining checkpoints.

Owns: the files of a checkpoint, and which of them exist. Does not own: what is in a checkpoint (`engine/trainer.py`),
or when one is saved (`engine/loop_saving.py`).
"""

from typing import TYPE_CHECKING

from official_trainer import lazy

if TYPE_CHECKING:
    from official_trainer.checkpoints.best import BestCheckpoint
    from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
    from official_trainer.checkpoints.store import CheckpointStore, SaveError
else:
    __getattr__ = lazy.face(
        __name__,
        {
            "BestCheckpoint": "official_trainer.checkpoints.best",
            "CheckpointError": "official_trainer.checkpoints.manifest",
            "CheckpointStore": "official_trainer.checkpoints.store",
            "SaveError": "official_trainer.checkpoints.store",
            "committed_steps": "official_trainer.checkpoints.manifest",
        },
    )

__all__ = ["BestCheckpoint", "CheckpointError", "CheckpointStore", "SaveError", "committed_steps"]
