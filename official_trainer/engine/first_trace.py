"""The first trace of a step, in which layers create the variables that they create when they are called.

Owns: tracing it before anything is restored, so that checkpoints can hold all variables. Does not own: which layers
wait for their first call (`tasks/variables.py`), the steps that run (`train_steps.py`, `evaluation.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from official_trainer.engine.traces import batch_signature
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import random_streams, variables
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.returned import metrics_of
from official_trainer.user_code import during


def build_all_layers(model: Any, task: Any, optimizer: Any, data: Any, *, compiled: bool = False) -> None:
    """Creates the variables that layers create in their first call; does nothing for a model that has them all.

    Without training, a model of tf_keras is also called that has not been: an export reads from it what it takes.

    Traces the task's step on a replica: its training step if there is an optimizer, else its evaluation step. The
    trace is never run, and updates nothing, so that the slots of the optimizer are created as for any other model.

    Args:
      model: the model.
      task: its task.
      optimizer: of the training steps; None where only evaluations follow.
      data: what the step reads: a dataset, which may be distributed, or the `DatasetBuilder` of one.
      compiled: whether the step gets the metrics of `compile`, too.
    """
    trains = optimizer is not None
    waits = not getattr(model, "inputs", None) and hasattr(model, "save_spec") and model.save_spec() is None
    if (trains or not waits) and not variables.has_unbuilt_layers(model):
        return
    of_model = kerases.of(model).metrics(model, compiled=compiled)
    metrics = [*metrics_of(task, model, training=trains), *of_model]
    step = functools.partial(task.train_step, optimizer=optimizer) if trains else task.validation_step

    @do_not_convert
    def on_replica(inputs: Any, step_of_task: Callable[..., Any]) -> None:
        name = "train_step" if trains else "validation_step"
        notes = during("tracing the first step", task=task, method=name, batch=lambda: batch_signature(inputs))
        with random_streams.of_no_step(task), notes:
            step_of_task(inputs, model=model, metrics=metrics)

    @do_not_convert
    def trace(iterator: Any) -> None:
        # From an iterator, as in the steps that run: a step may take parts out of a batch, not out of an argument, and
        # an argument has vaguer shapes.
        batch = next(iterator)
        tf.distribute.get_strategy().run(functools.partial(on_replica, step_of_task=convert(step)), args=(batch,))

    if isinstance(data, DatasetBuilder):
        spec = data.element_spec()
    else:  # there is no public way to ask a distributed dataset for what a replica gets
        spec = tf.nest.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], data.element_spec)
    with kerases.without_updates(optimizer):
        tf.function(trace).get_concrete_function(tf.data.IteratorSpec(spec))
