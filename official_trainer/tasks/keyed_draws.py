"""TensorFlow's stateful random operations, computed from a key instead of hidden state.

Owns: the list of operations, the stateless replacement of each, the same for the functions of an input pipeline, and
putting replacements into TensorFlow's modules and taking them out again. Does not own: the keys of a step
(`random_streams.py`), seeds of whole pipelines (`engine/train_iterator.py`).

`tf.random.uniform` and similar functions advance a state inside the running program, which no checkpoint holds, and in
a parallel `Dataset.map` the order of draws depends on timing. Model Garden draws like that in its augmentations,
stochastic depth and samplers of boxes. Inside `keyed`, such a draw is a function of a key and of its place in the code.
TensorFlow has no public place for that, so its functions are replaced, while a step is traced or a pipeline is built
and no longer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from official_trainer.lazy import load, tf
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.scopes import current_graph, during


class Replaced:
    """Attributes of other libraries' modules and classes that are replaced while a `with` block needs it.

    Blocks of several threads may overlap, and one may be inside another: the first replaces, the last restores.
    """

    def __init__(self, replacements: Callable[[], Iterable[tuple[Any, str, Callable[[Any], Any]]]]) -> None:
        """Takes a function that returns the attributes: owner, name, and what makes the new value of the old one."""
        self._replacements = replacements
        self._lock = threading.Lock()
        self._blocks: set[object] = set()
        self._originals: list[tuple[Any, str, Any]] = []

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replaces the attributes for a `with` block; errors and Ctrl-C end it too."""
        block = object()
        try:
            with self._lock:
                if not self._blocks:
                    self._restore()  # what a block has left whose end was interrupted
                    for owner, name, make in self._replacements():
                        self._originals.append((owner, name, getattr(owner, name)))
                        setattr(owner, name, make(getattr(owner, name)))
                self._blocks.add(block)
            yield
        finally:
            with self._lock:
                self._blocks.discard(block)
                if not self._blocks:
                    self._restore()

    def _restore(self) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)
        self._originals.clear()


def attribute_of(operation: str) -> tuple[Any, str]:
    """Returns the module where TensorFlow's public functions find an operation of `tf.raw_ops`, and its name there."""
    raw = getattr(tf.raw_ops, operation)
    return sys.modules[raw.__module__], raw.__name__


_keys: ContextVar[_Keys | None] = ContextVar("keys", default=None)


class _Keys:
    """The keys of one trace: one for each draw, in the order of the code, and of it one for each turn of a loop."""

    def __init__(self, key_of: Callable[[int], tf.Tensor]) -> None:
        self._key_of, self._graph, self._num_draws = key_of, current_graph(), 0

    def next(self) -> tf.Tensor | None:
        """Returns the key of a draw here; None in a function with other callers, where a draw has many."""
        turns = _turns(self._graph)
        if turns is None:
            return None
        key = self._key_of(self._num_draws)
        self._num_draws += 1
        for turn in turns:
            key = tf.random.fold_in(key, turn)
        return key


def _turns(outer: Any) -> list[tf.Tensor] | None:
    """Returns the number of the turn in each loop that code here is in, from the innermost one to the graph `outer`.

    None if code here is in a function that may have other callers.
    """
    branch, loop = _graph_classes()
    graph, turns = current_graph(), []
    while graph is not outer and isinstance(graph, (branch, loop)):
        if isinstance(graph, loop):
            turns.append(graph.inputs[0])  # which gradients need
        graph = graph.outer_graph
    return turns if graph is outer else None


@functools.cache
def _graph_classes() -> tuple[Any, Any]:
    """Returns the classes of the graphs of a branch and of a loop's body, which have no public names.

    A branch, a loop and a function are graphs alike: only their class tells which.
    """
    classes: dict[str, Any] = {}

    def noted(name: str, value: tf.Tensor) -> tf.Tensor:
        classes[name] = type(current_graph())
        return value

    with tf.Graph().as_default():
        zero = tf.constant(0)
        tf.cond(zero < 1, lambda: noted("branch", zero), lambda: zero)
        tf.while_loop(lambda turn: turn < 1, lambda turn: noted("loop", turn + 1), [zero])
    return classes["branch"], classes["loop"]


@do_not_convert
@contextlib.contextmanager
def keyed(key_of: Callable[[int], tf.Tensor]) -> Iterator[None]:
    """Makes random operations that are traced in this thread in a `with` block draw from keys.

    Args:
      key_of: returns the key, int64 [2], of a draw by its number, from 0 in the order of the code.
    """
    with _OPERATIONS.in_place(), during(_keys, _Keys(key_of)):
        yield


@contextlib.contextmanager
def of_pipeline(seed: int) -> Iterator[None]:
    """Makes a pipeline that is built in a `with` block return the same elements whenever it is built again.

    A `Dataset.map` that draws is then one of three:

    - serial, as written: the elements draw one after another;
    - keyed, where it is parallel or draws in a loop, whose turns run side by side: a map before it draws a key for each
      element, in order, and the function draws from that key. If the function has an attribute `key_of`, that returns
      the key of an element, `[2]` int64, and the map is always keyed;
    - serial instead of parallel, where the function draws in one with other callers, which cannot have a key.

    Python's `random`, which Model Garden uses for the order of files, starts from `seed`, and gets its state back
    afterwards.
    """
    before = random.getstate()
    random.seed(seed)
    try:
        with _OPERATIONS.in_place(), _MAPS.in_place():
            yield
    finally:
        random.setstate(before)


def _map(self: Any, original: Any, map_func: Any, num_parallel_calls: Any = None, *args: Any, **options: Any) -> Any:
    """Maps in one of the ways of `of_pipeline`, told by the operations that tracing the function has made."""
    as_written = original(self, map_func, num_parallel_calls, *args, **options)
    if not _draws(as_written):
        return as_written
    key_of = getattr(map_func, "key_of", None)
    is_serial = num_parallel_calls is None and not any(node.op == "While" for node in _nodes(as_written))
    if is_serial and key_of is None:
        return as_written
    with_keys = original(self, _with_key(key_of))
    keyed_map = original(with_keys, _from_key(map_func), num_parallel_calls, *args, **options)
    if _draws(keyed_map):  # in a function with other callers
        serial_map = original(self, map_func)
        return serial_map
    return keyed_map


def _with_key(key_of: Callable[..., tf.Tensor] | None) -> Callable[..., Any]:
    """Returns a function that puts a key before an element."""

    def keyed_element(*element: Any) -> Any:
        key = key_of(*element) if key_of else tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64)
        return key, element

    return keyed_element


def _from_key(map_func: Callable[..., Any]) -> Callable[[tf.Tensor, Any], Any]:
    """Returns a function of a key and an element whose draws are computed from the key."""

    def mapped(key: tf.Tensor, element: Any) -> Any:
        with keyed(lambda number: key + number * STRIDE):
            return map_func(*element)

    return mapped


_MAPS = Replaced(lambda: [(tf.data.Dataset, "map", lambda original: functools.partialmethod(_map, original))])

STRIDE = 1_000_003
"""A distance of keys, so that those that an operation or its caller computes from them by small numbers differ too."""


def _draws(mapped: Any) -> bool:
    """Whether the function of a mapped dataset has stateful random operations, which have two seeds."""
    return any("seed2" in node.attr for node in _nodes(mapped))


def _nodes(mapped: Any) -> list[Any]:
    definitions = [function.function.graph.as_graph_def() for function in mapped._functions()]
    nodes = [node for graph in definitions for node in graph.node]
    return nodes + [node for graph in definitions for function in graph.library.function for node in function.node_def]


def _shuffle(key: Any, value: Any) -> Any:
    """Orders rows by a random number for each; XLA does not support TensorFlow's own stateless shuffle."""
    value = tf.convert_to_tensor(value)
    numbers = tf.random.stateless_uniform(tf.shape(value)[:1], key, minval=None, maxval=None, dtype=tf.int32)
    return tf.ensure_shape(tf.gather(value, tf.argsort(numbers)), value.shape)


def _category(key: Any, logits: Any, num_samples: Any, output_dtype: Any = None) -> Any:
    """Takes the largest logit plus Gumbel noise; XLA does not support TensorFlow's own stateless categories."""
    logits = tf.cast(logits, tf.float32)
    shape = [tf.shape(logits)[0], num_samples, tf.shape(logits)[1]]
    noise = -tf.math.log(-tf.math.log(tf.random.stateless_uniform(shape, key, minval=1e-37)))
    return tf.argmax(logits[:, None] + noise, -1, output_type=output_dtype or tf.int64)


_REPLACEMENTS: Mapping[str, Callable[..., Any]] = {
    "RandomUniform": lambda key, shape, dtype: tf.random.stateless_uniform(shape, key, dtype=dtype),
    "RandomUniformInt": lambda key, shape, minval, maxval: tf.random.stateless_uniform(
        shape, key, minval, maxval, dtype=tf.convert_to_tensor(minval).dtype
    ),
    "RandomStandardNormal": lambda key, shape, dtype: tf.random.stateless_normal(shape, key, dtype=dtype),
    "TruncatedNormal": lambda key, shape, dtype: tf.random.stateless_truncated_normal(shape, key, dtype=dtype),
    "RandomShuffle": _shuffle,
    "Multinomial": _category,
    "SampleDistortedBoundingBoxV2": lambda key, **arguments: tf.image.stateless_sample_distorted_bounding_box(
        seed=key, **arguments
    ),
}
"""The replacement of each operation: takes a key, then the operation's arguments without its seeds and name."""


_CONTEXT = "tensorflow.python.eager.context"  # has the seed, which there is no public way to set alone, or to read


def seed_state() -> tuple[int | None, Any]:
    """Returns TensorFlow's seed and its generator of operations' seeds; None before the first seed of a process."""
    eager = load(_CONTEXT).context()
    return eager._seed, getattr(eager, "_rng", None)


def put_seed_state(seed: int | None, generator: Any) -> None:
    """Sets what `seed_state` returns; no operation that draws starts again."""
    eager = load(_CONTEXT).context()
    eager._seed, eager._rng = seed, generator


def set_seed(seed: int, *, restarts: bool = True) -> None:
    """Does what `tf.random.set_seed` does, but keeps TensorFlow's kernels until a pipeline that is built draws eagerly.

    It drops them to restart those that draw; with them go resources that others own, such as the tokenizers of
    tensorflow_text's SentencePiece, and what holds such a one fails from then on.

    Args:
      seed: any integer.
      restarts: whether kernels are dropped at all.
    """
    put_seed_state(seed, random.Random(seed))
    _Kernels.are_stale = restarts


class _Kernels:
    """Whether kernels that draw have to be restarted before the next eager draw."""

    are_stale = False


def _with_replacement(original: Any, replacement: Callable[..., Any]) -> Any:
    """Returns an operation that draws from the keys of its thread where they apply, and else as it always does."""

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        keys = _keys.get()
        key = None if keys is None else keys.next()
        if key is None:
            if _Kernels.are_stale and tf.executing_eagerly():
                _Kernels.are_stale = False
                load(_CONTEXT).context().clear_kernel_cache()
            return original(*args, **kwargs)
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        values = {name: value for name, value in arguments.items() if name not in ("seed", "seed2", "name")}
        return replacement(key, **values)

    return draw


_OPERATIONS = Replaced(
    lambda: [
        (*attribute_of(operation), functools.partial(_with_replacement, replacement=replacement))
        for operation, replacement in _REPLACEMENTS.items()
    ]
)
"""What TensorFlow's public functions call, of `tf.random`, `tf.image`, `tf.nn` and Keras."""
