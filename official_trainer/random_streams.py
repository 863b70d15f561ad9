"""Random numbers that depend on (seed, step, replica, generator) and on nothing else.

Owns: reseeding every generator inside a model at the start of a step, so that no random state has to be saved and a
resumed run draws what an unbroken one would. Does not own: the order of data (`inputs/order.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from official_trainer.lazy import keras, load, tf


def enable(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow, and gives Keras layers generators whose state can be set.

    Call before any layer is built: layers built earlier draw from op seeds, which no step can set.
    """
    keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(seed % 2**32)


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
    """The generators of one model, one stream each.

    The generators are counters put through a keyed function (Philox; Salmon et al., 2011): streams are apart if their
    counters are. The key comes from the seed; a counter's high word says step, replica and generator, and draws count
    up its low word.
    """

    def __init__(self, model: Any, seed: int) -> None:
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


def find_generators(model: Any) -> list[tf.random.Generator]:
    """Returns the generators of all layers of `model`, each once, in the order of its layers."""
    found: dict[int, tf.random.Generator] = {}
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else [model]
    for layer in layers:
        for value in list(vars(layer).values()):
            generator = getattr(value, "_generator", value)  # Keras wraps the generators of its random layers
            if isinstance(generator, tf.random.Generator):
                found.setdefault(id(generator), generator)
    return list(found.values())
