"""One reward: a function of targets and outputs, by name, in TensorFlow or in Python.

Owns: the names of rewards, calling a function of TensorFlow while a step is traced, calling a function of Python for
each example while the step runs, and their errors. Does not own: the reward of each output (`rewards.py`), or training
with a reward that has no gradient (`estimators.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, load, tf
from official_trainer.nearest import nearest
from official_trainer.program.data import ArgumentError
from official_trainer.shown import shorten
from official_trainer.tasks import random_streams
from official_trainer.tasks.autograph import convert, do_not_convert

_PACKAGE = "official_trainer"


class RewardError(UserError, ValueError):
    """A reward cannot be computed, or has no gradient and no estimator."""

    exit_code = ExitCode.CONFIG
    __init__ = Exception.__init__  # so that AutoGraph raises the same error again


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True)
class PythonReward:
    """A reward that Python computes for one example at a time, for example by a search or a call of a service.

    It has no gradient, so it needs a `reward_estimator`. Each step waits for it: the outputs leave the device, the
    rewards of all examples are computed, and return to the device. XLA cannot compile such a step.

    Attributes:
      function: called as `function(y_true, y_pred)` with the targets (None without targets) and the outputs of one
        example, as NumPy arrays; returns a number. An `async def` is called for all examples of a batch at once, in
        one event loop for the whole process; it needs no `PythonReward` around it.

    Example:
      >>> import numpy as np
      >>> from official_trainer.lazy import keras
      >>> from official_trainer.program import Program, PythonReward, ScoreFunction
      >>> def near(y_true, y_pred):  # of one example: y_true and the sampled class y_pred are NumPy scalars
      ...     return 1.0 / (1 + abs(int(y_true) - int(y_pred)))
      >>> x = np.eye(4, dtype="float32").repeat(8, axis=0)
      >>> program = Program(keras.Sequential([keras.Input([4]), keras.layers.Dense(4)]))
      >>> program.compile("adam", reward=PythonReward(near), reward_estimator=ScoreFunction())
      >>> history = program.fit(x, x.argmax(axis=1), epochs=1, verbose=0)
      >>> 0 < history.history["reward"][0] <= 1
      True
    """

    function: Callable[[Any, Any], Any]

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the result of the function."""
        return self.function(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments for `from_config`."""
        return {"function": keras.saving.serialize_keras_object(self.function)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PythonReward:
        """Returns the reward of such a config."""
        return cls(keras.saving.deserialize_keras_object(config["function"]))


class RewardFunction:
    """A reward from the arguments of `compile`, ready to be called.

    Attributes:
      name: its name in errors.
      is_python: whether Python computes it while the step runs.
    """

    def __init__(self, reward: Any, place: str) -> None:
        """Takes a function or a name.

        Args:
          reward: the function or name.
          place: the argument of `compile`, as errors name it.

        Raises:
          ArgumentError: it is neither.
        """
        function = _named(reward, place) if isinstance(reward, str) else reward
        if isinstance(function, keras.losses.Loss | keras.metrics.Metric) or not callable(function):
            raise ArgumentError(
                f"{place}={reward!r}: a reward is a function of (y_true, y_pred) that returns a number for each "
                f"example, or one of the names {', '.join(_names())}; give a loss as loss=…, a metric as metrics=…"
            )
        self._function = called = function.function if isinstance(function, PythonReward) else function
        self.name = str(getattr(called, "name", None) or getattr(called, "__name__", None) or type(called).__name__)
        self._is_async = any(map(inspect.iscoroutinefunction, (called, type(called).__call__)))
        self.is_python = self._is_async or isinstance(function, PythonReward)
        self._failure: BaseException | None = None

    @do_not_convert
    def of_batch(self, y_true: Any, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the rewards of a batch, float32: [batch, …], or a scalar for all of it.

        Raises:
          RewardError: the function cannot be called with tensors.
        """
        if self.is_python:
            return self._in_python([] if y_true is None else [y_true], y_pred)
        try:
            if y_true is not None:  # in the rank and type that Keras uses for losses; else [n] and [n, 1] make [n, n]
                matching = load("tf_keras.src.engine.compile_utils")
                y_true, y_pred, _ = matching.match_dtype_and_rank(y_true, y_pred, None)
            values = convert(self._function)(y_true, y_pred)
            values = tf.cast(tf.convert_to_tensor(values), tf.float32)
        except Exception as error:
            raise RewardError(
                f"reward {self.name!r} cannot be computed with tensors ({type(error).__name__}: {error}). If it "
                f"computes in Python or NumPy, reward=PythonReward({self.name}) calls it with arrays, for one example "
                "at a time"
            ) from error
        return values if values.shape.rank is not None else tf.reshape(values, [tf.shape(y_pred)[0]])

    @do_not_convert
    def of_samples(self, y_true: Any, samples: tf.Tensor) -> tf.Tensor:
        """Returns the rewards of several outputs [samples, batch, …] for the same targets: [samples, batch, …].

        [samples] if each has a single reward. Python gets all samples at once. The random numbers of a function are the
        same for each sample.
        """
        count, shapes = samples.shape[0], []

        def of_one(sample: tf.Tensor) -> tf.Tensor:
            with random_streams.again():
                values = self.of_batch(y_true, sample)
            shapes.append(values.shape)
            return values

        if not self.is_python:
            values = tf.map_fn(of_one, samples, fn_output_signature=tf.float32)
            return tf.ensure_shape(values, [count, *shapes[0]])
        targets = [] if y_true is None else [tf.concat([y_true] * count, axis=0)]
        batch = tf.shape(samples)[1]
        flat = tf.reshape(samples, tf.concat([[count * batch], tf.shape(samples)[2:]], axis=0))
        return tf.reshape(self._in_python(targets, flat), [count, batch])

    def take_failure(self) -> RewardError | None:
        """Returns the error about one that the function has raised in Python, and clears it; None for none."""
        cause, self._failure = self._failure, None
        if cause is None:
            return None
        error = RewardError(f"reward {self.name!r} has failed: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error

    def _in_python(self, targets: Sequence[tf.Tensor], y_pred: tf.Tensor) -> tf.Tensor:
        values = tf.numpy_function(self._of_arrays, [y_pred, *targets], tf.float32)
        return tf.reshape(values, [tf.shape(y_pred)[0]])

    def _of_arrays(self, y_pred: np.ndarray, *targets: np.ndarray) -> np.ndarray:
        try:
            examples = list(zip(targets[0] if targets else [None] * len(y_pred), y_pred, strict=True))
            if self._is_async:
                values = _all_at_once(self._function, examples)
            else:
                values = [self._function(*example) for example in examples]
            arrays = list(map(np.asarray, values))
            for value, array in zip(values, arrays, strict=True):
                if array.size != 1 or array.dtype.kind not in "biuf":
                    raise RewardError(f"it returned {shorten(repr(value))} for an example; it must return a number")
            return np.array([array.item() for array in arrays], np.float32)
        except BaseException as error:
            self._failure = error  # TensorFlow replaces errors by its own; one of those means the end of the data
            raise RuntimeError(f"reward {self.name!r}: {type(error).__name__}: {error}") from error


def _all_at_once(function: Callable[..., Coroutine[Any, Any, Any]], examples: Sequence[Any]) -> list[Any]:
    """Returns the results of a coroutine function for all examples; the first error cancels the other calls."""

    async def rewarded() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(function(*example)) for example in examples]
        return [task.result() for task in tasks]

    try:
        with _starting:
            loop = _event_loop()
        return asyncio.run_coroutine_threadsafe(rewarded(), loop).result()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


_starting = threading.Lock()  # programs may train in several threads


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of rewards; a single one, because clients of services belong to the loop they began in."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop


# Names.

_OF_KERAS = (
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
    "top_k_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
)


def _names() -> list[str]:
    return ["accuracy", *_OF_KERAS, "cosine_similarity"]


def _named(name: str, place: str) -> Any:
    """Returns the function of a name: a metric of Keras that is better when higher, or a registered function."""
    if name in ("accuracy", "acc"):
        return accuracy
    if name in _OF_KERAS:
        return getattr(keras.metrics, name)
    if name == "cosine_similarity":
        return cosine_similarity
    if (registered := keras.saving.get_registered_object(name)) is not None:
        return registered
    if hasattr(keras.losses, name):
        raise ArgumentError(f"{place}={name!r}: this is a loss, but a reward is maximised; give loss={name!r}")
    near = nearest(name, _names())
    raise ArgumentError(
        f"{place}={name!r} is not a name of a reward; allowed: {', '.join(_names())}, and functions registered with "
        f"keras.saving.register_keras_serializable{f'; did you mean {near[0]!r}?' if near else ''}"
    )


def cosine_similarity(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns the cosine of the angle between target and output, along the last axis."""
    return -keras.losses.cosine_similarity(y_true, y_pred)  # Keras's function is a loss, and so the negative


def accuracy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns 1.0 where the class is right; outputs are sampled classes, or those of Keras's accuracy metrics."""
    if y_pred.dtype.is_integer:
        one_hot = y_true.shape.rank > y_pred.shape.rank
        classes = tf.argmax(y_true, axis=-1) if one_hot else tf.reshape(y_true, tf.shape(y_pred))
        return tf.cast(tf.cast(classes, y_pred.dtype) == y_pred, tf.float32)
    if y_pred.shape[-1] == 1:
        return keras.metrics.binary_accuracy(tf.cast(y_true, y_pred.dtype), y_pred)
    if y_true.shape.rank < y_pred.shape.rank or y_true.shape[-1] == 1:
        return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)
    return keras.metrics.categorical_accuracy(y_true, y_pred)
