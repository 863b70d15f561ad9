"""What a Program needs of compile, steps, callbacks and files of Keras, for each Keras.

Owns: `KerasFit`, the narrow contract, and finding the implementation for an object: Keras 3 (`keras3.py`), or tf_keras,
that is Keras 2 (`keras2.py`). Does not own: what any model needs (`tasks/keras/`), the loop.

Names that both Kerases have, such as `callbacks.CallbackList`, are taken from `MODULE`. The methods are about what only
one of them has, or has no public name for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.metrics import inner_metrics

_BATCHES = {True: ("on_train_batch_begin", "on_train_batch_end"), False: ("on_test_batch_begin", "on_test_batch_end")}
_OF_BATCHES = ("on_batch_begin", "on_batch_end")  # which those of training call


class KerasFit(Protocol):
    """The contract: `KERAS` of `keras2.py` and that of `keras3.py`. A method with a body here does for both."""

    MODULE: Any
    """The Keras itself."""

    # Compiling.

    def compile(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Compiles a model; None stands for Keras's default.

        Raises:
          ArgumentError: losses or their weights are for outputs that the model does not have, and Keras says nothing.
        """

    def compiled(self, model: Any) -> Any:
        """Returns an object that each `compile` makes anew."""

    def build(self, model: Any, element_spec: Any) -> None:
        """Creates the variables that a traced step of several replicas cannot; called in the strategy's scope."""
        return None

    def check_outputs(self, model: Any) -> None:
        """Refuses what was compiled for other outputs, after the first batch has shown them; see `compile`."""
        return None

    def weighted_metrics(self, model: Any) -> Any:
        """Returns the argument `weighted_metrics` with which a model was compiled."""

    # Steps; called in replica context, traced.

    def compute_loss(self, model: Any, batch: Sequence[Any], *, training: bool) -> Any:
        """Returns the result of the model's `compute_loss` for `(x, y, outputs, sample_weight)`."""

    def update_metrics(self, model: Any, batch: Sequence[Any]) -> None:
        """Updates what was compiled as metrics with `(x, y, outputs, sample_weight)`."""

    def measure_loss(self, model: Any, loss: tf.Tensor, x: Any) -> None:
        """Updates the metric `loss` with what a step minimises, where `compute_loss` does not."""
        return None

    def measure_reward(self, model: Any, reward: tf.Tensor, minimised: tf.Tensor, outputs: Any) -> None:
        """Makes the metric `loss` what a step minimises, where `compute_loss` has updated it without the reward."""
        return None

    def minimize(self, optimizer: Any, loss: tf.Tensor, model: Any, tape: tf.GradientTape) -> None:
        """Updates the weights of a model by the gradients of a loss."""

    def count(self, model: Any, *, training: bool) -> None:
        """Counts a step where callbacks read it; those of Keras 3 count themselves."""
        return None

    def reset_count(self, model: Any, *, training: bool) -> None:
        """Sets that counter to 0."""
        return None

    # Calls.

    def steps_in(self, count: int | None, steps: int | None) -> int | None:
        """Returns how many of `steps` an epoch has of data with `count` batches; None for no number."""
        return steps

    def last_batch(self, model: Any, batch: int) -> int:
        """Returns the number that callbacks are told of the last batch of a call, where it is `batch`."""
        return batch

    def as_compiled(self, model: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which layers are trainable as they were at `compile`, where this Keras does so."""
        return contextlib.nullcontext()

    def steps_between_calls(self, model: Any) -> int:
        """Returns the steps from one call of callbacks for batches to the next."""

    def first_epoch_and_batch(self, model: Any, steps: int, first_epoch: int) -> tuple[int, int]:
        """Returns the epoch and the batch at which training begins after `on_train_begin`; see BackupAndRestore."""

    def looks_at_batches(self, callback: Any, *, training: bool) -> bool:
        """Whether a callback has a method for batches of its own, also as an attribute; or says so itself."""
        looks = getattr(callback, f"_implements_{'train' if training else 'test'}_batch_hooks", None)
        if looks is not None:
            return bool(looks())
        base = self.MODULE.callbacks.Callback
        names = (*_BATCHES[training], *(_OF_BATCHES if training else ()))
        methods = {name: getattr(callback, name) for name in names}
        return any(getattr(method, "__func__", method) is not getattr(base, name) for name, method in methods.items())

    def take_up(self, callback: Any) -> None:
        """Makes a callback fit after its numbers and words were restored."""
        return None


def of(*things: Any) -> KerasFit:
    """Returns the implementation for objects: Keras 3 if one of them is of it."""
    if any(map(kerases.is_3, things)):
        from official_trainer.program.keras_fit import keras3

        return keras3.KERAS
    from official_trainer.program.keras_fit import keras2

    return keras2.KERAS


def overrides(model: Any, method: str) -> bool:
    """Whether a model overrides a method of Keras's."""
    return getattr(type(model), method) is not getattr(of(model).MODULE.Model, method)


def adds_up(model: Any) -> bool:
    """Whether a loss of a compiled model is a sum over examples, not a mean."""
    return any(getattr(loss, "reduction", None) == "sum" for loss in tf.nest.flatten(model.loss))


def names(metric: Any) -> dict[str, str]:
    """Returns the names of the logs of a metric of a model, each with its name among the engine's logs.

    The object that Keras 3 has for all metrics of `compile` has several, and so may each of those.
    """
    if inner_metrics(metric) == [metric]:
        return {metric.name: metric.name}
    logs: dict[str, str] = {}
    for name, value in metric.result().items():
        logs |= {inner: f"{name}/{inner}" for inner in value} if isinstance(value, Mapping) else {name: name}
    return logs


def results(model: Any) -> dict[str, Any]:
    """Returns the results of the metrics of a model, not nested, under the names that callbacks get."""
    values: dict[str, Any] = {}
    for name, value in model.get_metrics_result().items():
        values |= value if isinstance(value, Mapping) else {name: value}
    return values


def names_in_order(model: Any) -> list[str]:
    """Returns the names of results in the order of the list that `evaluate` returns."""
    return [inner.name for metric in model.metrics for inner in inner_metrics(metric)]
