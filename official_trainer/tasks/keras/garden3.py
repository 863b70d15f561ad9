"""What Model Garden adds to Keras, for Keras 3: schedules, warm-ups, weight decay by the names of weights.

Owns: classes that compute the float32 numbers of Model Garden's classes with these names, to the bit. Keras loads them
from a `.keras` file once this module is imported, which imports Keras 3, and neither tf_keras nor Model Garden.
Does not own: which class a configuration means (`optimizers3.py`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

_registered = keras.saving.register_keras_serializable(package="official_trainer")


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A dataclass whose fields are its configuration; a field may hold another schedule."""

    def get_config(self) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self) if field.init]
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
class TimeInverseDecay(_Schedule):
    """A rate divided by `1 + decay * step`: the field `decay` of Keras 2's SGD, which Keras 3's no longer has."""

    schedule: Any
    decay: float

    def __call__(self, step: Any) -> Any:
        return _rate(self.schedule, step) / (1.0 + self.decay * ops.cast(step, "float32"))


@dataclasses.dataclass(eq=False)
class _Warmup(_Schedule):
    """Rises to the rate that the schedule has after `warmup_steps`, which is computed once, outside of the step."""

    schedule: Any
    warmup_steps: int
    _peak: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._peak = _rate(self.schedule, self.warmup_steps)

    def __call__(self, step: Any) -> Any:
        begun = ops.cast(step, "float32")
        return ops.where(begun < self.warmup_steps, self._rising(begun, self._peak), _rate(self.schedule, step))


@_schedule
class LinearWarmup(_Warmup):
    """A straight line from `warmup_learning_rate`."""

    warmup_learning_rate: float

    def _rising(self, step: Any, peak: Any) -> Any:
        return self.warmup_learning_rate + step / self.warmup_steps * (peak - self.warmup_learning_rate)


@_schedule
class PolynomialWarmUp(_Warmup):
    """A power of the step; step 0 has the rate of step 1."""

    power: float

    def _rising(self, step: Any, peak: Any) -> Any:
        return peak * ops.power(ops.maximum(step, 1.0) / self.warmup_steps, self.power)


@_schedule
class PowerAndLinearDecay(_Schedule):
    """A power of the step, multiplied by a straight line to zero in the last share of `total_decay_steps`."""

    initial_learning_rate: float
    power: float
    total_decay_steps: int = 0
    linear_decay_fraction: float = 0.0  # without a line it is Model Garden's DirectPowerDecay

    def __call__(self, step: Any) -> Any:
        begun = ops.cast(step, "float32")
        rate = self.initial_learning_rate * ops.power(ops.maximum(begun, 1.0), self.power)
        linear_steps = self.total_decay_steps * self.linear_decay_fraction
        if linear_steps > 0:
            rate = ops.maximum(0.0, rate * ops.minimum(1.0, (self.total_decay_steps - begun) / linear_steps))
        return rate


@_schedule
class PowerDecayWithOffset(_Schedule):
    """`pre_offset_learning_rate` until `offset`, then a power of the steps since, never above that rate."""

    initial_learning_rate: float
    power: float
    offset: int
    pre_offset_learning_rate: float

    def __call__(self, step: Any) -> Any:
        begun = ops.cast(step, "float32")
        after = ops.power(ops.maximum(begun - self.offset, 1.0), self.power) * self.initial_learning_rate
        rate = ops.where(begun > self.offset, after, self.pre_offset_learning_rate)
        return ops.minimum(rate, self.pre_offset_learning_rate)


@_schedule
class StepCosineDecay(_Schedule):
    """Half a cosine from each boundary to the next, from one value to the next; no number after the last boundary."""

    boundaries: Sequence[int]
    values: Sequence[float]

    def __call__(self, step: Any) -> Any:
        begun, rate = ops.cast(step, "float32"), None
        ends = zip([*self.boundaries[1:], self.boundaries[-1]], [*self.values[1:], 0.0], strict=True)
        for start, high, (end, low) in zip(self.boundaries, self.values, ends, strict=True):
            since = begun if rate is None else begun - start  # the first piece has no start
            angle = ops.cast(math.pi, "float32") * since / (end - start)
            piece = (high - low) * (ops.cos(angle) + 1.0) / 2.0 + low
            rate = piece if rate is None else ops.where(begun >= start, piece, rate)
        return rate


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
