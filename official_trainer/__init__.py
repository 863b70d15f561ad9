"""official-trainer: experiments in the style of TensorFlow Model Garden, with nothing lost on the way.

    train.py / official-trainer <verb>
         │ flags
         ▼
    cli/ ──► config/ (layers → one typed, frozen ExperimentConfig)      tasks/registry.py ◄── experiments/*.py
         │
         ▼
    runs/       refuses what it can, then imports TensorFlow; one module for each mode
         │
         ├── build.py builds, in this order:
         │     distributed/   RuntimeConfig → tf.distribute.Strategy
         │     tasks/         what is learned                        ◄── experiments/<family>.py
         │     engine/        traced training and evaluation steps
         │     checkpoints/   save, verify, restore, retain
         │     tracking/      console, metrics.jsonl, TensorBoard, run.json, …
         │     actions/       what happens at a step
         ▼
    engine/loop.py   restore → [ train window → summary → check finite → actions → save → evaluate ]* → export

The names below are what experiments and programs need most. Each is imported when it is first used, so importing this
package imports nothing else.
"""

from typing import TYPE_CHECKING

from official_trainer import lazy

if TYPE_CHECKING:
    from official_trainer.actions.action import Action
    from official_trainer.program import Program
    from official_trainer.runs.run_experiment import run_experiment
    from official_trainer.tasks import publish, random_streams, registry
    from official_trainer.tasks.multi_task.task import MultiTask
    from official_trainer.tasks.registry import register_config_factory, register_task_cls
    from official_trainer.tasks.task import Task
    from official_trainer.tracking import Tracker
else:
    __getattr__ = lazy.face(
        __name__,
        {
            "Action": "official_trainer.actions.action",
            "MultiTask": "official_trainer.tasks.multi_task.task",
            "Program": "official_trainer.program",
            "Task": "official_trainer.tasks.task",
            "Tracker": "official_trainer.tracking",
            "publish": "official_trainer.tasks.publish",
            "random_streams": "official_trainer.tasks.random_streams",
            "register_config_factory": "official_trainer.tasks.registry",
            "register_task_cls": "official_trainer.tasks.registry",
            "registry": "official_trainer.tasks.registry",
            "run_experiment": "official_trainer.runs.run_experiment",
        },
    )

__all__ = [
    "Action",
    "MultiTask",
    "Program",
    "Task",
    "Tracker",
    "publish",
    "random_streams",
    "register_config_factory",
    "register_task_cls",
    "registry",
    "run_experiment",
]
