"""The `trainer.optimizer_config` section: optimizer, learning rate, warm-up, weight averaging.

Owns: Model Garden's names, fields and defaults of these sections, typed and importable without TensorFlow.
Does not own: building anything from them; `official_trainer/tasks/optimization.py` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from official_trainer.config.components import Plugin
from official_trainer.config.declaration import (
    Config,
    Fraction,
    Guarded,
    NonNegative,
    OfVariables,
    OneOf,
    Positive,
    PositiveFloat,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseOptimizerConfig(Config):
    """What all optimizers have: a name, and at most one of three ways to clip gradients.

    Attributes:
      clipnorm: largest L2 norm of each gradient.
      clipvalue: largest absolute value in each gradient.
      global_clipnorm: largest L2 norm of all gradients together.
      name: name of the optimizer.
    """

    clipnorm: PositiveFloat | None = None
    clipvalue: PositiveFloat | None = None
    global_clipnorm: PositiveFloat | None = None
    name: str = ""

    def problems(self) -> Iterator[tuple[str, ...]]:
        chosen = [n for n in ("clipnorm", "clipvalue", "global_clipnorm") if getattr(self, n) is not None]
        if len(chosen) > 1:
            yield chosen[-1], f"cannot be combined with {' and '.join(chosen[:-1])}; keep one", *chosen[:-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGDConfig(BaseOptimizerConfig):
    """Stochastic gradient descent.

    Attributes:
      decay: time-inverse decay of the learning rate per step.
      nesterov: whether momentum looks ahead.
      momentum: share of the last update that is kept.
    """

    name: str = "SGD"
    decay: float = 0.0
    nesterov: bool = False
    momentum: OfVariables[Fraction] = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamConfig(BaseOptimizerConfig):
    """Adam (Kingma and Ba, 2014, arXiv:1412.6980).

    Attributes:
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: keeps the denominator away from zero.
      amsgrad: whether to use AMSGrad (Reddi et al., 2018).
    """

    name: str = "Adam"
    beta_1: Fraction = 0.9
    beta_2: Fraction = 0.999
    epsilon: float = 1e-7
    amsgrad: OfVariables[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamWeightDecayConfig(AdamConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017, arXiv:1711.05101).

    Attributes:
      weight_decay_rate: share of a weight subtracted in a step, times the learning rate.
      include_in_weight_decay: names of weights that decay even if excluded.
      exclude_from_weight_decay: names of weights that do not decay.
      gradient_clip_norm: largest L2 norm of all gradients together.
    """

    name: str = "AdamWeightDecay"
    weight_decay_rate: float = 0.0
    include_in_weight_decay: tuple[str, ...] | None = None
    exclude_from_weight_decay: tuple[str, ...] | None = None
    gradient_clip_norm: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSPropConfig(BaseOptimizerConfig):
    """RMSprop (Tieleman and Hinton, 2012).

    Attributes:
      rho: decay of the mean square of gradients.
      momentum: share of the last update that is kept.
      epsilon: keeps the denominator away from zero.
      centered: whether gradients are normalised by their variance.
    """

    name: str = "RMSprop"
    rho: Fraction = 0.9
    momentum: OfVariables[Fraction] = 0.0
    epsilon: float = 1e-7
    centered: OfVariables[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdagradConfig(BaseOptimizerConfig):
    """Adagrad (Duchi et al., 2011).

    Attributes:
      initial_accumulator_value: where the accumulators start.
      epsilon: keeps the denominator away from zero.
    """

    name: str = "Adagrad"
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7


@dataclasses.dataclass(frozen=True, kw_only=True)
class LAMBConfig(BaseOptimizerConfig):
    """LAMB (You et al., 2019, arXiv:1904.00962).

    Attributes:
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: keeps the denominator away from zero.
      weight_decay_rate: share of a weight subtracted in a step.
      exclude_from_weight_decay: patterns of weights that do not decay.
      exclude_from_layer_adaptation: patterns of weights whose update is not scaled by layer.
    """

    name: str = "LAMB"
    beta_1: Fraction = 0.9
    beta_2: Fraction = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.0
    exclude_from_weight_decay: tuple[str, ...] | None = None
    exclude_from_layer_adaptation: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LARSConfig(BaseOptimizerConfig):
    """LARS (You et al., 2017, arXiv:1708.03888).

    Attributes:
      momentum: share of the last update that is kept.
      eeta: coefficient of the layer's rate.
      weight_decay_rate: share of a weight subtracted in a step.
      nesterov: whether momentum looks ahead.
      classic_momentum: whether the learning rate is applied before momentum.
      exclude_from_weight_decay: names of weights that do not decay.
      exclude_from_layer_adaptation: names of weights whose update is not scaled by layer.
    """

    name: str = "LARS"
    momentum: Fraction = 0.9
    eeta: float = 0.001
    weight_decay_rate: float = 0.0
    nesterov: bool = False
    classic_momentum: bool = True
    exclude_from_weight_decay: tuple[str, ...] | None = None
    exclude_from_layer_adaptation: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomOptimizerConfig(Plugin):
    """An optimizer that a file or a package adds.

    `optimizer.type` is the name of a file in `optimizers/` of the workspace, or of an entry point
    `official_trainer.optimizers` of an installed package. The fields are in the section of that name. Their averages,
    `ema`, and the loss scale of float16 work as with other optimizers; what clips gradients is a field of its own.

    Example:
      A file `optimizers/lion.py` of the workspace, used by `optimizer: {type: lion, lion: {beta_2: 0.98}}`:

      >>> import dataclasses
      >>> from official_trainer.config import CustomOptimizerConfig, Fraction
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class LionConfig(CustomOptimizerConfig):
      ...     beta_2: Fraction = 0.99
      ...
      ...     def build(self, learning_rate):
      ...         import keras
      ...
      ...         return keras.optimizers.Lion(learning_rate, beta_2=self.beta_2)
      >>> LionConfig(beta_2=0.98).build(1e-4).beta_2
      0.98
    """

    FOLDER: ClassVar[str] = "optimizers"
    GROUP: ClassVar[str] = "official_trainer.optimizers"

    def build(self, learning_rate: Any) -> Any:
        """Returns the optimizer, of the Keras that the model is of.

        Args:
          learning_rate: a number, or a schedule of that Keras.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build(learning_rate)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(OneOf):
    """Which optimizer updates the weights.

    Attributes:
      type: the optimizer; also the name of a `CustomOptimizerConfig`.

    Example:
      >>> from official_trainer.config import optimization as opt
      >>> config = opt.OptimizerConfig(type="adamw", adamw=opt.AdamWeightDecayConfig(weight_decay_rate=0.01))
      >>> config.get().weight_decay_rate
      0.01
    """

    PLUGINS: ClassVar[Any] = CustomOptimizerConfig

    type: OfVariables[str | None] = None
    sgd: SGDConfig = SGDConfig()
    adam: AdamConfig = AdamConfig()
    adamw: AdamWeightDecayConfig = AdamWeightDecayConfig()
    rmsprop: RMSPropConfig = RMSPropConfig()
    adagrad: AdagradConfig = AdagradConfig()
    lamb: LAMBConfig = LAMBConfig()
    lars: LARSConfig = LARSConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """What all schedules and warm-ups have.

    Attributes:
      name: name of the schedule.
    """

    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantLrConfig(ScheduleConfig):
    """The same learning rate at every step.

    Attributes:
      learning_rate: the rate.
    """

    name: str = "Constant"
    learning_rate: PositiveFloat = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepwiseLrConfig(ScheduleConfig):
    """Constant between boundaries.

    Attributes:
      boundaries: steps at which the rate changes, rising.
      values: rates, one more than boundaries.
      offset: steps by which the schedule starts later.
    """

    EXTRA_VALUES: ClassVar[int] = 1
    """How many more values than boundaries there are."""

    name: str = "PiecewiseConstantDecay"
    boundaries: tuple[int, ...] | None = None
    values: tuple[float, ...] | None = None
    offset: int = 0

    def problems(self) -> Iterator[tuple[str, ...]]:
        if self.boundaries is None or self.values is None:
            return
        if list(self.boundaries) != sorted(set(self.boundaries)):
            yield "boundaries", f"must rise, got {list(self.boundaries)}"
        needed, number = len(self.boundaries) + self.EXTRA_VALUES, len(self.boundaries)
        if len(self.values) != needed:
            what = f"must hold {needed} rates for {number} boundaries, got {len(self.values)}"
            yield "values", what, "boundaries"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialLrConfig(ScheduleConfig):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`.

    Attributes:
      initial_learning_rate: rate at step 0.
      decay_steps: steps in which the rate falls by one factor.
      decay_rate: the factor.
      staircase: whether the rate falls in steps of `decay_steps`.
      offset: steps by which the schedule starts later.
    """

    name: str = "ExponentialDecay"
    initial_learning_rate: PositiveFloat | None = None
    decay_steps: Positive | None = None
    decay_rate: PositiveFloat | None = None
    staircase: bool | None = None
    offset: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolynomialLrConfig(ScheduleConfig):
    """Falls from the initial to the end rate as a power of the step.

    Attributes:
      initial_learning_rate: rate at step 0.
      decay_steps: steps until the end rate; follows `trainer.train_steps` unless it, `cycle` or `offset` is set.
      end_learning_rate: rate after `decay_steps`.
      power: 1 is a straight line.
      cycle: whether the schedule starts again after `decay_steps`.
      offset: steps by which the schedule starts later.
    """

    name: str = "PolynomialDecay"
    initial_learning_rate: PositiveFloat | None = None
    decay_steps: Positive | None = None
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    offset: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineLrConfig(ScheduleConfig):
    """Half a cosine from the initial rate to `alpha` times it (Loshchilov and Hutter, 2016, arXiv:1608.03983).

    Attributes:
      initial_learning_rate: rate at step 0.
      decay_steps: steps until the end rate; follows `trainer.train_steps` unless it or `offset` is set.
      alpha: end rate as a share of the initial one.
      offset: steps by which the schedule starts later.
    """

    name: str = "CosineDecay"
    initial_learning_rate: PositiveFloat | None = None
    decay_steps: Positive | None = None
    alpha: Fraction = 0.0
    offset: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectPowerLrConfig(ScheduleConfig):
    """`initial_learning_rate * step ** power`.

    Attributes:
      initial_learning_rate: factor of the power.
      power: exponent of the step.
    """

    name: str = "DirectPowerDecay"
    initial_learning_rate: PositiveFloat | None = None
    power: float = -0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerAndLinearDecayLrConfig(ScheduleConfig):
    """A power of the step, with a linear fall to zero at the end.

    Attributes:
      initial_learning_rate: factor of the power.
      total_decay_steps: steps of the whole schedule; follows `trainer.train_steps` unless it or `offset` is set.
      power: exponent of the step.
      linear_decay_fraction: share of the schedule that falls linearly.
      offset: steps by which the schedule starts later.
    """

    name: str = "PowerAndLinearDecay"
    initial_learning_rate: PositiveFloat | None = None
    total_decay_steps: Positive | None = None
    power: float = -0.5
    linear_decay_fraction: Fraction = 0.1
    offset: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerDecayWithOffsetLrConfig(DirectPowerLrConfig):
    """A power of the step, after a constant start.

    Attributes:
      offset: steps before the power begins.
      pre_offset_learning_rate: rate before that.
    """

    name: str = "PowerDecayWithOffset"
    offset: int = 0
    pre_offset_learning_rate: float = 1.0e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCosineLrConfig(StepwiseLrConfig):
    """Cosine pieces between boundaries.

    Attributes:
      boundaries: step at which each piece starts, rising from 0; the last one must lie past the end of training, as
        Model Garden's schedule gives no number from there on.
      values: rate at the start of each piece, as many as boundaries.
    """

    EXTRA_VALUES: ClassVar[int] = 0

    name: str = "StepCosineDecayWithOffset"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomScheduleConfig(Plugin):
    """A learning rate that a file or a package adds.

    `learning_rate.type` is the name of a file in `schedules/` of the workspace, or of an entry point
    `official_trainer.schedules` of an installed package. The fields are in the section of that name.

    Example:
      A file `schedules/triangle.py` of the workspace, used by
      `learning_rate: {type: triangle, triangle: {high: 0.02}}`:

      >>> import dataclasses
      >>> from official_trainer.config import CustomScheduleConfig, Positive, PositiveFloat
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class TriangleConfig(CustomScheduleConfig):
      ...     high: PositiveFloat = 0.01
      ...     half_steps: Positive = 100
      ...
      ...     def build(self):
      ...         def rate(step):
      ...             return self.high * (1 - abs(step % (2 * self.half_steps) / self.half_steps - 1))
      ...
      ...         return rate
      >>> TriangleConfig(high=0.02).build()(150.0)
      0.01
    """

    FOLDER: ClassVar[str] = "schedules"
    GROUP: ClassVar[str] = "official_trainer.schedules"

    def build(self) -> Any:
        """Returns a function, or a schedule of Keras, that is called with the step and returns the learning rate.

        The step is the number of updates so far, scalar float32. The rate is a scalar, finite and at least 0. It may
        depend on nothing but the step, so that a run that continues has the same rates.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build()")


LENGTHS = {"polynomial": "decay_steps", "cosine": "decay_steps", "power_linear": "total_decay_steps"}
"""For each schedule that has an end, the field with the steps until then."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LrConfig(OneOf):
    """How the learning rate changes with the step.

    Attributes:
      type: the schedule; also the name of a `CustomScheduleConfig`.

    Example:
      >>> from official_trainer.config import optimization as opt
      >>> cosine = opt.CosineLrConfig(initial_learning_rate=3e-3, decay_steps=2000)
      >>> opt.LrConfig(type="cosine", cosine=cosine).get().decay_steps
      2000
    """

    PLUGINS: ClassVar[Any] = CustomScheduleConfig

    type: str | None = None
    constant: ConstantLrConfig = ConstantLrConfig()
    stepwise: StepwiseLrConfig = StepwiseLrConfig()
    exponential: ExponentialLrConfig = ExponentialLrConfig()
    polynomial: PolynomialLrConfig = PolynomialLrConfig()
    cosine: CosineLrConfig = CosineLrConfig()
    power: DirectPowerLrConfig = DirectPowerLrConfig()
    power_linear: PowerAndLinearDecayLrConfig = PowerAndLinearDecayLrConfig()
    power_with_offset: PowerDecayWithOffsetLrConfig = PowerDecayWithOffsetLrConfig()
    step_cosine_with_offset: StepCosineLrConfig = StepCosineLrConfig()

    def problems(self) -> Iterator[tuple[str, ...]]:
        section, length = self.get(), self._length()
        for field in dataclasses.fields(section) if isinstance(section, ScheduleConfig) else ():
            if getattr(section, field.name) is None and field.name != "staircase":
                other = ", or else trainer.train_steps, which it follows" if field.name == length else ""
                what = f"must be set when learning_rate.type is {self.type}{other}"
                yield f"{self.type}.{field.name}", what, "type"

    def follows(self) -> Iterator[tuple[str, str]]:
        if (length := self._length()) and getattr(self.get(), length) is None:
            yield f"{self.type}.{length}", "trainer.train_steps"

    def _length(self) -> str:
        """Returns the field of the schedule that follows `trainer.train_steps`, with which it ends; empty if none."""
        section = getattr(self, str(self.type), None)  # None also where a reference chooses it, until that is known
        is_shifted = getattr(section, "cycle", False) or getattr(section, "offset", 0) != 0
        return "" if section is None or is_shifted else LENGTHS.get(str(self.type), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearWarmupConfig(ScheduleConfig):
    """A straight line up to the schedule.

    Attributes:
      warmup_learning_rate: rate at step 0.
      warmup_steps: steps until the schedule takes over.
    """

    name: str = "linear"
    warmup_learning_rate: float = 0.0
    warmup_steps: Positive | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolynomialWarmupConfig(ScheduleConfig):
    """A power of the step up to the schedule.

    Attributes:
      power: 1 is a straight line.
      warmup_steps: steps until the schedule takes over.
    """

    name: str = "polynomial"
    power: float = 1.0
    warmup_steps: Positive | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupConfig(OneOf):
    """How the learning rate starts.

    Attributes:
      type: the warm-up; unset means none.

    Example:
      >>> from official_trainer.config import optimization as opt
      >>> opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=500)).get().warmup_steps
      500
    """

    type: Literal["linear", "polynomial"] | None = None
    linear: LinearWarmupConfig = LinearWarmupConfig()
    polynomial: PolynomialWarmupConfig = PolynomialWarmupConfig()

    def problems(self) -> Iterator[tuple[str, ...]]:
        if self.type is not None and self.get().warmup_steps is None:
            yield f"{self.type}.warmup_steps", f"must be set when warmup.type is {self.type}", "type"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EMAConfig(Config):
    """Exponential moving average of the weights (Polyak averaging), used for evaluation and export.

    Attributes:
      trainable_weights_only: whether batch-norm statistics and the like are left out.
      average_decay: share of the average kept in a step.
      start_step: step before which the average is just the weights.
      dynamic_decay: whether the decay rises as `(1 + n) / (10 + n)` over the first steps.

    Example:
      >>> from official_trainer.config import OptimizationConfig
      >>> from official_trainer.config import optimization as opt
      >>> OptimizationConfig(ema=opt.EMAConfig(average_decay=0.999, start_step=1000)).ema.average_decay
      0.999
    """

    trainable_weights_only: OfVariables[bool] = True
    average_decay: Guarded[Fraction] = 0.99
    start_step: Guarded[NonNegative] = 0
    dynamic_decay: Guarded[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizationConfig(Config):
    """Optimizer, learning rate, warm-up and weight averaging.

    Attributes:
      ema: weight averaging; unset means none.

    Example:
      >>> from official_trainer.config import OptimizationConfig
      >>> from official_trainer.config import optimization as opt
      >>> config = OptimizationConfig(
      ...     optimizer=opt.OptimizerConfig(type="adam"),
      ...     learning_rate=opt.LrConfig(
      ...         type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=3e-3, decay_steps=2000)
      ...     ),
      ...     warmup=opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=50)),
      ... )
      >>> config.optimizer.type, config.learning_rate.get().decay_steps
      ('adam', 2000)
    """

    optimizer: OptimizerConfig = OptimizerConfig()
    ema: OfVariables[EMAConfig | None] = None
    learning_rate: LrConfig = LrConfig()
    warmup: WarmupConfig = WarmupConfig()
