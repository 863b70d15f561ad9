"""The learning-rate finder: trains with a rate that rises from step to step, until the loss diverges.

Owns: the training, and the override that a suggestion is written as. Does not own: what the curve suggests
(`rate_curve.py`). Imports no TensorFlow by itself.
"""

from __future__ import annotations

import math

from official_trainer.config import Resolved
from official_trainer.config.overrides import format_override
from official_trainer.errors import ExitCode, UserError
from official_trainer.reports.rate_curve import RateCurve
from official_trainer.reports.trial import trainer_of
from official_trainer.runs.job import Job

_SECTION = "trainer.optimizer_config"
_SCHEDULE = f"{_SECTION}.learning_rate"
_OWN_SCALE = {
    "lars": "LARS scales the update of each layer by the norm of its weights",
    "lamb": "LAMB scales the update of each layer by the norm of its weights",
    "adagrad": "Adagrad lowers its own rate from step to step",
    "adafactor": "Adafactor may choose its rate itself",
}


class FixedRateError(UserError, TypeError):
    """The optimizer does not take its learning rate from the config, so the finder cannot raise it."""

    exit_code = ExitCode.CONFIG


def search(job: Job, *, lowest: float, highest: float, num_steps: int) -> RateCurve:
    """Trains with a rate that rises exponentially from step to step, until the loss diverges.

    Warmup is left out. Nothing is evaluated, saved or exported, and no actions run. Data that ends begins again.

    Args:
      job: the run whose model, data and optimizer are tried.
      lowest: rate of the first step.
      highest: rate of the last step.
      num_steps: at least 2.

    Raises:
      FixedRateError: the optimizer does not follow the config's schedule.
      ConfigError: the job cannot be tried in one process.
    """
    rising = {
        "type": "exponential",
        "exponential.initial_learning_rate": lowest,
        "exponential.decay_rate": highest / lowest,
        "exponential.decay_steps": num_steps - 1,
        "exponential.staircase": False,
    }
    sets = [format_override(f"{_SCHEDULE}.{name}", value) for name, value in rising.items()]
    sets.append(format_override(f"{_SECTION}.warmup.type", None))
    curve = RateCurve()
    with trainer_of(job, "find-lr", sets) as trainer:
        from official_trainer.tasks import optimization

        rates = [float(each) for each in optimization.learning_rates(trainer.optimizer, trainer.global_step).values()]
        if len(rates) > 1:
            raise FixedRateError(
                f"{type(trainer.task).__name__} has {len(rates)} optimizers, each with a learning rate, and the finder "
                "raises one; look for each by hand"
            )
        if not math.isclose(rates[0], lowest, rel_tol=1e-3):
            raise FixedRateError(
                f"{type(trainer.task).__name__}.create_optimizer returns an optimizer whose learning rate is "
                f"{rates[0]:g}, not the {lowest:g} of {_SCHEDULE}; let it take the rate from its argument "
                "optimizer_config"
            )
        with trainer.train_iterator.on_end("repeat"):
            for _ in range(num_steps):
                rate = float(optimization.learning_rate(trainer.optimizer, trainer.global_step))
                trainer.run_steps(1)
                curve.add(rate, trainer.windows.loss_trace["batch_loss"])
                if curve.has_diverged:
                    break
    return curve


def suggestion(resolved: Resolved, rate: float) -> str:
    """Returns the override that gives a run this rate; for a schedule whose peak is no field, the rate alone.

    Args:
      resolved: the config of the run.
      rate: the rate, the peak of its schedule.
    """
    rate = float(f"{rate:.2g}")
    schedule = resolved.config.trainer.optimizer_config.learning_rate
    kind, place = schedule.type, f"{_SCHEDULE}.{schedule.type}"
    if kind == "constant":
        return format_override(f"{place}.learning_rate", rate)
    if kind in ("exponential", "polynomial", "cosine"):
        return format_override(f"{place}.initial_learning_rate", rate)
    values = getattr(schedule.get(), "values", None) if kind is not None else None
    if values and max(values) > 0:
        scaled = tuple(float(f"{value * rate / max(values):.3g}") for value in values)
        return format_override(f"{place}.values", scaled)
    return f"a peak of {rate:g} for the schedule in {_SCHEDULE}"


def caution(resolved: Resolved) -> str | None:
    """Returns why the curve says little about an optimizer that sets its own scale; None for others."""
    kind = resolved.config.trainer.optimizer_config.optimizer.type
    if kind not in _OWN_SCALE:
        return None
    return (
        f"{_OWN_SCALE[kind]}, so the best rate of a long run may be far from this one: take it as the middle of a "
        "range to try"
    )
