"""An experiment whose task has a field of every type that a section may declare."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from official_trainer.config import (
    Between,
    Config,
    ConfigError,
    DataConfig,
    ExperimentConfig,
    Fraction,
    FrozenDict,
    OneOf,
    Positive,
    PositiveFloat,
    TaskConfig,
    TrainerConfig,
    resolve,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block(Config):
    """One block.

    Attributes:
      x: the x.
      names: the names.
    """

    x: int = 1
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideBlock(Block):
    """A wider one.

    Attributes:
      width: how wide.
    """

    width: Positive = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict(Config):
    """A section with a field that has no default, and a rule of its own.

    Attributes:
      size: must be given.
      other: anything.
    """

    size: int
    other: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.size, int) and self.size > 100:
            raise ValueError("size is too large for other")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape(OneOf):
    """A one-of whose choices are its fields.

    Attributes:
      type: which.
      round: round.
      square: square.
    """

    type: str | None = None
    round: Block = Block()
    square: WideBlock = WideBlock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Config):
    """Every type.

    Attributes:
      integer: an integer.
      truth: a truth value,
        or not.

    Text after the block is not about a field:
      number: not this.
    """

    integer: int = 3
    number: float = 0.5
    truth: bool = False
    text: str = "abc"
    word: Literal["adam", "sgd", "off"] = "adam"
    level: Literal[1, 2, 3] = 1
    padding: Literal["None", "same"] = "same"
    share: Fraction = 0.1
    bounded: Annotated[int, Between(-1, 5)] = 0
    at_most: Annotated[float, Between(None, 2)] = 0.0
    maybe_integer: int | None = None
    maybe_text: str | None = None
    maybe_section: Block | None = None
    either: str | tuple[str, ...] = ""
    count: int | float = 1
    flag_or_text: bool | str = "auto"
    many: int | Literal["auto"] = "auto"
    scale: Literal["dynamic"] | PositiveFloat | None = None
    filters: tuple[Positive, ...] = (32, 64)
    window: tuple[int, float] = (2, 0.5)
    nested: tuple[tuple[int, ...], ...] = ()
    plain_list: list[float] = dataclasses.field(default_factory=list)
    weights: dict[str, float] = FrozenDict()
    blocks: tuple[Block, ...] = (Block(),)
    named: dict[str, Block] = FrozenDict()
    strict: Strict | None = None
    free: dict[str, Any] = FrozenDict()
    anything: Any = None
    shape: Shape = Shape()
    maybe_shape: Shape | None = None
    maybe_anything: Any | None = None
    nothing: None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.integer > 1000 and not self.truth:
            yield "integer", "must stay below 1000 unless truth is set"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleTask(TaskConfig):
    """A task.

    Attributes:
      model: the model.
    """

    model: Model = Model()


def base(model: Model | None = None) -> ExperimentConfig:
    """What a factory would return: `train_steps` and the batch size are its own."""
    return ExperimentConfig(
        task=SampleTask(model=model or Model(), train_data=DataConfig(global_batch_size=8)),
        trainer=TrainerConfig(train_steps=100),
    )


def resolved(*sets: str, model: Model | None = None, **layers: Any):
    return resolve(base(model), experiment="sample", sets=sets, **layers)


def model(*sets: str, **layers: Any) -> Model:
    return resolved(*sets, **layers).config.task.model


def problems(*sets: str, **layers: Any) -> list[str]:
    """The one-line messages of a configuration that must be refused."""
    try:
        resolved(*sets, **layers)
    except ConfigError as error:
        return [problem.message for problem in error.problems]
    raise AssertionError("nothing was refused")
