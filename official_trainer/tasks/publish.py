"""Values from inside a traced training step: `publish.scalar`, `publish.histogram`, `publish.image`.

Owns: collecting them at the steps at which they are requested, and copying them to the host. Any other step collects
nothing: a call adds no operation to it.
Does not own: which steps these are (`actions/schedule.py`), where values go (`actions/publish_intermediates.py`).

Call them in a layer, or in a function that a task's training step calls. In code that builds a model, and in an
evaluation, they do nothing.

The step at which they are requested is traced as a separate function, which returns them. It computes the same; but
TensorFlow and XLA fuse operations, and round differently where a value has to be returned. So the last bits of the
weights may depend on which steps are published (in small dense models they do not); a restart publishes the same steps.

A name that is published twice in a step, for example by a layer that is called twice, is numbered: `features`,
`features_2`.

Example:
  >>> from official_trainer import publish
  >>> from official_trainer.lazy import keras, tf
  >>> class Encoder(keras.layers.Layer):
  ...     def call(self, images):
  ...         features = tf.reduce_mean(images, axis=[1, 2])
  ...         publish.histogram("features", features)
  ...         return features
  >>> Encoder()(tf.ones([2, 8, 8, 3])).shape
  TensorShape([2, 3])
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.keras import free_name
from official_trainer.tasks.scopes import current_graph, during
from official_trainer.tracking import Histogram, Image

Tensors = dict[str, dict[str, Any]]
"""The values that a step has published, by kind and name."""


class PublishError(UserError, ValueError):
    """A value that cannot be published, or a place from which none can."""

    __init__ = Exception.__init__  # the only one that AutoGraph keeps when it adds the user's lines to the message


_collection: ContextVar[_Collection | None] = ContextVar("collection", default=None)
_request: ContextVar[Tensors | None] = ContextVar("request", default=None)
"""What a step of all replicas fills with the values that it publishes, where they are requested."""


# For authors of models and tasks.


@do_not_convert
def scalar(name: str, value: Any) -> None:
    """Publishes one number; over replicas, its mean.

    Args:
      name: of the number.
      value: a scalar tensor of any type of numbers.

    Raises:
      PublishError: it is not one number, or cannot be returned from this part of the step.

    Example:
      >>> from official_trainer import Task, publish
      >>> from official_trainer.lazy import keras, tf
      >>> class Digits(Task):
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         publish.scalar("largest_logit", tf.reduce_max(model_outputs))
      ...         return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
      >>> Digits(params=None).build_losses(tf.constant([3, 7]), tf.zeros([2, 10])).shape
      TensorShape([2])
    """

    def check(call: str, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.shape.rank not in (0, None):
            raise PublishError(_no_scalar(call, tensor.shape))
        return _checked_numbers(call, tensor)

    _publish("scalar", name, value, check)


@do_not_convert
def histogram(name: str, value: Any) -> None:
    """Publishes the distribution of numbers; over replicas, of all of them together.

    Args:
      name: of the distribution.
      value: a tensor of any shape and any type of numbers.

    Raises:
      PublishError: it holds no numbers, or cannot be returned from this part of the step.

    Example:
      >>> from official_trainer import publish
      >>> from official_trainer.lazy import keras, tf
      >>> class Relu(keras.layers.Layer):
      ...     def call(self, x):
      ...         publish.histogram(f"{self.name}/inputs", x)
      ...         return tf.nn.relu(x)
      >>> Relu()(tf.constant([[-1.0, 2.0]])).numpy().tolist()
      [[0.0, 2.0]]
    """
    _publish("histogram", name, value, _checked_numbers)


@do_not_convert
def image(name: str, value: Any, *, max_images: int = 3) -> None:
    """Publishes the first images of a batch, as `name/0`, `name/1`, …; of the first replica.

    Args:
      name: of the images.
      value: `[batch, height, width, channels]`, one to four channels; uint8, or floats from 0 (dark) to 1.
      max_images: how many at most.

    Raises:
      PublishError: it is not a batch of images, or cannot be returned from this part of the step.

    Example:
      >>> from official_trainer import publish
      >>> from official_trainer.lazy import keras, tf
      >>> class Augment(keras.layers.Layer):
      ...     def call(self, images, training=None):
      ...         if training:
      ...             images = 1.0 - images
      ...             publish.image("augmented", images, max_images=1)
      ...         return images
      >>> Augment()(tf.ones([4, 8, 8, 1]), training=True).shape
      TensorShape([4, 8, 8, 1])
    """

    def check(call: str, tensor: tf.Tensor) -> tf.Tensor:
        shape = tensor.shape
        if shape.rank != 4 or shape[-1] not in (1, 2, 3, 4, None):
            raise PublishError(
                f"{call} got the shape {shape}, but images are [batch, height, width, channels] with one to four "
                "channels. A matrix becomes one by matrix[None, :, :, None]."
            )
        if not (tensor.dtype.is_floating or tensor.dtype == tf.uint8):
            raise PublishError(f"{call} got {tensor.dtype.name}; images are uint8, or floats between 0 and 1.")
        return tensor[:max_images]

    _publish("image", name, value, check)


@do_not_convert
def is_wanted() -> bool:
    """Whether the published values of this step are requested; for values that are expensive to compute.

    Example:
      >>> from official_trainer import publish
      >>> from official_trainer.lazy import keras, tf
      >>> class Projection(keras.layers.Dense):
      ...     def call(self, inputs):
      ...         if publish.is_wanted():
      ...             publish.scalar("largest_singular_value", tf.linalg.svd(self.kernel, compute_uv=False)[0])
      ...         return super().call(inputs)
      >>> Projection(3)(tf.zeros([2, 4])).shape
      TensorShape([2, 3])
    """
    collection = _collection.get()
    return collection is not None and collection.is_wanted


# For the engine, which runs steps.


class _Collection:
    """The published values of one replica in a step; made in the thread and graph that trace the step."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self.tensors: Tensors = {"scalar": {}, "histogram": {}, "image": {}}
        self._graph = current_graph()

    def check_place(self, call: str, value: Any) -> None:
        """Refuses a value of a graph inside the step's graph, from which it cannot be returned."""
        here = current_graph()
        if here is not self._graph or (here is not None and getattr(value, "graph", here) is not here):
            raise PublishError(
                f"{call} is called inside a tf.function, tf.cond or loop (an `if` or `for` over tensors, a recurrent "
                "layer) within the training step, whose values cannot be published. Return the tensor from there, and "
                "publish it outside."
            )


def discarded() -> contextlib.AbstractContextManager[Any]:
    """Returns a context that discards what is published, for a part of a step that is run several times."""
    return during(_collection, None)


def is_requested() -> bool:
    """Whether the step of all replicas that is being traced has to return its published values; see `deliver`."""
    return _request.get() is not None


def deliver(tensors: Tensors | None) -> None:
    """Takes the values that the replicas have published in this step; None if they were not requested."""
    request = _request.get()
    if request is not None and tensors is not None:
        request.update(tensors)


@contextlib.contextmanager
def collecting(*, is_wanted: bool) -> Iterator[Tensors]:
    """For one replica's step: yields what takes its published values, if `is_wanted`."""
    collection = _Collection(is_wanted=is_wanted)
    with during(_collection, collection):
        yield collection.tensors


def returning(step: Callable[[Any], Any]) -> Callable[[Any], Tensors]:
    """Returns the `step` of all replicas as a function that returns their published values."""

    def run(inputs: Any) -> Tensors:
        tensors: Tensors = {}
        with during(_request, tensors):
            step(inputs)
        return tensors

    return run


def on_host(tensors: Tensors, strategy: tf.distribute.Strategy) -> dict[str, float | Histogram | Image]:
    """Returns the published values of a step by name, in NumPy's types, over all replicas.

    Raises:
      PublishError: a scalar is not one number.
    """
    import numpy as np

    published: dict[str, float | Histogram | Image] = {}
    for summary_type, named in tensors.items():
        for name, value in named.items():
            arrays = [_numbers(array) for array in strategy.experimental_local_results(value)]
            if summary_type == "scalar":
                if shape := next((array.shape for array in arrays if array.ndim), None):
                    raise PublishError(_no_scalar(f"publish.scalar({name!r}, …)", shape))
                published[name] = sum(map(float, arrays)) / len(arrays)
            elif summary_type == "histogram":
                published[name] = Histogram(arrays[0] if len(arrays) == 1 else np.concatenate([*map(np.ravel, arrays)]))
            else:
                pixels = arrays[0] if arrays[0].dtype == np.uint8 else np.clip(arrays[0], 0.0, 1.0)
                published |= {f"{name}/{index}": Image(image) for index, image in enumerate(pixels)}
    return published


def _publish(summary_type: str, name: str, value: Any, check: Callable[[str, tf.Tensor], tf.Tensor]) -> None:
    collection = _collection.get()
    if collection is None:
        return
    call = f"publish.{summary_type}({name!r}, …)"
    # At every step: otherwise the run would fail late, at the first step that is requested.
    collection.check_place(call, value)
    if collection.is_wanted:
        taken = {name for named in collection.tensors.values() for name in named}
        collection.tensors[summary_type][free_name(name, taken)] = check(call, tf.convert_to_tensor(value))


def _no_scalar(call: str, shape: Any) -> str:
    return (
        f"{call} got the shape {list(shape)}, but a scalar is one number. Reduce it, by tf.reduce_mean for example, or "
        "use publish.histogram."
    )


def _checked_numbers(call: str, tensor: tf.Tensor) -> tf.Tensor:
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise PublishError(f"{call} got {tensor.dtype.name}; numbers can be published.")
    return tensor


def _numbers(value: Any) -> Any:
    import numpy as np

    array = np.asarray(value)
    is_known = array.dtype.kind in "fiub" and array.dtype != np.float16
    return array if is_known else array.astype(np.float32)  # NumPy has no bfloat16, and float16 would overflow
