"""The section `trainer.optimizer_config` in one line, such as `opt.adam(0.01)`.

Owns: a function for each optimizer, and its words for the usual learning rates. Does not own: the sections that these
make, and what else there is (`optimization.py`).

Each function takes the learning rate (a number, a whole `LrConfig`, or a `CustomScheduleConfig`), then by name any
field of its optimizer and

- `warmup_steps`: steps of a straight line from 0 up to the rate; none if left out.
- `decay`: `"cosine"` or `"linear"`, down to 0; the same rate at each step if left out.
- `decay_steps`: steps until then; `trainer.train_steps` if left out.
- `ema`: share of the average of weights that is kept in a step; no averages if left out.

Example:
  >>> from official_trainer.config import opt
  >>> section = opt.adamw(3e-4, weight_decay_rate=0.01, warmup_steps=500, decay="cosine", ema=0.999)
  >>> section.optimizer.get().weight_decay_rate, section.learning_rate.type, section.warmup.get().warmup_steps
  (0.01, 'cosine', 500)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from official_trainer.config import optimization as opt
from official_trainer.config.components import choosing
from official_trainer.config.errors import ConfigError, Problem, best_match, calling_line

Rate = float | opt.LrConfig | opt.CustomScheduleConfig
_OPTIONS = "warmup_steps", "decay", "decay_steps", "ema"


def sgd(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for stochastic gradient descent; fields: `SGDConfig`'s, but for its own `decay`."""
    return _section("sgd", learning_rate, options)


def adam(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for Adam; fields: `AdamConfig`'s."""
    return _section("adam", learning_rate, options)


def adamw(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for Adam with decoupled weight decay; fields: `AdamWeightDecayConfig`'s."""
    return _section("adamw", learning_rate, options)


def rmsprop(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for RMSprop; fields: `RMSPropConfig`'s."""
    return _section("rmsprop", learning_rate, options)


def adagrad(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for Adagrad; fields: `AdagradConfig`'s."""
    return _section("adagrad", learning_rate, options)


def lamb(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for LAMB; fields: `LAMBConfig`'s."""
    return _section("lamb", learning_rate, options)


def lars(learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for LARS, which Keras 3 lacks; fields: `LARSConfig`'s."""
    return _section("lars", learning_rate, options)


def custom(optimizer: opt.CustomOptimizerConfig, learning_rate: Rate, **options: Any) -> opt.OptimizationConfig:
    """Returns the section for an optimizer of one's own, which has its fields; options: those above."""
    _check(f"opt.custom({type(optimizer).__name__})", options, _OPTIONS)
    return _made(choosing(opt.OptimizerConfig, optimizer), learning_rate, options)


def _section(name: str, rate: Rate, options: dict[str, Any]) -> opt.OptimizationConfig:
    chosen = opt.OptimizerConfig(type=name)
    fields = [field.name for field in dataclasses.fields(chosen.get()) if field.name not in _OPTIONS]
    _check(f"opt.{name}", options, [*_OPTIONS, *fields])
    section = chosen.get().replace(**{name: options[name] for name in fields if name in options})
    return _made(chosen.replace(**{name: section}), rate, options)


def _check(function: str, options: dict[str, Any], allowed: Sequence[str]) -> None:
    if unknown := [name for name in options if name not in allowed]:
        raise _error(f"{function} has no option '{unknown[0]}'", ", ".join(allowed), best_match(unknown[0], allowed))


def _made(optimizer: Any, rate: Rate, options: dict[str, Any]) -> opt.OptimizationConfig:
    learning_rate = _learning_rate(rate, options.get("decay"), options.get("decay_steps"))
    made = opt.OptimizationConfig(optimizer=optimizer, learning_rate=learning_rate)
    if (steps := options.get("warmup_steps")) is not None:
        linear = opt.LinearWarmupConfig(warmup_steps=steps)
        made = made.replace(warmup=opt.WarmupConfig(type="linear", linear=linear))
    share = options.get("ema")
    return made if share is None else made.replace(ema=opt.EMAConfig(average_decay=share))


def _learning_rate(rate: Rate, decay: Any, steps: int | None) -> Any:
    if isinstance(rate, opt.LrConfig | opt.CustomScheduleConfig):
        if decay is not None or steps is not None:
            raise _error(f"a whole {type(rate).__name__} says how the rate decays: leave out decay and decay_steps")
        return rate if isinstance(rate, opt.LrConfig) else choosing(opt.LrConfig, rate)
    if decay == "cosine":
        return opt.LrConfig(type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=rate, decay_steps=steps))
    if decay == "linear":
        line = opt.PolynomialLrConfig(initial_learning_rate=rate, decay_steps=steps, end_learning_rate=0.0)
        return opt.LrConfig(type="polynomial", polynomial=line)
    if decay is not None or steps is not None:
        what = f"decay_steps={steps} needs a decay" if decay is None else f"decay={decay!r} is no word for a decay"
        raise _error(what, "cosine, linear; for others, a whole LrConfig", best_match(str(decay), ("cosine", "linear")))
    return opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=rate))


def _error(what: str, allowed: str = "", near: str = "") -> ConfigError:
    return ConfigError([Problem(what, allowed=allowed, near=near, origin=calling_line())])
