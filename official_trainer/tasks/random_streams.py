"""Random numbers that depend only on (seed, step, generator), and on the place of an example in its batch.

Owns: setting every generator of a model at the start of a step, and named seeds for code that draws without a
generator, so that no random state has to be saved and a resumed run draws the same numbers as an uninterrupted one.
Does not own: the order of data (`inputs/order.py`).

Example:
  >>> from official_trainer import Task, random_streams
  >>> from official_trainer.lazy import tf
  >>> class Denoising(Task):
  ...     def train_step(self, inputs, model, optimizer, metrics=None):
  ...         noise = tf.random.stateless_normal(tf.shape(inputs), random_streams.seed("noise"))
  ...         return super().train_step((inputs + noise, inputs), model, optimizer, metrics)
  >>> Denoising(params=None).name
  'Denoising'
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from official_trainer import lazy
from official_trainer.errors import UserError
from official_trainer.lazy import keras, load, tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import keyed_draws
from official_trainer.tasks.scopes import during


def enable(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow, and makes Keras layers use generators whose state can be set.

    A run calls it. A program that builds a `Trainer` itself calls it before any layer is built: layers built earlier
    draw from op seeds, which a step cannot set. Where tensorflow_text is imported, operations that have drawn outside
    of steps go on where they were: to restart them would destroy its tokenizers.

    Args:
      seed: any integer.

    Example:
      >>> from official_trainer import random_streams
      >>> from official_trainer.lazy import keras
      >>> def first_weights():
      ...     random_streams.enable(seed=7)
      ...     return keras.Sequential([keras.Input([2]), keras.layers.Dense(3)]).get_weights()[0]
      >>> bool((first_weights() == first_weights()).all())
      True
    """
    seed %= 2**32
    random.seed(seed)
    load("numpy").random.seed(seed)
    if "tensorflow_text" in sys.modules:
        keyed_draws.set_seed(seed, restarts=False)
    else:
        tf.random.set_seed(seed)
    for implementation in kerases.in_use():
        implementation.configure(seed=seed)


_streams: ContextVar[NamedStreams | None] = ContextVar("streams", default=None)


class RandomStreamError(UserError, RuntimeError):
    """A seed was requested outside of a step."""

    __init__ = Exception.__init__  # the only one that AutoGraph keeps when it adds the user's lines to the message


def seed(name: str) -> tf.Tensor:
    """Returns the seed of a stream of random numbers in this step, for `tf.random.stateless_…`: int64 [2].

    For `Task.train_step`, `Task.validation_step` and functions that they call, including layers.

    In training it depends only on `runtime.seed`, the global step and the name: it differs if one of them does, and is
    the same after a restart. In an evaluation the position in the data replaces the global step, so all evaluations
    draw the same. Two calls with one name in a step return the same seed: use a name for each purpose. Replicas have
    different seeds.

    Args:
      name: of the stream.

    Raises:
      RandomStreamError: called outside of a step, as in a layer while a model is built.

    Example:
      >>> from official_trainer import random_streams
      >>> from official_trainer.lazy import keras, tf
      >>> class Noise(keras.layers.Layer):
      ...     def call(self, images, training=None):
      ...         if training:
      ...             images += tf.random.stateless_normal(tf.shape(images), random_streams.seed("noise"))
      ...         return images
      >>> Noise()(tf.zeros([2, 4])).shape
      TensorShape([2, 4])
    """
    streams = _streams.get()
    if streams is None:
        raise RandomStreamError(_outside("seed", repr(name)))
    return streams.seed(name)


def seeds(*extra: str) -> dict[str, tf.Tensor]:
    """Returns the seeds, by name, of all streams in the task's `random_streams`, and of those in `extra`.

    For code that hands random numbers on without knowing what for, and for a task whose streams stand in one place.

    Args:
      *extra: names of further streams.

    Raises:
      RandomStreamError: a name is there twice, so that two purposes would draw the same; or as of `seed`.

    Example:
      >>> from official_trainer import Task, random_streams
      >>> from official_trainer.lazy import tf
      >>> class Denoising(Task):
      ...     random_streams = ("noise", "mask")
      ...
      ...     def train_step(self, inputs, model, optimizer, metrics=None):
      ...         seeds = random_streams.seeds("flip")  # of noise, mask and flip
      ...         inputs += tf.random.stateless_normal(tf.shape(inputs), seeds["noise"])
      ...         return super().train_step(inputs, model, optimizer, metrics)
      >>> Denoising(params=None).random_streams
      ('noise', 'mask')
    """
    streams = _streams.get()
    if streams is None:
        raise RandomStreamError(_outside("seeds", "…"))
    names = (*streams.required, *extra)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RandomStreamError(
            f"random_streams.seeds: the stream {twice!r} is there twice; the task's random_streams are "
            f"{', '.join(streams.required) or 'none'}, the extra ones {', '.join(extra) or 'none'}. Use a name for "
            "each purpose."
        )
    return {name: streams.seed(name) for name in names}


def _outside(function: str, arguments: str) -> str:
    return (
        f"random_streams.{function}({arguments}) is called outside of a step, so there is nothing that the seed could "
        "depend on. Call it in Task.train_step or Task.validation_step, or in what they call; in a layer, only if "
        "`training` is true, because layers are called to build the model too."
    )


@contextlib.contextmanager
def enabled(seed: int, *, keeps_seeds: bool) -> Iterator[None]:
    """Does what `enable` does for a `with` block; then the process has its own seeds again, and its own kind of layers.

    Args:
      seed: any integer.
      keeps_seeds: whether seeds that the program has set, by `tf.random.set_seed` or Keras's `set_random_seed`, stay.
        Initial weights are then those that the program has without `enable`.
    """
    numpy = load("numpy")
    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    with _tensorflow_seed_restored() as seed_of_program, _keras_2_restored():
        if keeps_seeds and seed_of_program is not None:
            if lazy.uses_keras(2):
                keras.backend.experimental.enable_tf_random_generator()
            with _SEEDS.in_place():
                yield
        else:
            try:
                enable(seed)
                yield
            finally:
                random.setstate(of_python)
                numpy.random.set_state(of_numpy)


@contextlib.contextmanager
def _keras_2_restored() -> Iterator[None]:
    """Gives tf_keras its own seed and its kind of layers back."""
    if not lazy.uses_keras(2):
        yield
        return
    backend = load("tf_keras.src.backend")  # there is no public way to restore its seed
    seeds, has_generators = backend._SEED_GENERATOR, backend.is_tf_random_generator_enabled()
    own_seed = getattr(seeds, "generator", None)
    try:
        yield
    finally:
        seeds.generator = own_seed
        if not has_generators:
            backend.disable_tf_random_generator()


def _seed_of_weights(original: Any) -> Any:
    """Keeps layers' generators, whose states are set by steps, from drawing seeds where initial weights draw theirs."""

    def create_seed(self: Any, given: int | None) -> int:
        return 0 if given is None and self._rng_type == self.RNG_STATEFUL else original(self, given)

    return create_seed


def _places_of_seeds() -> list[tuple[Any, str, Any]]:
    if not lazy.uses_keras(2):
        return []
    return [(load("tf_keras.src.backend").RandomGenerator, "_create_seed", _seed_of_weights)]


_SEEDS = keyed_draws.Replaced(_places_of_seeds)


@contextlib.contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Sets TensorFlow's seed for a `with` block, as `tf.random.set_seed(seed)` does; then restores the earlier one.

    `tf.random.set_seed` would also restart every random operation that draws from a seed.
    """
    with _tensorflow_seed_restored():
        keyed_draws.put_seed_state(seed, random.Random(seed))
        yield


@contextlib.contextmanager
def _tensorflow_seed_restored() -> Iterator[int | None]:
    before = keyed_draws.seed_state()
    try:
        yield before[0]
    finally:
        keyed_draws.put_seed_state(*before)


_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that no two seeds share a key


class RandomStreams:
    """The generators of one model, one stream each, and named streams.

    The generators apply a keyed function to counters (Philox; Salmon et al., 2011): streams are distinct if their
    counters are. The key is computed from the seed; a counter's high word from step and generator; draws increment its
    low word. The high word is also computed from the replica, so that replicas draw different numbers.
    """

    def __init__(self, model: Any, seed: int, required: Sequence[str] = (), generators: Sequence[Any] = ()) -> None:
        """Takes a model whose generators are set, `runtime.seed`, the task's `random_streams`, and its generators."""
        self._seed, self._required = seed, tuple(required)
        self._key = (seed * _GOLDEN + 1) % 2**64 - 2**63  # neighbouring seeds have distant keys
        self._keras, self._generators = kerases.of(model), find_generators(model, generators)

    @property
    def states(self) -> list[tf.Variable]:
        """The states of the generators, which each step sets."""
        return [kerases.value(generator.state) for generator in self._generators]

    def begin_step(self, step: tf.Tensor) -> None:
        """Sets every generator's state for `step` (scalar int64); called in replica context, traced."""
        if not self._generators:
            return
        context = tf.distribute.get_replica_context()
        of_replica = tf.cast(step, tf.int64) * context.num_replicas_in_sync
        if context.num_replicas_in_sync > 1:
            of_replica += tf.cast(context.replica_id_in_sync_group, tf.int64)
        for index, generator in enumerate(self._generators):
            stream = of_replica * len(self._generators) + index
            _set_state(generator, stream, self._key)
        self._keras.use(self._generators)

    def named(self, domain: str, step: tf.Variable | tf.Tensor) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which `seed` works, for one replica's step; `step` (int64) is its number."""
        return NamedStreams(self._seed, domain, step, self._required).drawn()

    def of_part(
        self, domain: str, step: tf.Variable, number: tf.Tensor, count: int
    ) -> contextlib.AbstractContextManager[None]:
        """Does what `named` does for micro-batch `number` of `count`; generators go on where the one before ended."""
        return self.named(domain, step.read_value() * count + number)


class NamedStreams:
    """Named seeds for one step of one replica.

    Attributes:
      required: the streams that every step of the task has.
    """

    def __init__(self, seed: int, domain: str, step: tf.Variable | tf.Tensor, required: Sequence[str] = ()) -> None:
        self.required = tuple(required)
        self._words, self._step = f"{seed} {domain}", step

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Makes `seed` and TensorFlow's stateful random operations draw from these seeds, in the thread that traces."""
        with during(_streams, self), keyed_draws.keyed(lambda number: self.seed(f"tf.random {number}")):
            yield

    def seed(self, name: str) -> tf.Tensor:
        """Returns the seed of a name, int64 [2]; stateless operations hash it, so seeds only have to be different."""
        digest = hashlib.blake2b(f"{self._words} {name}".encode(), digest_size=16).digest()
        high, low = (int.from_bytes(half, "little") % 2**62 for half in (digest[:8], digest[8:]))
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        value = self._step if isinstance(self._step, tf.Tensor) else self._step.read_value()
        step = tf.cast(value, tf.int64)
        return tf.stack([high + step * keyed_draws.STRIDE, low + tf.cast(replica, tf.int64) * keyed_draws.STRIDE])


def of_no_step(task: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which `seed` works in a trace of a step that never runs.

    TensorFlow's random operations draw as they do elsewhere: here they give weights their first values.
    """
    return during(_streams, NamedStreams(0, "no step", tf.zeros([], tf.int64), required_by(task)))


def required_by(*tasks: Any) -> tuple[str, ...]:
    """Returns the `random_streams` of all tasks, each once; Model Garden's tasks have none."""
    return tuple(dict.fromkeys(name for task in tasks for name in getattr(task, "random_streams", ())))


def settle(model: Any, step: int) -> None:
    """Sets every generator of a model to a state of `step`, whichever steps this process ran; training sets its own."""
    for index, generator in enumerate(find_generators(model)):
        _set_state(generator, index, step)


def find_generators(model: Any, others: Sequence[Any] = ()) -> list[Any]:
    """Returns `others`, and the generators of all layers of `model`, each once, in the order of its layers."""
    return kerases.of(model).generators(model, others)


def _set_state(generator: Any, stream: Any, key: int) -> None:
    """Sets a generator to the beginning of a stream of random numbers, int64."""
    stream, key = tf.cast(stream, tf.int64), tf.constant(key, tf.int64)
    if isinstance(generator, tf.random.Generator):
        generator.state.assign(tf.stack([tf.zeros([], tf.int64), stream, key]))
    else:  # of Keras 3: a draw adds 1 to the second number
        generator.state.assign(tf.stack([key, stream * _DRAWS]))


_DRAWS = 2**20  # of one generator in one step, so that no two steps share a draw
