"""Compile and fit: Keras's program on the engine that runs experiments.

Owns: Keras's words for it, and how a call becomes a Task and a config of this engine. Does not own: a second loop, a
second Trainer, a second way to save.

    program.py      what the methods and their arguments mean
      └─► engine.py   one Trainer for all calls, and the loop for each
            ├─► data.py       arrays, datasets, generators as batches from any batch on
            ├─► task.py       Keras's own pieces as the steps of a Task
            │     └─► rewards.py  what rewards add to a step
            │           ├─► reward_function.py  one reward: by name, of tensors, in Python
            │           └─► estimators.py       what trains those without a gradient
            ├─► callbacks.py  Keras's callbacks, in Keras's order, as an action
            │     └─► monitored_modes.py  those that look at a reward maximise it
            └─► trainer.py    evaluations that callbacks hear of
"""

from official_trainer.program.data import ArgumentError
from official_trainer.program.estimators import EvolutionStrategies, ScoreFunction
from official_trainer.program.program import NotCompiledError, Program
from official_trainer.program.reward_function import PythonReward, RewardError

__all__ = [
    "ArgumentError",
    "EvolutionStrategies",
    "NotCompiledError",
    "Program",
    "PythonReward",
    "RewardError",
    "ScoreFunction",
]
