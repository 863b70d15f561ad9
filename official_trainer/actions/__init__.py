"""What can happen at a step, one file each; the file's name is the `type` in YAML.

Owns: the actions. Does not own: their contract (`action.py`), when they are called (`schedule.py`).

Each file has an `ActionConfig` with the fields of the section and the `Action` that it builds. Nothing here is imported
until a config names it, and no file imports TensorFlow when it is. A workspace's own `actions/` is looked at too.
"""

from typing import TYPE_CHECKING

from official_trainer import lazy

if TYPE_CHECKING:
    from official_trainer.actions.action import Action, CallAt, Rollback, Run, Save, Stop
else:
    __getattr__ = lazy.face(
        __name__,
        {
            "Action": "official_trainer.actions.action",
            "CallAt": "official_trainer.actions.action",
            "Rollback": "official_trainer.actions.action",
            "Run": "official_trainer.actions.action",
            "Save": "official_trainer.actions.action",
            "Stop": "official_trainer.actions.action",
        },
    )

__all__ = ["Action", "CallAt", "Rollback", "Run", "Save", "Stop"]
