"""The source `mixture`: several sources with weights.

Owns: the section. Does not own: the mechanism (`inputs/mixture.py`), its parts (the other files here).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from official_trainer.config import Config, FrozenDict, PositiveFloat, SourceConfig
from official_trainer.inputs import Source
from official_trainer.nearest import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartConfig(Config):
    """A part of a mixture.

    Attributes:
      source: its examples.
      weight: its share of training, beside the weights of the other parts.
    """

    source: SourceConfig | None = None
    weight: PositiveFloat = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureConfig(SourceConfig):
    """Several sources, each with its share of every stretch of training; see `inputs.Mixture`.

    Attributes:
      parts: a source and its weight, by a name for messages, and for the seed of the part's order.
    """

    parts: dict[str, PartConfig] = FrozenDict()

    def problems(self) -> Iterator[tuple[str, ...]]:
        if not self.parts:
            yield "parts", "is not set; for example parts: {news: {weight: 0.7, source: {type: parquet, …}}, …}"
        for name, part in self.parts.items():
            if part.source is None:
                near = did_you_mean(name, [other for other in self.parts if self.parts[other].source is not None])
                what = f"is not set; for example source: {{type: parquet, …}}{near}"
                yield f"parts.{name}.source", what, f"parts.{name}.type"

    def build(self) -> Source:
        from official_trainer.inputs import Mixture

        return Mixture({name: (part.source, part.weight) for name, part in self.parts.items()})
