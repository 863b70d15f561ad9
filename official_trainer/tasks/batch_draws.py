"""The random numbers of a step on several replicas: each takes its slice of one draw for the global batch.

Owns: which draws of a step are of the batch, where in such a draw a replica's slice is, and the operations that start
there. Does not own: the keys of draws (`random_streams.py`, `keyed_draws.py`).

TensorFlow's random operations compute blocks of numbers, each from a key and a counter (Philox), and a draw is a range
of counters. A replica whose counter starts where its examples are in the global batch draws what one device would draw
for them. Where that is inside of a block, it draws up to three numbers more, and leaves them out. Draws that are not of
the batch are the same on all replicas, as on one device, if that is sure; else each replica has its own. Micro-batches
are parts of the batch as replicas are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from official_trainer.lazy import tf
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.keyed_draws import STRIDE, Replaced, place_of
from official_trainer.tasks.scopes import current_graph, during, is_straight


@dataclasses.dataclass(frozen=True)
class Share:
    """A part of the global batch, of a replica or a micro-batch. Numbers are ints if they are known, else scalar int64.

    Attributes:
      number: of the part.
      first: its first example.
      size: how many it has, at least 1.
      total: examples of all parts.
      sizes: those of its tensors, as far as they are known: batches of several tasks have several.
    """

    number: Any
    first: Any
    size: Any
    total: Any
    sizes: frozenset[int]

    def of_part(self, number: Any, count: int) -> Share:
        """Returns the share of micro-batch `number` of `count`."""
        size, sizes = self.size // count, frozenset(each // count for each in self.sizes)
        return Share(self.number * count + number, self.first + number * size, size, self.total, sizes)

    def has(self, rows: int | None) -> bool:
        """Whether a draw with so many rows, None if that is not known, is of the batch."""
        return rows is None or rows in self.sizes or (isinstance(self.size, int) and rows % self.size == 0)


@do_not_convert
def shares(strategy: tf.distribute.Strategy, inputs: Any) -> Callable[[], Share | None]:
    """Returns what gives a replica, in its context, its share of a batch; None for inputs without examples.

    Each replica has its examples after those of the replicas before. Of those in other processes it is only known that
    they are full, as they are in all batches but the last one of data that ends.

    Args:
      strategy: of the replicas.
      inputs: the batches of all replicas; called in cross-replica context, traced.
    """
    parts = [strategy.experimental_local_results(each) for each in tf.nest.flatten(inputs)]
    found = [sizes for sizes in ([_size(part) for part in each] for each in parts) if None not in sizes]

    @do_not_convert
    def here() -> Share | None:
        if not found:
            return None
        sizes = found[0]
        replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        assert replica is not None, "each replica is traced by itself"
        number, place = int(replica), int(replica) % len(sizes)
        are_known = all(isinstance(each, int) for each in sizes)
        full, least = (max(sizes), max) if are_known else (tf.reduce_max(tf.stack(sizes)), tf.maximum)
        known = frozenset(each[place] for each in found if isinstance(each[place], int) and each[place])
        total = sum(sizes) + (strategy.num_replicas_in_sync - len(sizes)) * full
        return Share(number, (number - place) * full + sum(sizes[:place]), least(sizes[place], 1), total, known)

    return here


def _size(value: Any) -> Any:
    """Returns how many examples a tensor has; None for a scalar, and for what is no tensor."""
    if not isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) or not value.shape.rank:
        return None
    if (known := value.shape[0]) is not None:
        return known
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    return tf.cast(value.nrows(), tf.int64) if isinstance(value, tf.RaggedTensor) else tf.shape(value, tf.int64)[0]


@dataclasses.dataclass(frozen=True)
class _Step:
    """The step that is traced in this thread.

    Attributes:
      share: what is traced of the batch.
      graph: in which a draw happens once.
      is_whole: whether a draw is not of the batch, whatever its shape.
    """

    share: Share
    graph: Any
    is_whole: bool = False


_step: ContextVar[_Step | None] = ContextVar("step", default=None)


@do_not_convert
@contextlib.contextmanager
def sliced(share: Share | None) -> Iterator[None]:
    """Makes random operations that are traced in this thread in a `with` block draw a slice; None leaves them as is."""
    if share is None:
        yield
        return
    with _OPERATIONS.in_place(), during(_step, _Step(share, current_graph())):
        yield


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where the numbers of a part are. What is not known while tracing is scalar int64.

    Attributes:
      count: how many they are.
      all: numbers of all parts.
      before: of these, those of the parts before; 0 for a draw that is not of the batch.
      row: how many there are for each example, or a whole part of them; None if that is not known.
      counters: counters that come before, for a part that draws for itself.
    """

    count: Any
    all: Any
    before: Any = 0
    row: int | None = None
    counters: Any = 0


def _place(step: _Step, shape: tf.Tensor) -> _Place:
    dims, share = _dims(shape), step.share
    known = [each for each in dims or () if each is not None]
    is_known = dims is not None and len(known) == len(dims)
    count = math.prod(known) if is_known else tf.reduce_prod(tf.cast(shape, tf.int64))
    if dims and share.has(dims[0]) and not step.is_whole:
        row = None if None in dims[1:] else math.prod(known[dims[0] is not None :])
        return _Place(count, share.total * count // share.size, share.first * count // share.size, row)
    # What may be a batch in another dimension, or is drawn in each turn of a loop, must not be the same for all.
    is_alike = is_straight(step.graph) and (step.is_whole or (is_known and share.sizes.isdisjoint(known)))
    return _Place(count, count, counters=0 if is_alike else share.number * _APART)


def _dims(shape: tf.Tensor) -> list[int | None] | None:
    """Returns the dimensions, as far as they are known; None if it is not known how many there are."""
    known = tf.get_static_value(shape)
    if known is not None:
        return [int(each) for each in known]
    found = tf.zeros(shape, tf.bool).shape  # which is never computed: TensorFlow infers more for a result
    return None if found.rank is None else found.as_list()


_APART = 2**44
"""Counters between parts that draw for themselves: more than one generator uses in a step."""


def _moved(counter: tf.Tensor, counters: Any) -> tf.Tensor:
    if isinstance(counters, int) and counters == 0:
        return counter
    low = tf.bitcast(counter[:1], tf.int64) + tf.cast(counters, tf.int64)  # a GPU adds these
    return tf.concat([tf.bitcast(low, tf.uint64), counter[1:]], 0)


def _in_slices(original: Any, numbers: int | None = None, counters: int | None = None) -> Any:
    """Returns an operation that draws a slice.

    Args:
      original: takes `shape`, `key` and `counter`, and more.
      numbers: of a block; None for as many as 16 bytes hold.
      counters: of each number; None for one of a block.
    """

    def draw(step: _Step, arguments: dict[str, Any]) -> Any:
        shape = tf.convert_to_tensor(arguments["shape"], dtype_hint=tf.int32)
        place, block = _place(step, shape), numbers
        if block is None:
            kind = arguments["dtype"] if "dtype" in arguments else tf.convert_to_tensor(arguments["minval"]).dtype
            block = 2 if tf.as_dtype(kind).size == 8 else 4
        skipped = place.before // block * (1 if counters is None else block * counters)
        arguments["counter"] = _moved(arguments["counter"], skipped + place.counters)
        lead = 0 if place.row is not None and place.row % block == 0 else place.before % block
        if isinstance(lead, int) and lead == 0:
            return original(**arguments)
        drawn = original(**{**arguments, "shape": tf.stack([tf.cast(place.count + block - 1, shape.dtype)])})
        begin, size = (tf.stack([tf.cast(each, tf.int64)]) for each in (lead, place.count))
        return tf.reshape(tf.slice(drawn, begin, size), shape)

    return _in_step(original, draw)


def _by_replica(original: Any) -> Any:
    """Returns an operation whose numbers have no place of their own, so that each part draws for itself."""

    def draw(step: _Step, arguments: dict[str, Any]) -> Any:
        if "counter" in arguments:
            arguments["counter"] = _moved(arguments["counter"], step.share.number * _APART)
        else:
            seed = tf.convert_to_tensor(arguments["seed"])
            arguments["seed"] = seed + tf.cast(tf.stack([0, step.share.number * STRIDE]), seed.dtype)
        return original(**arguments)

    return _in_step(original, draw)


def _prepare_key_counter(original: Any) -> Any:
    """Has a generator advance by the numbers of all parts, so that its states are alike on all replicas."""

    def prepare(step: _Step, arguments: dict[str, Any]) -> Any:
        place = _place(step, tf.convert_to_tensor(arguments["shape"], dtype_hint=tf.int32))
        state = tf.bitcast(arguments["self"].skip(tf.cast(place.all, tf.int64)), tf.uint64)
        return state[2:3], state[:2]  # TensorFlow would hash the replica into the key

    return _in_step(original, prepare)


def _make_seeds(original: Any) -> Any:
    """Has a seed be the same on all replicas; several may be those of the examples."""

    def make(step: _Step, arguments: dict[str, Any]) -> Any:
        with during(_step, dataclasses.replace(step, is_whole=arguments["count"] == 1)):
            return original(**arguments)

    return _in_step(original, make)


def _in_step(original: Any, replacement: Callable[[_Step, dict[str, Any]], Any]) -> Any:
    """Returns a function that calls `replacement` with arguments by name where a step is traced, else `original`."""
    signature = inspect.signature(original)

    @do_not_convert
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        step = _step.get()
        if step is None:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return replacement(step, dict(bound.arguments))

    return call


_REPLACEMENTS: Mapping[str, Callable[[Any], Any]] = {
    "StatelessRandomUniformV2": _in_slices,
    "StatelessRandomUniformIntV2": _in_slices,
    "StatelessRandomUniformFullIntV2": _in_slices,
    "StatelessRandomNormalV2": _in_slices,
    # These draw again what does not fit, from counters that they keep for each number.
    "StatelessTruncatedNormalV2": functools.partial(_in_slices, counters=64),
    "StatelessRandomGammaV3": functools.partial(_in_slices, numbers=1, counters=256),
    "StatelessShuffle": _by_replica,
    "StatelessRandomBinomial": _by_replica,
    "StatelessRandomPoisson": _by_replica,
    "StatelessMultinomial": _by_replica,
    "StatelessParameterizedTruncatedNormal": _by_replica,
}
"""What TensorFlow's public functions and both Kerases call."""


def _places() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    generator = tf.random.Generator
    methods = {"_prepare_key_counter": _prepare_key_counter, "make_seeds": _make_seeds}
    return [
        *((*place_of(operation), make) for operation, make in _REPLACEMENTS.items()),
        *((generator, name, make) for name, make in methods.items()),
    ]


_OPERATIONS = Replaced(_places)
