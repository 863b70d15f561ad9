"""Traced steps and the outer loop.

Owns: the Trainer, its training and evaluation steps, and the order of events in a run. Does not own: files of a run
directory (`runs/`), the contents of a task (`tasks/`).
"""

from typing import TYPE_CHECKING

from official_trainer import lazy

if TYPE_CHECKING:
    from official_trainer.engine.loop import Loop
    from official_trainer.engine.trainer import Trainer
else:
    __getattr__ = lazy.face(
        __name__,
        {
            "Loop": "official_trainer.engine.loop",
            "Trainer": "official_trainer.engine.trainer",
        },
    )

__all__ = ["Loop", "Trainer"]
