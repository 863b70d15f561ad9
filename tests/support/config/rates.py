"""Learning rates of all kinds, drawn by hypothesis."""

from collections.abc import Collection
from typing import Any

from hypothesis import strategies as st

from official_trainer.config import OptimizationConfig
from official_trainer.config import optimization as opt

_STEPS = st.integers(1, 12)
_OFFSETS = st.sampled_from([0, 0, 0, 2])
_RATES = st.sampled_from([0.1, 1.0])
_VALUES = st.sampled_from([0.0, 0.5, 1.0])
_POWERS = st.sampled_from([0.5, 1.0, 2.0])


def _of(cls: Any, **fields: Any) -> Any:
    return st.builds(cls, initial_learning_rate=_RATES, **fields)


@st.composite
def _steps(draw: Any, cls: Any) -> Any:
    boundaries = tuple(sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=3))))
    if cls is opt.StepCosineLrConfig:
        boundaries = (0, *boundaries)
    count = len(boundaries) + cls.EXTRA_VALUES
    values = tuple(draw(st.lists(_VALUES, min_size=count, max_size=count)))
    return cls(boundaries=boundaries, values=values, offset=draw(_OFFSETS))


SCHEDULES: dict[str, Any] = {
    "constant": st.builds(opt.ConstantLrConfig, learning_rate=_RATES),
    "stepwise": _steps(opt.StepwiseLrConfig),
    "exponential": _of(
        opt.ExponentialLrConfig,
        decay_steps=_STEPS,
        decay_rate=st.just(0.5),
        staircase=st.booleans(),
        offset=_OFFSETS,
    ),
    "polynomial": _of(
        opt.PolynomialLrConfig,
        decay_steps=_STEPS,
        end_learning_rate=st.sampled_from([0.0, 0.1]),
        power=_POWERS,
        cycle=st.booleans(),
        offset=st.just(0),
    ),
    "cosine": _of(opt.CosineLrConfig, decay_steps=_STEPS, alpha=st.sampled_from([0.0, 0.0, 0.1, 1.0]), offset=_OFFSETS),
    "power": _of(opt.DirectPowerLrConfig, power=st.sampled_from([-0.5, 1.0])),
    "power_linear": _of(
        opt.PowerAndLinearDecayLrConfig,
        total_decay_steps=_STEPS,
        power=st.just(-0.5),
        linear_decay_fraction=st.sampled_from([0.0, 0.25, 1.0]),
        offset=_OFFSETS,
    ),
    "power_with_offset": _of(
        opt.PowerDecayWithOffsetLrConfig, offset=_OFFSETS, pre_offset_learning_rate=st.sampled_from([0.0, 1.0])
    ),
    "step_cosine_with_offset": _steps(opt.StepCosineLrConfig),
}
WARMUPS: dict[str, Any] = {
    "linear": st.builds(
        opt.LinearWarmupConfig, warmup_steps=_STEPS, warmup_learning_rate=st.sampled_from([0.0, 0.0, 0.2])
    ),
    "polynomial": st.builds(opt.PolynomialWarmupConfig, warmup_steps=_STEPS, power=_POWERS),
}


@st.composite
def configs(
    draw: Any, schedules: Collection[str] = tuple(SCHEDULES), warmups: Collection[str] = tuple(WARMUPS)
) -> tuple[OptimizationConfig, int]:
    """Draws a section with a schedule, perhaps a warm-up, and the steps of training."""
    kind = draw(st.sampled_from(sorted(schedules)))
    rate = opt.LrConfig(type=kind, **{kind: draw(SCHEDULES[kind])})
    warmup = opt.WarmupConfig()
    if name := draw(st.sampled_from([None, *warmups])):
        warmup = opt.WarmupConfig(type=name, **{name: draw(WARMUPS[name])})
    return OptimizationConfig(learning_rate=rate, warmup=warmup), draw(st.integers(1, 15))
