"""The first trace of a step, in which layers and metrics create the variables that they create when they are called.

Owns: tracing it before anything is restored, so that checkpoints can hold all variables; its FLOPs. Does not own:
which layers wait for their first call (`tasks/variables.py`), and which metrics (`tasks/keras/`), the steps that run
(`train_steps.py`, `evaluation.py`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from official_trainer.engine.traces import batch_signature
from official_trainer.engine.train_iterator import Data
from official_trainer.lazy import tf
from official_trainer.tasks import export, random_streams, variables
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.attached import Attached, roots_of
from official_trainer.tasks.autograph import convert, do_not_convert, engine_function
from official_trainer.tasks.contract import metrics_of
from official_trainer.tasks.task import features_and_labels
from official_trainer.user_code import during

_WITHOUT_FORMULA = re.compile(r"Einsum|Conv3DBackprop|DepthwiseConv2dNativeBackprop|Xla|RNN|LSTM|GRU|PyFunc")
"""Operations whose FLOPs TensorFlow's profiler does not count."""


def build_all_layers(model: Any, task: Any, optimizer: Any, data: Data, *, compiled: bool = False) -> None:
    """Creates the variables that layers, optimizers and metrics create in their first call.

    Does nothing for a model and a task that have them all.

    Traces the task's step on a replica: its training step if there is an optimizer, else its evaluation step. The
    trace is never run, and updates nothing, so that the slots of the optimizer are created as for any other model.

    Without training, a model of tf_keras that has all variables and has not been called gets its `predict_step` traced:
    an export reads from it what it takes.

    Args:
      model: the model.
      task: its task.
      optimizer: of the training steps; None where only evaluations follow.
      data: what the step reads.
      compiled: whether the step gets the metrics of `compile`, too.
    """
    trains, attached = optimizer is not None, Attached(roots_of(task, (), model))
    lacks_variables = variables.has_unbuilt_layers(model) or (trains and attached.waits)
    optimizers = [optimizer, *attached.unbuilt_optimizers] if trains else []
    waits = not getattr(model, "inputs", None) and hasattr(model, "save_spec") and model.save_spec() is None
    if not lacks_variables and (trains or not waits):
        return
    of_model = kerases.of(model).metrics(model, compiled=compiled)
    metrics = [*metrics_of(task, model, training=trains), *of_model]
    # These metrics get their variables from `build_all_metrics`.
    replaced = [
        kerases.replace_method(metric, "update_state", _leave_out) for metric in metrics if kerases.waits(metric)
    ]

    def trace(name: str, step: Callable[..., Any]) -> None:
        _, updated = _trace(task, optimizers, data, name, functools.partial(step, model=model, metrics=metrics))
        for unbuilt, of_step in zip(optimizers[1:], updated[1:], strict=True):
            if of_step:
                kerases.of(unbuilt).build_slots(unbuilt, of_step)

    predict = functools.partial(_predict, task)
    if trains:
        trace("train_step", functools.partial(task.train_step, optimizer=optimizer))
    elif lacks_variables:
        try:
            trace("validation_step", task.validation_step)
        except NotImplementedError:  # a task of Model Garden that is not evaluated
            trace("predict_step", predict)
    else:
        trace("predict_step", predict)
    for take_back in replaced:
        take_back()


def build_all_metrics(metrics: Sequence[Any], model: Any, task: Any, optimizer: Any, data: Data) -> None:
    """Creates the variables that metrics create at their first use, as `build_all_layers` does for those of layers.

    Args:
      metrics: those of the step.
      model: the model.
      task: its task.
      optimizer: of the training step; None for the evaluation step.
      data: what the step reads, as for `build_all_layers`.
    """
    if not any(map(kerases.waits, metrics)):
        return
    name, step = "validation_step", task.validation_step
    if optimizer is not None:
        name, step = "train_step", functools.partial(task.train_step, optimizer=optimizer)
    step = functools.partial(step, model=model, metrics=metrics)
    _trace(
        task,
        [] if optimizer is None else [optimizer],
        data,
        name,
        step,
        around=functools.partial(kerases.creating, model),
    )


def traced_train_step(model: Any, task: Any, optimizer: Any, metrics: Sequence[Any], data: Data) -> tf.Graph:
    """Returns the graph of a training step on all replicas, forwards and backwards, without the update."""
    step = functools.partial(task.train_step, optimizer=optimizer, model=model, metrics=metrics)
    return _trace(task, [optimizer], data, "train_step", step)[0]


@do_not_convert
def _leave_out(*args: Any, **kwargs: Any) -> None:
    """Stands in for `update_state`."""


def _trace(
    task: Any,
    optimizers: Sequence[Any],
    data: Data,
    name: str,
    step: Callable[..., Any],
    *,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> tuple[tf.Graph, list[list[Any]]]:
    """Traces a step of a task, on each replica in the context `around()`; it is never run, and updates nothing.

    Returns:
      The graph, and the variables that each of the optimizers was to update.
    """

    @do_not_convert
    def on_replica(inputs: Any, step_of_task: Callable[..., Any]) -> None:
        notes = during("tracing the first step", task=task, method=name, batch=lambda: batch_signature(inputs))
        with random_streams.of_no_step(task), notes, around():
            step_of_task(inputs)

    def of_next(iterator: Any) -> None:
        # From an iterator, as in the steps that run: a step may take parts out of a batch, not out of an argument,
        # and an argument has vaguer shapes.
        batch = next(iterator)
        tf.distribute.get_strategy().run(functools.partial(on_replica, step_of_task=convert(step)), args=(batch,))

    with kerases.without_updates(optimizers) as updated:
        traced = tf.function(engine_function(of_next))
        graph = traced.get_concrete_function(tf.data.IteratorSpec(data.element_spec())).graph
    return graph, updated


@do_not_convert
def _predict(task: Any, inputs: Any, *, model: Any, metrics: Any) -> None:
    """Does what an export does with a batch."""
    del metrics
    features, labels = features_and_labels(inputs)
    convert(export.predict_step_of(task))(features, model, labels)


def flops_of_train_step(trainer: Any) -> int | None:
    """Returns the FLOPs of one training step on all replicas, forwards and backwards; None where they are not known.

    Traces a step that is never run, which takes about as long as the first step of a run. TensorFlow's profiler counts,
    and Model Garden's `try_count_flops` with it: it has formulas for products, convolutions and what runs element by
    element. It leaves out what stands in a function that the graph calls, such as a loop, and what has shapes that are
    known only once a step runs.
    """
    if trainer.context.workers is not None or trainer.context.dispatches or not trainer.process_group.is_alone:
        return None
    graph = traced_train_step(
        trainer.model, trainer.task, trainer.optimizer, trainer.train_metrics, trainer.train_iterator.builder
    )
    if any(_is_opaque(operation) for operation in graph.get_operations()):
        return None
    profiler = tf.compat.v1.profiler
    counted = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output()
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")  # the profiler's own call of a function that TensorFlow calls deprecated
    try:
        return profiler.profile(graph, options=counted.build()).total_float_ops or None
    finally:
        logger.setLevel(level)


def _is_opaque(operation: Any) -> bool:
    """Whether what an operation computes is left out of the count, or may be."""
    calls = any(value.func.name or value.list.func for value in operation.node_def.attr.values())
    has_shapes = all(output.shape.is_fully_defined() for output in operation.outputs)
    return calls or not has_shapes or _WITHOUT_FORMULA.search(operation.type) is not None
