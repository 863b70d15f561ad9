"""Optimizers of Keras 3, built from `trainer.optimizer_config`.

Owns: which class of Keras 3 each type of optimizer, learning rate and warm-up is, and with which arguments; what
Keras 3 cannot do, said without importing it. Does not own: the section's fields (`config/optimization.py`), schedules
that Keras lacks (`garden3.py`), optimizers of tf_keras (`tasks/optimization.py`), averages of weights (the engine).

The arithmetic is Keras 3's: `adagrad`, and `rmsprop` without momentum, add `epsilon` before the root is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.config.errors import ConfigError, Problem, best_match

if TYPE_CHECKING:
    import keras

_ROOT = "trainer.optimizer_config"
_ADAPTIVE = "beta_1", "beta_2", "epsilon"
_OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sgd": ("SGD", ("momentum", "nesterov")),
    "adam": ("Adam", (*_ADAPTIVE, "amsgrad")),
    "adamw": ("AdamW", (*_ADAPTIVE, "amsgrad")),
    "rmsprop": ("RMSprop", ("rho", "momentum", "epsilon", "centered")),
    "adagrad": ("Adagrad", ("initial_accumulator_value", "epsilon")),
    "lamb": ("Lamb", _ADAPTIVE),
    "sgd_experimental": ("SGD", ("momentum", "nesterov")),
    "adam_experimental": ("Adam", (*_ADAPTIVE, "amsgrad")),
    "adamw_experimental": ("AdamW", (*_ADAPTIVE, "amsgrad", "weight_decay")),
    "adafactor_keras": ("Adafactor", ("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold", "relative_step")),
}
"""For each type its class in Keras 3, and the fields that are arguments of it with the same name, beside clipping."""
_PATTERNS = "include_in_weight_decay", "exclude_from_weight_decay"
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_SCHEDULES: Mapping[str, str] = {
    "stepwise": "PiecewiseConstantDecay",
    "exponential": "ExponentialDecay",
    "polynomial": "PolynomialDecay",
    "cosine": "CosineDecay",
    "power": "PowerAndLinearDecay",
    "power_linear": "PowerAndLinearDecay",
    "power_with_offset": "PowerDecayWithOffset",
    "step_cosine_with_offset": "StepCosineDecay",
}
"""Classes of `garden3.py`, and those that Keras 3 has itself."""
_WARMUPS: Mapping[str, str] = {"linear": "LinearWarmup", "polynomial": "PolynomialWarmUp"}
_ALIKE: Mapping[str, str] = {"lars": "lamb", "adafactor": "adafactor_keras"}
"""Types that Keras 3 lacks, each with the one that does nearly the same."""

_OWN = "return an optimizer of your own from the task's create_optimizer"
_ADAPTED = "Keras 3's Lamb scales the update of each weight by its norm", f"leave the field out, or {_OWN}"
_LAMB: Mapping[str, tuple[str, str]] = {
    "weight_decay_rate": ("Keras 3's Lamb does not scale what it decays by the norm", f"use adamw, or {_OWN}"),
    "exclude_from_weight_decay": _ADAPTED,  # without another list, Model Garden takes it for both
    "exclude_from_layer_adaptation": _ADAPTED,
}
"""Fields of `lamb` that have to be null, empty or 0, because Keras 3 cannot do otherwise: why, and what to do."""


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
    if found := list(problems(optimizer_config)):
        raise ConfigError(found)
    import keras

    from official_trainer.tasks.keras import garden3

    chosen, section = optimizer_config.optimizer, optimizer_config.optimizer.get()
    class_name, names = _OPTIMIZERS[chosen.type]
    arguments = {name: getattr(section, name) for name in (*names, *_CLIPPING)}
    rate = build_learning_rate(optimizer_config)
    if getattr(section, "decay", 0.0) > 0.0:  # of sgd
        rate = garden3.TimeInverseDecay(rate, section.decay)
    is_float16 = runtime_config is not None and runtime_config.mixed_precision_dtype == "float16"
    scale = (runtime_config.loss_scale or "dynamic") if is_float16 else None
    arguments["loss_scale_factor"] = None if scale == "dynamic" else scale
    optimizer_class = getattr(keras.optimizers, class_name)
    if chosen.type == "adamw":
        arguments |= _weight_decay(section)
        optimizer_class = garden3.AdamWeightDecay if section.exclude_from_weight_decay else optimizer_class
    optimizer = optimizer_class(rate, name=section.name or None, **arguments)
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale") if scale == "dynamic" else optimizer


def build_learning_rate(optimizer_config: Any) -> Any:
    """Returns the rate of each step as a schedule of Keras 3; a float if it is the same at all of them."""
    import keras

    from official_trainer.tasks.keras import garden3

    kind, section = optimizer_config.learning_rate.type, optimizer_config.learning_rate.get()
    arguments = section.as_dict()
    del arguments["name"]  # of a scope in Keras 2's graph
    if kind == "constant":
        rate: Any = float(section.learning_rate)
    else:
        offset = 0 if kind == "power_with_offset" else arguments.pop("offset", 0)  # that one's formula has it
        place = garden3 if hasattr(garden3, _SCHEDULES[kind]) else keras.optimizers.schedules
        rate = getattr(place, _SCHEDULES[kind])(**arguments)
        rate = garden3.WithOffset(rate, offset) if offset else rate
    if optimizer_config.warmup.type is None:
        return rate
    warmup = optimizer_config.warmup.get().as_dict()
    del warmup["name"]
    return getattr(garden3, _WARMUPS[optimizer_config.warmup.type])(rate, **warmup)


def _weight_decay(section: Any) -> dict[str, Any]:
    """Returns the arguments with which AdamW does what `adamw` has beside Adam's fields."""
    clips = [clip for clip in (section.global_clipnorm, section.gradient_clip_norm) if clip and clip > 0]
    patterns = {name: getattr(section, name) for name in _PATTERNS if section.exclude_from_weight_decay}
    return {"weight_decay": section.weight_decay_rate, "global_clipnorm": min(clips, default=None), **patterns}


def problems(optimizer_config: Any) -> Iterator[Problem]:
    """Yields what Keras 3 cannot do of a section `trainer.optimizer_config`, without importing it."""
    choices = {"optimizer": _OPTIMIZERS, "learning_rate": ("constant", *_SCHEDULES), "warmup": _WARMUPS}
    for name, types in choices.items():
        section, path = getattr(optimizer_config, name), f"{_ROOT}.{name}.type"
        known = [each for each in types if hasattr(section, each)]
        if section.type is None and name != "warmup":
            yield Problem("is not set, and training needs one", path, allowed=", ".join(known))
        elif section.type is not None and section.type not in types:
            near = _ALIKE.get(section.type, best_match(section.type, known))
            fix = f"or {_OWN}" if name == "optimizer" else ""
            yield Problem("not there in Keras 3", path, repr(section.type), ", ".join(known), near, fix)
    if (kind := optimizer_config.optimizer.type) in _OPTIMIZERS:
        yield from _problems_of_fields(kind, optimizer_config.optimizer.get())


def _problems_of_fields(kind: str, section: Any) -> Iterator[Problem]:
    path = f"{_ROOT}.optimizer.{kind}"
    for name, (why, fix) in _LAMB.items() if kind == "lamb" else ():
        if value := getattr(section, name):
            yield Problem(why, f"{path}.{name}", repr(value), fix=fix)
    if getattr(section, "jit_compile", False):
        fix = "set runtime.enable_xla, which compiles the whole step"
        yield Problem("Keras 3 compiles no optimizer alone", f"{path}.jit_compile", "True", fix=fix)
    clips = [name for name in _CLIPPING if getattr(section, name) is not None]
    if clips not in ([], ["global_clipnorm"]) and getattr(section, "gradient_clip_norm", 0) > 0:
        what = "Keras 3's AdamW clips in one way only, and gradient_clip_norm is another"
        fix = f"set {path}.gradient_clip_norm to 0, or leave {clips[0]} out"
        yield Problem(what, f"{path}.{clips[0]}", repr(getattr(section, clips[0])), fix=fix)
    for name in _PATTERNS if kind == "adamw" else ():
        for pattern in getattr(section, name) or ():
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem(f"is no regular expression: {error}", f"{path}.{name}", repr(pattern))
