"""What Model Garden adds to Keras, for Keras 3: offsets, the linear warm-up, weight decay by the names of weights.

Owns: classes that compute the float32 numbers of Model Garden's classes with these names, to the bit. Keras loads them
from a `.keras` file once this module is imported, which imports Keras 3, and neither tf_keras nor Model Garden.
Does not own: which class a configuration means (`optimizers3.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

_registered = keras.saving.register_keras_serializable(package="official_trainer")


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A dataclass whose fields are its configuration; a field may hold another schedule."""

    def get_config(self) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self)]
        return {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> _Schedule:
        return cls(**{name: keras.saving.deserialize_keras_object(value) for name, value in config.items()})


def _schedule(cls: type[_Schedule]) -> type[_Schedule]:
    return _registered(dataclasses.dataclass(eq=False)(cls))


def _rate(schedule: Any, step: Any) -> Any:
    """Returns the rate of a schedule, or the one that is the same at every step; a scalar float32."""
    return schedule(step) if callable(schedule) else ops.cast(schedule, "float32")


@_schedule
class WithOffset(_Schedule):
    """A schedule that starts `offset` steps later."""

    schedule: Any
    offset: int

    def __call__(self, step: Any) -> Any:
        return self.schedule(ops.cast(step - self.offset, "float32"))


@_schedule
class LinearWarmup(_Schedule):
    """Rises from `warmup_learning_rate` in a straight line to the rate that the schedule has after `warmup_steps`."""

    schedule: Any
    warmup_steps: int
    warmup_learning_rate: float

    def __post_init__(self) -> None:
        self._peak = _rate(self.schedule, self.warmup_steps)  # computed once, outside of the step

    def __call__(self, step: Any) -> Any:
        begun, first = ops.cast(step, "float32"), self.warmup_learning_rate
        rising = first + begun / self.warmup_steps * (self._peak - first)
        return ops.where(begun < self.warmup_steps, rising, _rate(self.schedule, step))


@_registered
class AdamWeightDecay(keras.optimizers.AdamW):
    """Keras 3's AdamW, in which patterns are sought in the whole path of a weight, as Model Garden's seeks them.

    Keras's own `exclude_from_weight_decay(var_names=…)` sees the last part of a path only: `gamma`, and not the
    `layer_norm` in `encoder/layer_norm/gamma`.
    """

    def __init__(
        self,
        *args: Any,
        include_in_weight_decay: Iterable[str] | None = None,
        exclude_from_weight_decay: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes regular expressions beside Keras's arguments; what is included decays even if it is excluded too."""
        super().__init__(*args, **kwargs)
        self._included, self._excluded = [*(include_in_weight_decay or ())], [*(exclude_from_weight_decay or ())]

    def build(self, variables: Sequence[keras.Variable]) -> None:
        left = [variable for variable in variables if not self._decays(getattr(variable, "path", variable.name))]
        self.exclude_from_weight_decay(var_list=left)
        super().build(variables)

    def get_config(self) -> dict[str, Any]:
        patterns = {"include_in_weight_decay": [*self._included], "exclude_from_weight_decay": [*self._excluded]}
        return super().get_config() | patterns

    def _decays(self, path: str) -> bool:
        def match(patterns: Iterable[str]) -> bool:  # one for Keras 2 may end with `:0`
            return any(re.search(pattern, name) for pattern in patterns for name in (path, f"{path}:0"))

        return match(self._included) or not match(self._excluded)
