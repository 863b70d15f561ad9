"""The learning-rate finder: trains with a rate that rises from step to step, until the loss diverges.

Owns: the training; when the loss has diverged, what its shape suggests, and the override that this is written as.
Does not own: drawing, which Matplotlib does. Imports no TensorFlow by itself.

The method is that of Smith, "Cyclical Learning Rates for Training Neural Networks" (2015, arXiv:1506.01186), section
3.3. The suggestion is the one that fastai calls `valley`.
"""

from __future__ import annotations

import io
import itertools
import math
import statistics

from official_trainer.config import ConfigError, Problem, Resolved
from official_trainer.config.overrides import format_override
from official_trainer.reports.overfit import trainer_of
from official_trainer.runs.job import Job
from official_trainer.shown import first_few

_SECTION = "trainer.optimizer_config"
_SCHEDULE = f"{_SECTION}.learning_rate"

_LOWEST, _HIGHEST = 1e-7, 10.0
_SMOOTHING = 0.9
_DIVERGED = 4.0
"""A smoothed loss that is so many times the lowest one has diverged; of negative losses, by its distance from that."""

_LEAST_STEPS = 10
_ROUNDING = 1e-6


class RateCurve:
    """Rates and losses, in the order of the steps."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self._average = 0.0

    def add(self, rate: float, loss: float) -> None:
        """Takes the rate of a step, and the loss before its update."""
        self.rates.append(rate)
        self.losses.append(loss)
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
        self.smoothed.append(self._average / (1 - _SMOOTHING ** len(self.losses)))

    @property
    def has_diverged(self) -> bool:
        """Whether the loss is not finite any more, or far above its lowest value."""
        if not self.losses:
            return False
        if not math.isfinite(self.losses[-1]):
            return True
        lowest = min(self.smoothed)
        scale = abs(lowest) or max(map(abs, self.smoothed)) or 1.0
        return len(self.losses) > _LEAST_STEPS and self.smoothed[-1] - lowest > (_DIVERGED - 1) * scale

    @property
    def valley(self) -> float | None:
        """The rate in the middle of the longest fall of the loss; None if it does not fall further than it scatters.

        The fall is the longest series of falling losses, which need not be neighbours, as in fastai.
        """
        if not self._falls():
            return None
        end = self._lowest + 1
        losses = self.smoothed[:end]
        lengths: list[int] = []  # of the longest series that ends with each loss
        for i, loss in enumerate(losses):
            lengths.append(1 + max((lengths[j] for j in range(i) if losses[j] > loss), default=0))
        last = lengths.index(max(lengths))
        return self.rates[last - lengths[last] // 2]

    @property
    def _lowest(self) -> int:
        """The index of the lowest smoothed loss; what comes after it has begun to diverge."""
        finite = [loss if math.isfinite(loss) else math.inf for loss in self.smoothed]
        return finite.index(min(finite))

    def _falls(self) -> bool:
        """Whether the loss falls by twice what it scatters from step to step; before a few steps nothing is smooth."""
        end = self._lowest if self.losses else 0
        if end < _LEAST_STEPS:
            return False
        changes = [after - before for before, after in itertools.pairwise(self.losses[: end + 1])]
        scatter = math.sqrt(statistics.fmean(change**2 for change in changes) / 2)
        fall = max(self.smoothed[_LEAST_STEPS - 1 : end]) - self.smoothed[end]
        return fall > max(2 * scatter, _ROUNDING * abs(self.smoothed[end]))

    def svg(self, title: str) -> str:
        """Returns a picture under a title: losses of single steps, smoothed losses, and a line at the suggestion.

        The rates are on a logarithmic axis; losses far above the first ones are outside of the picture.
        """
        import matplotlib
        from matplotlib.figure import Figure

        finite = [loss for loss in self.smoothed if math.isfinite(loss)]
        top = max(finite[0], *finite[: max(1, len(finite) * 3 // 4)])
        low = min(loss for loss in [*finite, *self.losses] if math.isfinite(loss))
        margin = 0.1 * (top - low) or 0.5
        drawing = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False}):  # texts stay texts
            figure = Figure(figsize=(7.6, 4.2), layout="constrained")
            axes = figure.subplots()
            axes.plot(self.rates, self.losses, linewidth=0.8, alpha=0.5, label="each step")
            axes.plot(self.rates, self.smoothed, linewidth=1.8, label="smoothed")
            if self.valley is not None:
                axes.axvline(self.valley, color="gray", linestyle="--", label=f"suggested: {self.valley:.2g}")
            axes.set(
                title=title, xscale="log", xlabel="learning rate", ylabel="loss", ylim=(low - margin, top + margin)
            )
            axes.legend()
            figure.savefig(drawing, format="svg")
        return drawing.getvalue()


def search(job: Job, *, num_steps: int) -> RateCurve:
    """Trains with a rate that rises exponentially from step to step, from 1e-7 to 10 or until the loss diverges.

    Warmup is left out. Nothing is evaluated, saved or exported, and no actions run. Data that ends begins again.

    Args:
      job: the run whose model, data and optimizer are tried.
      num_steps: at least 2.

    Raises:
      ConfigError: the optimizer does not follow the config's schedule, or the job cannot be tried in one process.
    """
    rising = {
        "type": "exponential",
        "exponential.initial_learning_rate": _LOWEST,
        "exponential.decay_rate": _HIGHEST / _LOWEST,
        "exponential.decay_steps": num_steps - 1,
        "exponential.staircase": False,
    }
    sets = [format_override(f"{_SCHEDULE}.{name}", value) for name, value in rising.items()]
    sets.append(format_override(f"{_SECTION}.warmup.type", None))
    curve = RateCurve()
    with trainer_of(job, "find-lr", sets) as trainer:
        from official_trainer.tasks import optimization

        rates = [float(rate) for rate in optimization.learning_rates(trainer.optimizer, trainer.global_step).values()]
        if len(rates) > 1 or not math.isclose(rates[0], _LOWEST, rel_tol=1e-3):
            used = first_few([f"{rate:g}" for rate in rates])
            what = f"{type(trainer.task).__name__} trains with {used}, not with {_LOWEST:g}"
            fix = "let create_optimizer return one optimizer that takes its rate from the argument optimizer_config"
            raise ConfigError([Problem(what, _SCHEDULE, fix=fix)])
        with trainer.train_iterator.on_end("repeat"):
            for _ in range(num_steps):
                rate = float(optimization.learning_rate(trainer.optimizer, trainer.global_step))
                trainer.run_steps(1)
                curve.add(rate, trainer.windows.losses["batch_loss"])
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
    branch = f"{_SCHEDULE}.{schedule.type}"
    if schedule.type == "constant":
        return format_override(f"{branch}.learning_rate", rate)
    if schedule.type in ("exponential", "polynomial", "cosine"):
        return format_override(f"{branch}.initial_learning_rate", rate)
    return f"a peak of {rate:g} for the schedule in {_SCHEDULE}"
