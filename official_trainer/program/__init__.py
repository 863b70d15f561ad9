"""Keras's compile and fit, GoMLX's loop and Model Garden's driver function, on the engine that runs experiments.

Owns: Keras's methods, how a call becomes a Task and a config of this engine, and hooks of a program. Does not own: a
second loop, a second Trainer, a second way to save.

    program.py          the methods and the meaning of their arguments; async_methods.py: calls in an event
                        loop; saving.py: a program read from a file
      ├─► settings.py       the sections of an experiment's config that a program takes
      └─► compiled_model.py one Trainer for each `compile`, one call at a time
            ├─► data.py         arrays, datasets, generators as batches, from any batch on; parts for replicas
            │     └─► rows.py       the rows of dense, ragged and sparse arrays
            ├─► trainer.py      Keras's own pieces as the steps of a Task; evaluations that call callbacks
            │     └─► rewards.py    what is maximised, as metrics of the model
            ├─► callbacks.py    Keras's callbacks, in Keras's order, as an action
            │     └─► epochs.py     epochs as ranges of steps
            └─► checkpoint.py   the callback that keeps named checkpoints, and reading them back

    loop.py             GoMLX's loop: calls of so many steps, and hooks

    run_experiment.py   Model Garden's driver function
"""

from typing import Any

import lazy_loader

from official_trainer.lazy import deferring_idle_keras

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    with deferring_idle_keras():
        return _get(name)
