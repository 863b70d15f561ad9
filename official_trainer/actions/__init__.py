"""Code that is called at chosen steps: one file for each action, whose name is the `type` in YAML.

Owns: the actions, their contract (`action.py`), calling them (`schedule.py`). Does not own: triggers, the loop.

Each file has an `ActionConfig` with the fields of the section and the `Action` that it builds. A file is imported when
a config names it, and importing it does not import TensorFlow. A workspace's own `actions/` are found too.
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
