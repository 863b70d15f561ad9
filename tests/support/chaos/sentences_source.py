"""The source `sentences` of a workspace: examples of `sequences`, from a number on."""

from __future__ import annotations

import dataclasses

from official_trainer.config import NonNegative, Positive, SourceConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencesConfig(SourceConfig):
    """Sentences.

    Attributes:
      count: how many.
      first: the number of the first.
    """

    count: Positive = 100
    first: NonNegative = 0

    def build(self):
        from experiments.sequences import sentences

        return sentences(self.count, self.first)
