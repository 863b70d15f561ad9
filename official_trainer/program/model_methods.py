"""What a Program has of its Keras model, under the model's names.

Owns: the methods and properties of `keras.Model` that need nothing but the model, and what is said about those that
only the model has. Does not own: what runs on the engine (`program.py`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from official_trainer.lazy import keras
from official_trainer.program import keras_fit

_ELSEWHERE = {
    **{f"{name}_generator": f"{name} takes generators" for name in ("fit", "evaluate", "predict")},
    **{
        f"make_{name}_function": f"the engine traces the steps; override {name}_step of the model"
        for name in ("train", "test", "predict")
    },
    **{f"stop_{name}": f"a callback sets self.model.stop_{name}" for name in ("evaluating", "predicting")},
    "save_variables": "use save_weights",
    "load_variables": "use load_weights",
}
"""Names of Keras and Synalinks that are not here, or would have no effect, each with the way there is."""


def or_of_model(method: Callable[..., None]) -> Callable[..., None]:
    """Has a method call the model's own in its place, with whatever arguments that takes, if the model overrides it."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not keras_fit.has_own(self.model, method.__name__):
            return method(self, *arguments, **keywords)
        with self.model.distribute_strategy.scope():
            return getattr(self.model, method.__name__)(*arguments, **keywords)

    return call


class ModelMethods:
    """Methods and properties of a Keras model.

    Attributes:
      model: the Keras model.
    """

    model: keras.Model

    @property
    def optimizer(self) -> Any:
        """The optimizer of the last `compile`; None before."""
        return getattr(self.model, "optimizer", None)

    @property
    def history(self) -> keras.callbacks.History | None:
        """The history of the last `fit`; None before."""
        return getattr(self.model, "history", None)

    @property
    def metrics(self) -> list[Any]:
        """The model's metrics, losses included."""
        return list(self.model.metrics)

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`."""
        return list(self.model.metrics_names)

    @property
    def stop_training(self) -> bool:
        """Whether `fit` is to end; callbacks set it."""
        return bool(self.model.stop_training)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self.model.stop_training = value

    def __call__(self, x: Any, training: bool = False) -> Any:
        """Returns the model's outputs for a batch as tensors, with its weights as they are.

        Args:
          x: features, `[batch, …]`.
          training: whether layers such as dropout work as in training.
        """
        return self.model(x, training=training)

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns the results of the metrics by name."""
        return dict(self.model.get_metrics_result())

    def reset_metrics(self) -> None:
        """Sets the metrics to what they are before the first batch."""
        self.model.reset_metrics()

    def summary(self, *arguments: Any, **keywords: Any) -> None:
        """Prints the layers; see `keras.Model.summary`, whose arguments these are."""
        self.model.summary(*arguments, **keywords)

    def save_weights(self, filepath: str | os.PathLike[str], *arguments: Any, **keywords: Any) -> None:
        """Writes the model's variables as Keras does; `load_weights` reads them. See `keras.Model.save_weights`."""
        self.model.save_weights(os.fspath(filepath), *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        # Called for names that a Program does not have. Looked up in `vars`, because the model may not be set yet.
        kind = type(self).__name__
        if name in _ELSEWHERE:
            raise AttributeError(f"{kind} has no attribute {name!r}; {_ELSEWHERE[name]}")
        model = vars(self).get("model")
        if not name.startswith("_") and model is not None and (hasattr(type(model), name) or hasattr(model, name)):
            raise AttributeError(f"{kind} has no attribute {name!r}, but its model has it: model.{name}")
        raise AttributeError(f"{kind} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ELSEWHERE:
            raise AttributeError(f"{type(self).__name__}.{name} would have no effect; {_ELSEWHERE[name]}")
        is_own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        model = vars(self).get("model")
        if not is_own and model is not None and hasattr(keras_fit.of(model).MODULE.Model, name):
            raise AttributeError(f"{type(self).__name__}.{name} would not reach the model; set model.{name} instead")
        super().__setattr__(name, value)
