"""What a configuration class may declare: `Config`, one-of sections, ranges, what a change means for a run.

Owns: the two base classes and these annotations. A config class is a standard frozen dataclass; the docstring of
`Config` shows one.
Does not own: reading values (`decode.py`), where they come from (`layers.py`), writing them (`dump.py`).
"""

from __future__ import annotations

import dataclasses
import enum
import keyword
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar

from official_trainer.config import other_names
from official_trainer.config.errors import ConfigError, Problem, best_match, calling_line

_MOST_LISTED = 8
"""So many fields are listed in a message."""


class FrozenDict(dict[str, Any]):
    """A dict that cannot change, so that it may be the default and the value of a `dict[str, X]` field.

    Example:
      >>> import dataclasses
      >>> from official_trainer.config import Config, FrozenDict
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class LossConfig(Config):
      ...     weights: dict[str, float] = FrozenDict(boxes=1.0, masks=0.5)
      >>> LossConfig().weights["masks"]
      0.5
    """

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("this mapping belongs to a frozen configuration; build a new one with dict(old) and replace()")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A section of the configuration: frozen, typed, made of plain values and other sections.

    Fields may be `int, float, bool, str`, `None` unions, `Literal`, `tuple[X, ...]`, fixed tuples, `dict[str, X]`
    (default: a `FrozenDict`), other `Config` classes, and `Annotated[X, …]` with the ranges of this module. Give every
    field a default, or the section cannot be written from YAML alone. A field whose name is a Python keyword is
    declared with an underscore after it, and written without.

    The first line of a section's docstring and its `Attributes:` are what `show --explain` prints.

    Example:
      >>> import dataclasses
      >>> from typing import Annotated
      >>> from official_trainer.config import Between, Config, Positive
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class ModelConfig(Config):
      ...     filters: tuple[Positive, ...] = (32, 64)
      ...     dropout: Annotated[float, Between(0, 1)] = 0.1
      >>> ModelConfig().replace(dropout=0.2)
      ModelConfig(filters=(32, 64), dropout=0.2)
    """

    WORDS: ClassVar[tuple[str, ...]] = ()
    """Boolean fields whose name alone, as a word, abbreviates the section with that field set to true."""
    IS_WHOLE: ClassVar[bool] = False
    """Whether a mapping replaces the present section instead of being merged into it."""
    OURS: ClassVar[frozenset[str]] = frozenset()
    """Fields that Model Garden's class lacks, in a section for one of its classes."""
    HAS_REFERENCES: ClassVar[bool] = True
    """Of the whole configuration: whether `${PATH}` in a text refers to a field; otherwise it is text."""

    def __new__(cls, *_arguments: Any, **values: Any) -> Self:
        """Refuses values for fields that there are not."""
        if unknown := [name for name in values if name not in cls.__dataclass_fields__]:
            raise UnknownFieldError(cls, unknown[0])
        return super().__new__(cls)

    @classmethod
    def is_read_as_garden(cls, name: str) -> bool:
        """Whether a field is read by Model Garden's rules.

        It accepts null, a list of texts accepts one text, an optional one-of keeps the word that names a choice, and a
        one-of has values of choices that are not selected, all with a warning; mappings are merged, and so are lists of
        sections of the same length, item by item.
        """
        return False

    def is_only_ours(self, name: str) -> bool:
        """Whether Model Garden's class takes the value of a field neither as it is nor at all."""
        return name in self.OURS

    def problems(self) -> Iterator[tuple[str, ...]]:
        """Yields `(field, what is wrong and how to correct it)` for rules that a type cannot express.

        A rule about several fields yields the others behind these two: where the user has set only one of them, the
        message shows its line. Where one of them could not be read, there is no message.
        """
        yield from ()

    def ignored(self) -> Iterator[tuple[str, ...]]:
        """Yields `(field, message)` for fields that may be set but have no effect; for warnings."""
        yield from ()

    def follows(self) -> Iterator[tuple[str, str]]:
        """Yields `(field, followed)` for fields that are null and then have the value of the path `followed`.

        Such as `trainer.train_steps`. They keep null in a configuration that lacks it, or where it is 0 or null.
        """
        yield from ()

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def written_items(self) -> Iterator[tuple[str, Any]]:
        """Yields the fields that are written; of a section that is read as a whole, those that are not null."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or not self.IS_WHOLE:
                yield spelling(field.name), value

    def as_dict(self) -> dict[str, Any]:
        """Returns nested plain dicts and lists of what is written."""
        return {name: plain(value) for name, value in self.written_items()}


class UnknownFieldError(ConfigError, TypeError):
    """Python code gives a section a value for a field that it does not have."""

    def __init__(self, cls: type[Config], name: str) -> None:
        names = [spelling(field) for field in cls.__dataclass_fields__]
        near = next((ours for ours in other_names.ours(name) if ours in names), best_match(name, names))
        near = "" if name in other_names.OF_ITEMS else near
        what = f"{cls.__name__} has no field '{name}'"
        item = other_names.OF_ITEMS.get(name, "")
        fix = item or ("" if near else "show --explain EXPERIMENT lists the fields of an experiment")
        allowed = "" if near or len(names) > _MOST_LISTED else ", ".join(names)
        super().__init__([Problem(what, near=near, allowed=allowed, fix=fix, origin=calling_line())])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneOf(Config):
    """A section in which `type` selects the one subsection that is in force (Model Garden's `OneOfConfig`).

    Subclasses declare `type: Literal[…] | None` and one `Config` field for each choice.

    Example:
      >>> import dataclasses
      >>> from typing import Literal
      >>> from official_trainer.config import Config, OneOf, Positive
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class MlpConfig(Config):
      ...     units: Positive = 64
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class BackboneConfig(OneOf):
      ...     type: Literal["mlp", "linear"] | None = "linear"
      ...     mlp: MlpConfig = MlpConfig()
      ...     linear: Config = Config()
      >>> BackboneConfig(type="mlp").get()
      MlpConfig(units=64)
    """

    PLUGINS: ClassVar[Any] = None
    """The root of the plug-ins whose names `type` may have as well; None for none."""

    type: str | None = None

    def get(self) -> Any:
        """Returns the selected sub-section, or None when `type` is None, or empty as in defaults of Model Garden."""
        return getattr(self, self.type) if self.type else None

    def written_items(self) -> Iterator[tuple[str, Any]]:
        """Yields the type, and the sub-section that it selects."""
        yield "type", self.type
        if self.type:
            yield self.type, self.get()


def spelling(name: str) -> str:
    """Returns a field's name as it is written: `not` for `not_`."""
    return name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name


def plain(value: Any) -> Any:
    """Returns a value of a configuration as nested plain dicts and lists."""
    if isinstance(value, Config):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value


@dataclasses.dataclass(frozen=True)
class Between:
    """A closed range for a number: `Annotated[float, Between(0, 1)]`; None leaves a side open.

    Values are checked when a configuration is resolved, wherever they come from.

    Attributes:
      low: the least value that is allowed.
      high: the largest.

    Example:
      >>> import dataclasses
      >>> from typing import Annotated
      >>> from official_trainer.config import Between, Config, resolve
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class CropConfig(Config):
      ...     share: Annotated[float, Between(0.1, 1)] = 0.8
      >>> resolve(CropConfig(), sets=["share=1.5"])
      Traceback (most recent call last):
        ...
      official_trainer.config.errors.ConfigError: --set: share: must be between 0.1 and 1, got 1.5
      ...
    """

    low: float | None = None
    high: float | None = None

    @property
    def allowed(self) -> str:
        """The range in words, such as `at least 1`."""
        if self.low is not None and self.high is not None:
            return f"between {self.low:g} and {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "any number" if self.high is None else f"at most {self.high:g}"

    def problem(self, value: float) -> str | None:
        """Returns what is allowed if `value` is outside, else None."""
        inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return None if inside else f"must be {self.allowed}"


@dataclasses.dataclass(frozen=True)
class Above:
    """An open lower bound for a number: `Annotated[float, Above(0)]`.

    Attributes:
      low: every allowed value is greater than this.

    Example:
      >>> import dataclasses
      >>> from typing import Annotated
      >>> from official_trainer.config import Above, Config, resolve
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class GrowthConfig(Config):
      ...     factor: Annotated[float, Above(1)] = 1.2
      >>> resolve(GrowthConfig(), sets=["factor=2"]).config
      GrowthConfig(factor=2.0)
    """

    low: float

    @property
    def allowed(self) -> str:
        """The range in words, such as `greater than 0`."""
        return f"greater than {self.low:g}"

    def problem(self, value: float) -> str | None:
        """Returns what is allowed if `value` is not above the bound, else None."""
        return None if value > self.low else f"must be {self.allowed}"


Positive = Annotated[int, Between(1)]
"""An integer from 1 on."""
NonNegative = Annotated[int, Between(0)]
"""An integer from 0 on."""
PositiveFloat = Annotated[float, Above(0)]
"""A number greater than 0."""
NonNegativeFloat = Annotated[float, Between(0)]
"""A number from 0 on."""
Fraction = Annotated[float, Between(0, 1)]
"""A number between 0 and 1, both included."""


class ChangeKind(enum.StrEnum):
    """What another value of a field means for a run that continues from a checkpoint."""

    SAFE = "safe"
    """The weights after each step stay the same, whatever the fields inside are."""
    GUARDED = "guarded"
    """They change."""
    VARIABLES = "variables"
    """The variables may change too, and a checkpoint of other variables cannot be continued."""


_T = TypeVar("_T")

Safe = Annotated[_T, ChangeKind.SAFE]
"""A field that may change when a run continues: `Safe[int]`."""
Guarded = Annotated[_T, ChangeKind.GUARDED]
"""A field that decides about the weights of each step."""
OfVariables = Annotated[_T, ChangeKind.VARIABLES]
"""A field that decides which variables there are: the model's, the optimizer's slots, averages, the loss scale."""
