"""The random numbers of a step on several replicas: each takes its slice of one draw for the global batch.

Owns: which draws of a step are of the batch, where in such a draw a replica's slice is, and the operations that start
there. Does not own: the keys of draws (`random_streams.py`, `keyed_draws.py`).

TensorFlow's random operations compute blocks of numbers, each from a key and a counter (Philox), and a draw is a range
of counters. A replica whose counter starts where its examples are in the global batch draws what one device would draw
for them. Where that is inside of a block, it draws up to three numbers more, and leaves them out. Draws that are not of
the batch are the same on all replicas, as on one device, if that is sure; else each replica has its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from official_trainer.lazy import load, tf
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.keyed_draws import STRIDE, Replaced
from official_trainer.tasks.scopes import current_graph, during, is_straight


@dataclasses.dataclass(frozen=True)
class Share:
    """A replica's examples in the global batch. Numbers are ints where they are known, else scalar int64.

    Attributes:
      replica: its number.
      first: its first example.
      size: how many it has.
      total: examples of all replicas.
      others: known sizes of other tensors of its batch, as the batches of several tasks have.
    """

    replica: Any
    first: Any
    size: Any
    total: Any
    others: frozenset[int] = frozenset()

    def of_part(self, count: int) -> Share:
        """Returns the share of each of `count` micro-batches."""
        others = frozenset(each // count for each in self.others)
        return Share(self.replica, self.first // count, self.size // count, self.total // count, others)


class Shares:
    """How the replicas share a batch.

    Each has its examples after those of the replicas before. Of those in other processes it is only known that they are
    full, as they are in all batches but the last one of data that ends.
    """

    def __init__(self, strategy: tf.distribute.Strategy, inputs: Any) -> None:
        """Takes the batches of all replicas; called in cross-replica context, traced."""
        parts = [strategy.experimental_local_results(each) for each in tf.nest.flatten(inputs)]
        found = [[_size(part) for part in each] for each in parts]
        sizes = [each for each in found if None not in each]
        self._num_replicas = strategy.num_replicas_in_sync
        self._sizes: list[Any] = sizes[0] if sizes else []
        self._others = frozenset(each[0] for each in sizes[1:] if isinstance(each[0], int) and each[0])

    def here(self) -> Share | None:
        """Returns the share of the replica in whose context it is called; None for inputs without examples."""
        sizes = self._sizes
        if not sizes:
            return None
        given = tf.distribute.get_replica_context().replica_id_in_sync_group
        known = tf.get_static_value(given)
        assert known is not None, "each replica is traced by itself"
        replica, place = int(known), int(known) % len(sizes)
        full = max(sizes) if all(isinstance(each, int) for each in sizes) else tf.reduce_max(tf.stack(sizes))
        first = (replica - place) * full + sum(sizes[:place])
        total = sum(sizes) + (self._num_replicas - len(sizes)) * full
        return Share(replica, first, sizes[place], total, self._others)


def _size(value: Any) -> Any:
    """Returns how many examples a tensor has; None for one of scalars."""
    if not value.shape.rank:
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
      share: of the replica.
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
    """Makes random operations that are traced in this thread in a `with` block draw a replica's slice.

    Args:
      share: of the replica; None leaves them as they are.
    """
    if share is None:
        yield
        return
    with _OPERATIONS.in_place(), during(_step, _Step(share, current_graph())):
        yield


class _Place:
    """Where a replica's numbers of one draw are.

    Attributes:
      count: numbers of the replica.
      advance: numbers of all replicas.
    """

    def __init__(self, step: _Step, shape: tf.Tensor) -> None:
        self._share = share = step.share
        dims = _dims(shape)
        sizes = [each for each in dims or () if each is not None]
        is_known = dims is not None and len(sizes) == len(dims)
        self.count = math.prod(sizes) if is_known else tf.reduce_prod(tf.cast(shape, tf.int64))
        # What may be a batch in another dimension, or is drawn in each turn of a loop, must not be the same for all.
        known = {each for each in (share.size, *share.others) if isinstance(each, int)}
        alike = step.is_whole or (is_known and not known & set(sizes))
        self._otherwise = 0 if alike and is_straight(step.graph) else share.replica * _APART
        self._is_sliced: Any = False
        self._first: Any = 0
        self.advance = self.count
        self._row = math.prod(sizes[dims[0] is not None :]) if dims and None not in dims[1:] else None
        if not dims or step.is_whole:
            return
        rows, size = dims[0], share.size
        if rows in share.others and not (isinstance(size, int) and rows % max(size, 1) == 0):
            self._is_sliced, self._first = True, share.replica * self.count
            self.advance = share.total // size * self.count
        elif rows is None or isinstance(size, int):
            size = max(size, 1) if isinstance(size, int) else tf.maximum(size, 1)
            rows = tf.cast(shape[0], tf.int64) if rows is None else rows
            self._is_sliced, row = rows % size == 0, self.count // size
            self._first = share.first * row
            self.advance = self._choose(share.total * row, self.count)

    def _choose(self, sliced: Any, otherwise: Any) -> Any:
        if isinstance(self._is_sliced, bool):
            return sliced if self._is_sliced else otherwise
        return tf.where(self._is_sliced, tf.cast(sliced, tf.int64), tf.cast(otherwise, tf.int64))

    def counters(self, block: int, skipped: int) -> Any:
        """Returns the counters before those of the replica; blocks of `block` numbers are `skipped` counters apart."""
        return self._choose(self._first // block * skipped, self._otherwise)

    def lead(self, block: int) -> Any:
        """Returns how many numbers of its first block are those of the replica before."""
        if self._row is not None and self._row % block == 0:
            return 0
        return self._choose(self._first % block, 0)


def _dims(shape: tf.Tensor) -> list[int | None] | None:
    """Returns the dimensions, as far as they are known; None if it is not known how many there are."""
    known = tf.get_static_value(shape)
    if known is not None:
        return [int(each) for each in known]
    found = tf.zeros(shape, tf.bool).shape  # which is never computed: TensorFlow infers more for a result
    return None if found.rank is None else found.as_list()


_APART = 2**44
"""Counters between replicas that draw for themselves: more than one generator uses in a step."""


def _moved(counter: Any, counters: Any) -> tf.Tensor:
    if isinstance(counters, int) and counters == 0:
        return counter
    moved = tf.bitcast(counter, tf.int64) + tf.stack([tf.cast(counters, tf.int64), 0])  # a GPU adds these
    return tf.bitcast(moved, tf.uint64)


def _in_slices(original: Any, skipped: int | None = None) -> Any:
    """Returns an operation that draws the slice of a replica.

    Args:
      original: takes `shape`, `key` and `counter`, and more.
      skipped: counters of each number; None for one counter of each block.
    """

    def draw(step: _Step, arguments: dict[str, Any]) -> Any:
        shape = tf.convert_to_tensor(arguments["shape"], dtype_hint=tf.int32)
        bounds = arguments.get("minval")
        dtype = arguments.get("dtype", tf.float32) if bounds is None else tf.convert_to_tensor(bounds).dtype
        place, block = _Place(step, shape), 2 if tf.as_dtype(dtype).size == 8 else 4
        lead = place.lead(block)
        skips = 1 if skipped is None else block * skipped
        arguments["counter"] = _moved(arguments["counter"], place.counters(block, skips))
        if isinstance(lead, int) and lead == 0:
            return original(**arguments)
        more = lead if isinstance(lead, int) else block - 1  # XLA needs a size that it knows
        drawn = original(**{**arguments, "shape": tf.stack([tf.cast(place.count + more, shape.dtype)])})
        count = tf.stack([tf.cast(place.count, tf.int64)])
        return tf.reshape(tf.slice(drawn, tf.stack([tf.cast(lead, tf.int64)]), count), shape)

    return _in_step(original, draw)


def _with_own_counter(original: Any) -> Any:
    """Returns an operation that draws for each replica by itself."""

    def draw(step: _Step, arguments: dict[str, Any]) -> Any:
        return original(**{**arguments, "counter": _moved(arguments["counter"], step.share.replica * _APART)})

    return _in_step(original, draw)


def _with_own_seed(original: Any) -> Any:
    def draw(step: _Step, arguments: dict[str, Any]) -> Any:
        seed = tf.convert_to_tensor(arguments["seed"])
        apart = tf.constant([0, step.share.replica * STRIDE % 2**31], seed.dtype)
        return original(**{**arguments, "seed": seed + apart})

    return _in_step(original, draw)


def _prepare_key_counter(original: Any) -> Any:
    """Has a generator advance by the numbers of all replicas, whose states are alike."""

    def prepare(step: _Step, arguments: dict[str, Any]) -> Any:
        generator, shape = arguments["self"], arguments["shape"]
        if generator.algorithm == tf.random.Algorithm.THREEFRY.value:
            return original(**arguments)
        place = _Place(step, tf.convert_to_tensor(shape, dtype_hint=tf.int32))
        state = tf.bitcast(generator.skip(tf.cast(place.advance, tf.int64)), tf.uint64)
        return state[2:3], state[:2]  # TensorFlow would hash the replica into the key

    return _in_step(original, prepare)


def _make_seeds(original: Any) -> Any:
    """Has a seed be the same on all replicas; several may be those of the examples."""

    def make(step: _Step, arguments: dict[str, Any]) -> Any:
        is_one = arguments.get("count", 1) == 1
        with during(_step, dataclasses.replace(step, is_whole=step.is_whole or is_one)):
            return original(**arguments)

    return _in_step(original, make)


def _binomial(original: Any) -> Any:
    """Draws from a seed: the operation takes the state itself, which is that of all replicas."""

    def draw(step: _Step, arguments: dict[str, Any]) -> Any:
        seed = arguments.pop("self").make_seeds()[:, 0]
        return tf.random.stateless_binomial(seed=seed, output_dtype=arguments.pop("dtype", tf.int32), **arguments)

    return _in_step(original, draw)


def _in_step(original: Any, replacement: Callable[[_Step, dict[str, Any]], Any]) -> Any:
    """Returns a function that calls `replacement` with arguments by name where a step is traced, else `original`."""
    signature = inspect.signature(original)

    @do_not_convert
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        step = _step.get()
        if step is None:
            return original(*args, **kwargs)
        return replacement(step, dict(signature.bind(*args, **kwargs).arguments))

    return call


_V2, _V1 = "tensorflow.python.ops.gen_stateless_random_ops_v2", "tensorflow.python.ops.gen_stateless_random_ops"

_REPLACEMENTS: Sequence[tuple[str, str, Callable[[Any], Any]]] = (
    (_V2, "stateless_random_uniform_v2", _in_slices),
    (_V2, "stateless_random_uniform_int_v2", _in_slices),
    (_V2, "stateless_random_uniform_full_int_v2", _in_slices),
    (_V2, "stateless_random_normal_v2", _in_slices),
    # It draws again what is too far off, from 64 counters for each number.
    (_V2, "stateless_truncated_normal_v2", functools.partial(_in_slices, skipped=64)),
    (_V2, "stateless_random_gamma_v3", _with_own_counter),
    (_V2, "stateless_shuffle", _with_own_counter),
    (_V1, "stateless_random_binomial", _with_own_seed),
    (_V1, "stateless_random_poisson", _with_own_seed),
    (_V1, "stateless_multinomial", _with_own_seed),
    (_V1, "stateless_parameterized_truncated_normal", _with_own_seed),
)
"""What TensorFlow's public functions and both Kerases call."""


def _places() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    generator = tf.random.Generator
    methods = {"_prepare_key_counter": _prepare_key_counter, "make_seeds": _make_seeds, "binomial": _binomial}
    return [
        *((load(module), name, make) for module, name, make in _REPLACEMENTS),
        *((generator, name, make) for name, make in methods.items()),
    ]


_OPERATIONS = Replaced(_places)
