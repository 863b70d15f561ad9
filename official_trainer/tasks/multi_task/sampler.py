"""The choice of the task that a step is for: a pure function of (seed, step).

Owns: Model Garden's samplers (uniform, proportional, annealing), and the number of steps of each task before a step.
Does not own: the use of the choice (`task.py`).

No state is saved: a run that continues chooses the same task at the same step, with any windows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, Problem
from official_trainer.inputs.order import epoch_seed
from official_trainer.lazy import tf

_FIELD = "trainer.task_sampler.type"
_CHUNK = 1 << 20
_LEAST_POWER = 0.2
_TYPES = ("uniform", "proportional", "annealing")


@dataclasses.dataclass(frozen=True)
class TaskSampler:
    """Chooses the number of a task for each step.

    Attributes:
      distributions: the share of each task, in stages of `steps_per_stage` steps; the last one stays.
      steps_per_stage: length of a stage.
    """

    distributions: tuple[tuple[float, ...], ...]
    steps_per_stage: int = 1

    @classmethod
    def of(cls, config: Any, weights: Mapping[str, float]) -> TaskSampler:
        """Returns the sampler of a section, ours or Model Garden's.

        Args:
          config: a one-of of `uniform`, `proportional` (with `alpha`) and `annealing` (with `steps_per_epoch` and
            `total_steps`).
          weights: of the tasks, in their order.

        Raises:
          ConfigError: the section has another type.
        """
        if config.type not in _TYPES:
            raise ConfigError([Problem("not one of the choices", _FIELD, repr(config.type), ", ".join(_TYPES))])
        chosen = getattr(config, config.type)
        if config.type == "uniform":
            return cls((_shares(weights, 0.0),))
        if config.type == "proportional":
            return cls((_shares(weights, chosen.alpha),))
        # The formula is Model Garden's, which counts epochs from 0 and so begins above 1. There it continues to fall
        # after the last step, which would make rare tasks the most frequent ones in the end.
        epochs = chosen.total_steps / chosen.steps_per_epoch
        powers = (1.0 - 0.8 * (epoch - 1) / (epochs - 1 + 1e-10) for epoch in itertools.count())
        falling = [*itertools.takewhile(lambda power: power > _LEAST_POWER, powers), _LEAST_POWER]
        return cls(tuple(_shares(weights, power) for power in falling), chosen.steps_per_epoch)

    def choose(self, steps: tf.Tensor, seed: int) -> tf.Tensor:
        """Returns the number of the task at each of `steps`, `[n]` int64; in a pipeline or eagerly."""
        bits = tf.bitwise.right_shift(
            tf.bitcast(epoch_seed(seed, "task_sampler", steps), tf.uint64), tf.constant(11, tf.uint64)
        )
        uniform = tf.cast(bits, tf.float64) * 2.0**-53  # in [0, 1), and exact
        stages = tf.minimum(steps // self.steps_per_stage, len(self.distributions) - 1)
        limits = [list(itertools.accumulate(shares))[:-1] for shares in self.distributions]
        limits_of_steps = tf.gather(tf.constant(limits, tf.float64, [len(limits), len(limits[0])]), stages)
        return tf.reduce_sum(tf.cast(uniform[:, tf.newaxis] >= limits_of_steps, tf.int64), axis=1)

    def counts(self, seed: int, stop: int, start: int = 0) -> list[int]:
        """Returns each task's number of steps in `[start, stop)`; takes milliseconds for a million steps."""
        num_tasks = len(self.distributions[0])
        with tf.init_scope(), tf.device("CPU:0"):
            total = tf.zeros([num_tasks], tf.int64)
            for first in range(start, stop, _CHUNK):
                chosen = self.choose(tf.range(first, min(first + _CHUNK, stop), dtype=tf.int64), seed)
                total += tf.math.bincount(tf.cast(chosen, tf.int32), minlength=num_tasks, dtype=tf.int64)
            return [int(count) for count in total.numpy()]


def _shares(weights: Mapping[str, float], power: float) -> tuple[float, ...]:
    largest = max(weights.values())  # in units of which no power overflows
    sizes: Sequence[float] = [(weight / largest) ** power for weight in weights.values()]
    return tuple(size / sum(sizes) for size in sizes)
