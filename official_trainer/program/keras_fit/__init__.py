"""What a Program needs of compile, steps, callbacks and files of Keras, for each Keras.

Owns: `KerasFit`, the narrow contract, and finding the implementation for an object: Keras 3 (`keras3.py`), or tf_keras,
that is Keras 2 (`keras2.py`). Does not own: what any model needs (`tasks/keras/`), the loop.

Names that both Kerases have, such as `callbacks.CallbackList`, are taken from `MODULE`. The functions are about what
only one of them has, or has no public name for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases


class KerasFit(Protocol):
    """The contract; each implementation is a module.

    Size: all that differs of compile, steps, callbacks and results is in one place.
    """

    MODULE: Any
    """The Keras itself."""

    # Compiling.

    def compile(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Compiles a model; None stands for Keras's default.

        Raises:
          ArgumentError: losses, their weights or metrics are for outputs that the model does not have.
        """

    def compiled(self, model: Any) -> Any:
        """Returns an object that each `compile` makes anew."""

    def build(self, model: Any, element_spec: Any) -> None:
        """Creates the variables that a traced step of several replicas cannot; called in the strategy's scope."""

    def check_outputs(self, model: Any) -> None:
        """Refuses what was compiled for other outputs, after the first batch has shown them; see `compile`."""

    def build_rewards(self, model: Any, arguments: Mapping[str, Any], *, is_overridden: bool) -> Any:
        """Returns the rewards of a model, for the arguments of `compile` about them; None without any.

        Raises:
          ArgumentError: they contradict each other, or this Keras has none.
        """

    def attach_rewards(self, model: Any, rewards: Any) -> None:
        """Puts rewards beside the losses of a compiled model."""

    def rewards_of_layers(self, model: Any) -> list[Any]:
        """Returns the rewards that layers have added in the last call of a model."""

    def with_fixed_scale(self, optimizer: Any, scale: Any) -> Any:
        """Returns an optimizer, given as one or by its name, with a loss scale of float16 that does not change."""

    # Steps; called in replica context, traced.

    def compute_loss(self, model: Any, batch: Sequence[Any], *, training: bool) -> Any:
        """Returns the result of the model's `compute_loss` for `(x, y, outputs, sample_weight)`."""

    def update_metrics(self, model: Any, batch: Sequence[Any]) -> None:
        """Updates what was compiled as metrics with `(x, y, outputs, sample_weight)`."""

    def measure_loss(self, model: Any, loss: tf.Tensor, x: Any) -> None:
        """Updates the metric `loss`, where `compute_loss` does not."""

    def minimize(self, optimizer: Any, loss: tf.Tensor, model: Any, tape: tf.GradientTape) -> None:
        """Updates the weights of a model by the gradients of a loss."""

    def adds_up(self, model: Any) -> bool:
        """Whether a loss is a sum over examples, not a mean."""

    def count(self, model: Any, *, training: bool) -> None:
        """Counts a step where callbacks read it."""

    def reset_count(self, model: Any, *, training: bool) -> None:
        """Sets that counter to 0."""

    # Calls.

    def as_compiled(self, model: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which layers are trainable as they were at `compile`, where this Keras does so."""

    def steps_between_calls(self, model: Any) -> int:
        """Returns the steps from one call of callbacks for batches to the next."""

    def first_place(self, model: Any, steps: int, first_epoch: int) -> tuple[int, int]:
        """Returns the epoch and the batch at which training begins after `on_train_begin`; see BackupAndRestore."""

    def looks_at_batches(self, callback: Any, *, training: bool) -> bool:
        """Whether a callback does something before or after batches."""

    def take_up(self, callback: Any) -> None:
        """Makes a callback fit after its numbers and words were restored."""

    def names(self, metric: Any) -> dict[str, str]:
        """Returns the names of the logs of a metric of a model, each with its name among the engine's logs."""

    def results(self, model: Any) -> dict[str, Any]:
        """Returns the results of the metrics of a model, not nested."""

    def names_in_order(self, model: Any) -> list[str]:
        """Returns the names of results in the order of the list that `evaluate` returns."""


def of(*things: Any) -> KerasFit:
    """Returns the implementation for objects: Keras 3 if one of them is of it."""
    if any(map(kerases.is_3, things)):
        from official_trainer.program.keras_fit import keras3

        return keras3
    from official_trainer.program.keras_fit import keras2

    return keras2


def has_own(model: Any, method: str) -> bool:
    """Whether a model overrides a method of Keras's."""
    return getattr(type(model), method) is not getattr(of(model).MODULE.Model, method)
