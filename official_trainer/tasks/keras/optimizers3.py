"""Optimizers of Keras 3, built from `trainer.optimizer_config`.

Owns: which class of Keras 3 each usual type of optimizer, learning rate and warm-up is, and with which arguments; what
is not there, said without importing Keras. Does not own: the section's fields (`config/optimization.py`), offsets and
the warm-up, which Keras lacks (`garden3.py`), optimizers of tf_keras (`tasks/optimization.py`), averages of weights.

The arithmetic is Keras 3's: `adagrad`, and `rmsprop` without momentum, add `epsilon` before the root is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.config import CustomOptimizerConfig, CustomScheduleConfig
from official_trainer.config.errors import ConfigError, Problem, best_match
from official_trainer.tasks.keras import custom

if TYPE_CHECKING:
    import keras

_ROOT = "trainer.optimizer_config"
_ADAPTIVE = "beta_1", "beta_2", "epsilon", "amsgrad"
_OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sgd": ("SGD", ("momentum", "nesterov")),
    "adam": ("Adam", _ADAPTIVE),
    "adamw": ("AdamW", _ADAPTIVE),
    "rmsprop": ("RMSprop", ("rho", "momentum", "epsilon", "centered")),
    "adagrad": ("Adagrad", ("initial_accumulator_value", "epsilon")),
}
"""For each type its class in Keras 3, and the fields that are arguments of it with the same name, beside clipping."""
_PATTERNS = "include_in_weight_decay", "exclude_from_weight_decay"
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_SCHEDULES: Mapping[str, str] = {
    "stepwise": "PiecewiseConstantDecay",
    "exponential": "ExponentialDecay",
    "polynomial": "PolynomialDecay",
    "cosine": "CosineDecay",
}
"""Classes of `keras.optimizers.schedules`."""
_TYPES = {"optimizer": (*_OPTIMIZERS,), "learning_rate": ("constant", *_SCHEDULES), "warmup": ("linear",)}
_OWN = "or return an optimizer of your own from the task's create_optimizer"


def build_optimizer(optimizer_config: Any, runtime_config: Any = None) -> keras.optimizers.Optimizer:
    """Returns the optimizer with its learning rate, and with what scales the loss under float16.

    A fixed `runtime.loss_scale` is the optimizer's `loss_scale_factor`, a dynamic one a `LossScaleOptimizer` around it;
    both have `scale_loss`. As with Keras 2, only a dynamic one skips gradients that are not finite.

    Args:
      optimizer_config: the section `trainer.optimizer_config`, ours or Model Garden's; its `ema` is not read.
      runtime_config: the section `runtime`.

    Raises:
      ConfigError: Keras 3 has no such optimizer, or cannot do what a field says.
    """
    if refused := list(problems(optimizer_config)):
        raise ConfigError(refused)
    import keras

    from official_trainer.tasks.keras import garden3

    chosen, section = optimizer_config.optimizer, optimizer_config.optimizer.get()
    rate = build_learning_rate(optimizer_config)
    is_float16 = runtime_config is not None and runtime_config.mixed_precision_dtype == "float16"
    scale = (runtime_config.loss_scale or "dynamic") if is_float16 else None
    if isinstance(section, CustomOptimizerConfig):
        optimizer = custom.optimizer(section, rate)
    else:
        class_name, names = _OPTIMIZERS[chosen.type]
        arguments = {name: getattr(section, name) for name in (*names, *_CLIPPING)}
        optimizer_class = getattr(keras.optimizers, class_name)
        if chosen.type == "adamw":
            arguments |= _weight_decay(section)
            optimizer_class = garden3.AdamWeightDecay if section.exclude_from_weight_decay else optimizer_class
        optimizer = optimizer_class(rate, name=section.name or None, **arguments)
    if scale is not None and scale != "dynamic":
        optimizer.loss_scale_factor = scale
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale") if scale == "dynamic" else optimizer


def build_learning_rate(optimizer_config: Any) -> Any:
    """Returns the rate of each step as a schedule of Keras 3; a float if it is the same at all of them."""
    import keras

    from official_trainer.tasks.keras import garden3

    schedule, section = optimizer_config.learning_rate.type, optimizer_config.learning_rate.get()
    if isinstance(section, CustomScheduleConfig):
        rate: Any = custom.schedule(section, keras)
    elif schedule == "constant":
        rate = float(section.learning_rate)
    else:
        arguments = _arguments(section)
        offset = arguments.pop("offset")
        rate = getattr(keras.optimizers.schedules, _SCHEDULES[schedule])(**arguments)
        rate = garden3.WithOffset(rate, offset) if offset else rate
    warmup = optimizer_config.warmup
    return rate if warmup.type is None else garden3.LinearWarmup(rate, **_arguments(warmup.get()))


def _arguments(section: Any) -> dict[str, Any]:
    """Returns the fields of a section, without `name`: of a scope in Keras 2's graph."""
    return {name: value for name, value in section.as_dict().items() if name != "name"}


def _weight_decay(section: Any) -> dict[str, Any]:
    """Returns the arguments with which AdamW does what `adamw` has beside Adam's fields."""
    clips = [clip for clip in (section.global_clipnorm, section.gradient_clip_norm) if clip and clip > 0]
    patterns = {name: getattr(section, name) for name in _PATTERNS if section.exclude_from_weight_decay}
    return {"weight_decay": section.weight_decay_rate, "global_clipnorm": min(clips, default=None), **patterns}


def problems(optimizer_config: Any) -> Iterator[Problem]:
    """Yields what Keras 3 cannot do of a section `trainer.optimizer_config`, without importing it."""
    for name, types in _TYPES.items():
        section, path = getattr(optimizer_config, name), f"{_ROOT}.{name}.type"
        is_custom = isinstance(section.get(), CustomOptimizerConfig | CustomScheduleConfig)
        if section.type is not None and section.type not in types and not is_custom:
            near = best_match(section.type, types)
            yield Problem("not there in Keras 3", path, repr(section.type), ", ".join(types), near, _OWN)
    if (chosen := optimizer_config.optimizer.type) not in _OPTIMIZERS:
        return
    section, path = optimizer_config.optimizer.get(), f"{_ROOT}.optimizer.{chosen}"
    if decay := getattr(section, "decay", 0.0):
        fix = f"set {_ROOT}.learning_rate.type to a schedule"
        yield Problem("Keras 3's SGD has no decay", f"{path}.decay", repr(decay), fix=fix)
    clips = [name for name in _CLIPPING if getattr(section, name) is not None]
    if clips not in ([], ["global_clipnorm"]) and getattr(section, "gradient_clip_norm", 0) > 0:
        what = "Keras 3's AdamW clips in one way only, and gradient_clip_norm is another"
        fix = f"set {path}.gradient_clip_norm to 0, or leave {clips[0]} out"
        yield Problem(what, f"{path}.{clips[0]}", repr(getattr(section, clips[0])), fix=fix)
