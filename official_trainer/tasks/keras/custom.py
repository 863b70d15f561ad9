"""Learning rates and optimizers that a workspace or a package adds, as either Keras takes them.

Owns: calling `build` of a `CustomScheduleConfig` and of a `CustomOptimizerConfig`, and what is wrong with its result.
Does not own: finding their classes (`config/components.py`), the optimizers of a configuration beside these
(`optimizers3.py`, `keras2.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from official_trainer.config import CustomOptimizerConfig, CustomScheduleConfig
from official_trainer.config.errors import ConfigError, Problem, line_of_class
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import convert

_ROOT = "trainer.optimizer_config"


def as_schedule(keras: Any, rate: Callable[[Any], Any], config: Callable[[], dict[str, Any]]) -> Any:
    """Returns a schedule of a Keras whose rate is `rate(step)`, and whose `get_config` is `config`."""

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: tf.Tensor) -> tf.Tensor:
            return rate(step)

        def get_config(self) -> dict[str, Any]:
            return config()

    return Schedule()


def schedule(section: CustomScheduleConfig, keras: Any) -> Any:
    """Returns the schedule of a section, as one of a Keras: of the step as a number, scalar float32.

    Raises:
      ConfigError: `build` returns nothing that can be called, or what it returns gives no scalar.
    """
    built = section.build()
    if not callable(built) or isinstance(built, type):
        raise _refusal(section, f"build() must return a function of the step, and returned {built!r}")

    def rate(step: Any) -> tf.Tensor:
        value = convert(built)(tf.cast(step, tf.float32))
        if value is None or (shape := tf.convert_to_tensor(value).shape) != ():
            returned = "nothing (None); is a `return` missing?" if value is None else f"a tensor of shape {shape}"
            raise _refusal(section, f"a learning rate is a scalar, and the function of the step returned {returned}")
        return tf.cast(value, tf.float32)

    rate(0)  # what is no scalar is refused here, not while the first step is traced
    return as_schedule(keras, rate, section.as_dict)


def optimizer(section: CustomOptimizerConfig, learning_rate: Any) -> Any:
    """Returns the optimizer of a section.

    Raises:
      ConfigError: `build` returns none.
    """
    built = section.build(learning_rate)
    if isinstance(built, type) or not hasattr(built, "apply_gradients"):
        what = f"build(learning_rate) must return an optimizer, and returned {built!r}"
        raise _refusal(section, what, fix="return an object, such as keras.optimizers.Lion(learning_rate)")
    return built


def _refusal(section: Any, what: str, fix: str = "") -> ConfigError:
    kind = "optimizer" if isinstance(section, CustomOptimizerConfig) else "learning_rate"
    path = f"{_ROOT}.{kind}.{section.own_name()}"
    return ConfigError([Problem(what, path, fix=fix, origin=line_of_class(type(section)))])
