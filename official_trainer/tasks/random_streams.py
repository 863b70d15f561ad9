"""Random numbers that depend on (seed, step, replica, generator) and on nothing else.

Owns: reseeding every generator inside a model at the start of a step, and seeds by name for whoever draws without a
generator, so that no random state has to be saved and a resumed run draws what an unbroken one would.
Does not own: the order of data (`inputs/order.py`).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.errors import UserError
from official_trainer.lazy import keras, load, tf
from official_trainer.tasks import keyed_draws
from official_trainer.tasks.variables import layers_of


def enable(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow, and gives Keras layers generators whose state can be set.

    Call before any layer is built: layers built earlier draw from op seeds, which no step can set.
    """
    keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(seed % 2**32)


class _Here(threading.local):
    streams: NamedStreams | None = None


_here = _Here()


class RandomStreamError(UserError, RuntimeError):
    """A seed was asked for where there is no step that it could be of."""

    __init__ = Exception.__init__  # the only one that AutoGraph raises again as it is, with the user's lines on top


def seed(name: str) -> tf.Tensor:
    """Returns the seed of a stream of random numbers in this step, for `tf.random.stateless_…`: int64 [2].

    For `Task.train_step`, `Task.validation_step` and what they call, also layers:

        noise = tf.random.stateless_normal(tf.shape(images), random_streams.seed("noise"))

    In training it depends on `runtime.seed`, the global step, the replica and the name alone: it differs where one of
    them does, and is the same after a restart. In an evaluation the place in the data stands for the global step, so
    that all evaluations draw the same. Asked for twice in a step, it is the same: use a name for each purpose.

    Raises:
      RandomStreamError: called outside of a step, where a layer may be while a model is built.
    """
    if _here.streams is None:
        raise RandomStreamError(
            f"random_streams.seed({name!r}) is called outside of a step, so there is nothing that the seed could "
            "depend on. Call it in Task.train_step or Task.validation_step, or in what they call; in a layer, only if "
            "`training` is true, because layers are called to build the model too."
        )
    return _here.streams.seed(name)


def again() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which a step draws what it drew from its start on: the same each time it is entered.

    For what is computed several times in one step and may differ by nothing that is drawn, in a loop of its own too.
    """
    return contextlib.nullcontext() if _here.streams is None else copy.copy(_here.streams)


@contextlib.contextmanager
def drawn_apart(seed: int) -> Iterator[None]:
    """For a `with` block, draws what TensorFlow would after `tf.random.set_seed(seed)`; then it goes on as before.

    Setting a seed would also start every random operation again that draws from one.
    """
    context = load("tensorflow.python.eager.context").context()  # there is no public way to put a seed back
    before = context._seed, context._rng
    context._seed, context._rng = seed, random.Random(seed)
    try:
        yield
    finally:
        context._seed, context._rng = before


_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that no two seeds share a key


class RandomStreams:
    """The generators of one model, one stream each, and streams by name.

    The generators are counters put through a keyed function (Philox; Salmon et al., 2011): streams are apart if their
    counters are. The key comes from the seed; a counter's high word says step, replica and generator, and draws count
    up its low word.
    """

    def __init__(self, model: Any, seed: int) -> None:
        self._seed = seed
        self._key = (seed * _GOLDEN + 1) % 2**64 - 2**63  # seeds that are near each other have keys that are not
        self._generators = find_generators(model)

    def begin_step(self, step: tf.Tensor) -> None:
        """Sets every generator's state for `step` (scalar int64); called in replica context, traced."""
        if not self._generators:
            return
        context = tf.distribute.get_replica_context()
        place = tf.cast(step, tf.int64) * context.num_replicas_in_sync
        if context.num_replicas_in_sync > 1:
            place += tf.cast(context.replica_id_in_sync_group, tf.int64)
        for index, generator in enumerate(self._generators):
            stream = place * len(self._generators) + index
            generator.state.assign(tf.stack([tf.constant(0, tf.int64), stream, tf.constant(self._key, tf.int64)]))

    def around(self, step: Callable[..., Any], domain: str, place: tf.Variable | tf.Tensor) -> Callable[..., Any]:
        """Returns `step` with `named` around it, inside of whatever the step is compiled as."""

        def with_streams(*args: Any, **kwargs: Any) -> Any:
            with self.named(domain, place):
                return step(*args, **kwargs)

        return with_streams

    def named(self, domain: str, place: tf.Variable | tf.Tensor) -> NamedStreams:
        """Returns a context in which `seed` works, for one replica's step; `place` (int64) says which step it is."""
        return NamedStreams(self._seed, domain, place)


class NamedStreams:
    """Seeds by name for one step of one replica; entered around it, in the thread that traces it.

    What the step draws from TensorFlow's stateful operations comes from such seeds too.
    """

    def __init__(self, seed: int, domain: str, place: tf.Variable | tf.Tensor) -> None:
        self._words = f"{seed} {domain}"
        self._place = place

    def __enter__(self) -> None:
        self._outer, _here.streams = _here.streams, self
        self._draws = keyed_draws.keyed(lambda number: self.seed(f"tf.random {number}"))
        self._draws.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._draws.__exit__(*error)
        _here.streams = self._outer

    def seed(self, name: str) -> tf.Tensor:
        """Returns the seed of a name, int64 [2]. A stateless operation scrambles it, so that it only has to differ."""
        digest = hashlib.blake2b(f"{self._words} {name}".encode(), digest_size=16).digest()
        high, low = (int.from_bytes(half, "little") % 2**62 for half in (digest[:8], digest[8:]))
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        value = self._place if isinstance(self._place, tf.Tensor) else self._place.read_value()
        place = tf.cast(value, tf.int64)
        # Far apart, so that seeds which somebody makes of these, by adding a little, differ as well.
        return tf.stack([high + place * _STRIDE, low + replica * _STRIDE])


_STRIDE = 1_000_003


def find_generators(model: Any) -> list[tf.random.Generator]:
    """Returns the generators of all layers of `model`, each once, in the order of its layers."""
    found: dict[int, tf.random.Generator] = {}
    for layer in layers_of(model):
        for value in list(vars(layer).values()):
            generator = getattr(value, "_generator", value)  # Keras wraps the generators of its random layers
            if isinstance(generator, tf.random.Generator):
                found.setdefault(id(generator), generator)
    return list(found.values())
