"""TensorFlow's stateful random operations, drawn from a key instead of hidden state.

Owns: which operations, what stands for each of them, and the same for the functions of an input pipeline.
Does not own: where keys come from in a step (`random_streams.py`), seeds of whole pipelines
(`engine/train_iterator.py`).

`tf.random.uniform` and its like count up a state inside the running program, which no checkpoint holds, and in a
parallel `Dataset.map` whoever comes first draws first. Model Garden draws like that in its augmentations, stochastic
depth and samplers of boxes. Inside `keyed`, such a draw is a function of a key and of its place in the code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer.lazy import load, tf


class _Here(threading.local):
    keys: _Keys | None = None


_here = _Here()


class _Keys:
    """The keys of one trace: a new one for each draw, in the order of the code."""

    def __init__(self, key_of: Callable[[int], tf.Tensor]) -> None:
        self._key_of = key_of
        self._graph = _graph()
        self._drawn = 0

    def reach_here(self) -> bool:
        """Whether a draw here happens once for each key: not in a loop of its own, nor in a function used elsewhere."""
        branch = load("tensorflow.python.ops.control_flow_v2_func_graphs").CondBranchFuncGraph
        graph = _graph()
        while graph is not self._graph and isinstance(graph, branch):
            graph = graph.outer_graph
        return graph is self._graph

    def next(self) -> tf.Tensor:
        self._drawn += 1
        return self._key_of(self._drawn - 1)


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def keyed(key_of: Callable[[int], tf.Tensor]) -> Iterator[None]:
    """Draws from keys what is traced in a `with` block, in this thread.

    Args:
      key_of: gives the key, int64 [2], of the draw with a number, counted from 0 in the order of the code.
    """
    _install()
    outer, _here.keys = _here.keys, _Keys(key_of)
    try:
        yield
    finally:
        _here.keys = outer


@contextlib.contextmanager
def of_pipeline(seed: int) -> Iterator[None]:
    """For a `with` block that builds a pipeline: it gives the same elements whenever it is built again.

    A parallel `Dataset.map` whose function draws gets a map before it that draws a key for each element, in their
    order, and draws from that; it stays parallel. One that cannot, because it draws in a loop, runs in order. Python's
    `random`, from which Model Garden takes the order of files, starts from `seed`, and goes on as before afterwards.
    """
    before, original = random.getstate(), tf.data.Dataset.map
    random.seed(seed)
    tf.data.Dataset.map = functools.partialmethod(_map, original)
    try:
        yield
    finally:
        tf.data.Dataset.map = original
        random.setstate(before)


def _map(self: Any, original: Any, map_func: Any, num_parallel_calls: Any = None, *args: Any, **options: Any) -> Any:
    mapped = original(self, map_func, num_parallel_calls, *args, **options)
    if num_parallel_calls is None or not _draws(mapped):
        return mapped

    def with_key(*element: Any) -> Any:
        return tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64), element

    def from_key(key: tf.Tensor, element: Any) -> Any:
        with keyed(lambda number: key + number * _STRIDE):
            return map_func(*element)

    mapped = original(original(self, with_key), from_key, num_parallel_calls, *args, **options)
    return original(self, map_func) if _draws(mapped) else mapped


_STRIDE = 1_000_003  # far apart, so that keys which a stateless operation makes of these differ as well


def _draws(mapped: Any) -> bool:
    """Whether the function of a mapped dataset draws from state; operations that do have two seeds."""
    definitions = [function.function.graph.as_graph_def() for function in mapped._functions()]
    nodes = [node for graph in definitions for node in graph.node]
    nodes += [node for graph in definitions for function in graph.library.function for node in function.node_def]
    return any("seed2" in node.attr for node in nodes)


def _uniform_int(key: Any, shape: Any, minval: Any, maxval: Any) -> Any:
    return tf.random.stateless_uniform(shape, key, minval, maxval, dtype=tf.convert_to_tensor(minval).dtype)


def _shuffle(key: Any, value: Any) -> Any:
    """Orders rows by a number for each; XLA does not know TensorFlow's own stateless shuffle."""
    value = tf.convert_to_tensor(value)
    numbers = tf.random.stateless_uniform(tf.shape(value)[:1], key, minval=None, maxval=None, dtype=tf.int32)
    return tf.ensure_shape(tf.gather(value, tf.argsort(numbers)), value.shape)


def _category(key: Any, logits: Any, num_samples: Any, output_dtype: Any = None) -> Any:
    """Takes the largest logit plus Gumbel noise; XLA does not know TensorFlow's own stateless categories."""
    logits = tf.cast(logits, tf.float32)
    shape = [tf.shape(logits)[0], num_samples, tf.shape(logits)[1]]
    noise = -tf.math.log(-tf.math.log(tf.random.stateless_uniform(shape, key, minval=1e-37)))
    return tf.argmax(logits[:, None] + noise, -1, output_type=output_dtype or tf.int64)


_RANDOM, _IMAGE = "tensorflow.python.ops.gen_random_ops", "tensorflow.python.ops.gen_image_ops"

_TWINS: Mapping[tuple[str, str], Callable[..., Any]] = {
    (_RANDOM, "random_uniform"): lambda key, shape, dtype: tf.random.stateless_uniform(shape, key, dtype=dtype),
    (_RANDOM, "random_uniform_int"): _uniform_int,
    (_RANDOM, "random_standard_normal"): lambda key, shape, dtype: tf.random.stateless_normal(shape, key, dtype=dtype),
    (_RANDOM, "truncated_normal"): lambda key, shape, dtype: tf.random.stateless_truncated_normal(
        shape, key, dtype=dtype
    ),
    (_RANDOM, "random_shuffle"): _shuffle,
    (_RANDOM, "multinomial"): _category,
    (_IMAGE, "sample_distorted_bounding_box_v2"): lambda key, **arguments: (
        tf.image.stateless_sample_distorted_bounding_box(seed=key, **arguments)
    ),
}
"""What stands for each operation: takes a key, then what the operation takes except for its seeds and name."""


@functools.cache
def _install() -> None:
    """Puts the twins where TensorFlow's public functions call the operations; outside of `keyed` they do nothing."""
    for (module, name), twin in _TWINS.items():
        operations = load(module)
        setattr(operations, name, _or_twin(getattr(operations, name), twin))


def _or_twin(original: Any, twin: Callable[..., Any]) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        keys = _here.keys
        if keys is None or not keys.reach_here():
            return original(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        given = {name: value for name, value in arguments.items() if name not in ("seed", "seed2", "name")}
        return twin(keys.next(), **given)

    return draw
