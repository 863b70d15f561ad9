"""Compile and fit: Keras's program on the engine that runs experiments.

Owns: Keras's words for it, and how a call becomes a Task and a config of this engine. Does not own: a second loop, a
second Trainer, a second way to save.

    program.py      what the methods and their arguments mean
      ├─► compiled.py   what `compile` says
      ├─► settings.py   what sections of an experiment's config mean beside them
      └─► engine.py   one Trainer for all calls, and the loop for each; experiment.py of an experiment
            ├─► data.py       arrays, datasets, generators as batches from any batch on
            ├─► parts.py      a batch as parts of replicas
            ├─► task.py       Keras's own pieces as the steps of a Task
            │     └─► rewards.py  what rewards add to a step
            │           ├─► reward_function.py  one reward: by name, of tensors, in Python
            │           └─► estimators.py       what trains those without a gradient
            ├─► callbacks.py  Keras's callbacks, in Keras's order, as an action
            │     └─► monitored_modes.py  those that look at a reward maximise it
            ├─► checkpoint.py the callback that keeps checkpoints under names; loading.py reads them back
            ├─► turns.py      calls from an event loop, each in a thread
            ├─► trainer.py    evaluations that callbacks hear of
            └─► prediction.py outputs for all examples
"""

from official_trainer.program.checkpoint import ProgramCheckpoint
from official_trainer.program.compiled import NotCompiledError
from official_trainer.program.data import ArgumentError
from official_trainer.program.engine import BusyError
from official_trainer.program.estimators import EvolutionStrategies, ScoreFunction
from official_trainer.program.program import Program
from official_trainer.program.reward_function import PythonReward, RewardError

__all__ = [
    "ArgumentError",
    "BusyError",
    "EvolutionStrategies",
    "NotCompiledError",
    "Program",
    "ProgramCheckpoint",
    "PythonReward",
    "RewardError",
    "ScoreFunction",
]
