"""Random numbers that depend on (seed, step, replica, generator) and on nothing else.

Owns: reseeding every generator inside a model at the start of a step, so that no random state has to be saved and a
resumed run draws what an unbroken one would. Does not own: the order of data (`inputs/order.py`).
"""

from __future__ import annotations

from typing import Any

from official_trainer.lazy import keras, tf


def enable(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow, and gives Keras layers generators whose state can be set.

    Call before any layer is built: layers built earlier draw from op seeds, which no step can set.
    """
    keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(seed % 2**32)


class RandomStreams:
    """The generators of one model, one stream each."""

    def __init__(self, model: Any, seed: int) -> None:
        self._seed = seed
        self._generators = find_generators(model)

    def begin_step(self, step: tf.Tensor) -> None:
        """Sets every generator's state for `step` (scalar int64); called in replica context, traced."""
        if not self._generators:
            return
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        fold_in = tf.random.experimental.stateless_fold_in
        key = fold_in(tf.constant([self._seed, 0], tf.int64), tf.cast(step, tf.int64))
        key = fold_in(key, tf.cast(replica, tf.int64))
        for index, generator in enumerate(self._generators):
            # A Philox state is a counter of two words and a key of one: start at the stream's own place.
            state = fold_in(key, tf.constant(index, tf.int64))
            generator.state.assign(tf.concat([state, tf.zeros([1], tf.int64)], axis=0))


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
