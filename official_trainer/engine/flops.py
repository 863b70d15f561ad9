"""The FLOPs of a training step, as TensorFlow's profiler counts them, and Model Garden's `try_count_flops` with it.

Owns: tracing a step for it, and whether the number can be trusted. Does not own: who tells of it (`runs/check.py`).

The profiler has formulas for products, convolutions and what runs element by element. It leaves out what stands in a
function that the graph calls, such as a loop, and what has shapes that are known only once a step runs.
"""

from __future__ import annotations

import re
from typing import Any

from official_trainer.engine.first_trace import traced_train_step
from official_trainer.lazy import tf

_WITHOUT_FORMULA = re.compile(r"Einsum|Conv3DBackprop|DepthwiseConv2dNativeBackprop|Xla|RNN|LSTM|GRU|PyFunc")


def of_train_step(trainer: Any) -> int | None:
    """Returns the FLOPs of one training step on all replicas, forwards and backwards; None where they are not known.

    Traces a step that is never run, which takes about as long as the first step of a run.
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
