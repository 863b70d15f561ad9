"""Values that the model publishes inside a step, its gradients and its weights, sent to the trackers.

Owns: which of them are sent, and under which tags. Does not own: collecting them (`tasks/publish.py`,
`engine/train_steps.py`), how they are shown (`tracking/`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.actions.action import Action, CallAt, Run
from official_trainer.config import ActionConfig, FrozenDict, Positive, When
from official_trainer.errors import UserError
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import variables
from official_trainer.tracking import Histogram, Image


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishIntermediatesConfig(ActionConfig):
    """Sends what `publish.scalar`, `publish.histogram` and `publish.image` were given inside of the step.

    Attributes:
      when: when it is due. A step that is published computes the same as any other, but where TensorFlow or XLA fuses
        operations it may round in another way, so that the last bits of the weights depend on this. A run that was
        killed still ends as an unbroken one does, unless this depends on time or on the start of the process.
      weights: whether histograms of the trainable weights are sent, as `weights/<path>`.
      gradients: whether those of their gradients are, as `gradients/<path>`, and `gradient_norm`; of tasks that do not
        have a `train_step` of their own.
      patterns: what is sent, by patterns (shell style) of names, such as `gradients/*/kernel`.
      tags: under which tag a name is sent, if it is another: patterns of names, each with the tag. Each `*` of the tag
        is what the pattern's `*` at that place matched: `{gradients/*/kernel: slopes/*}`. The first pattern counts.
      max_images: how many pictures of one name at most; the model may publish fewer.
    """

    when: When | None = When(n_times=100)
    weights: bool = True
    gradients: bool = True
    patterns: tuple[str, ...] = ("*",)
    tags: dict[str, str] = FrozenDict()
    max_images: Positive = 3

    def problems(self) -> Iterator[tuple[str, str]]:
        for pattern, tag in self.tags.items():
            if tag.count("*") > pattern.count("*"):
                yield "tags", f"the tag '{tag}' has more `*` than its pattern '{pattern}', which is to fill them"

    def build(self) -> PublishIntermediates:
        return PublishIntermediates(self)


class TagError(UserError, ValueError):
    """Two names are sent under one tag."""


class PublishIntermediates(Action):
    """Records numbers, and publishes histograms and images, of the split `intermediates`."""

    publishes = True

    def __init__(self, config: PublishIntermediatesConfig) -> None:
        self._config = config

    def on_step(self, run: Run) -> CallAt | None:
        if run.trainer.windows.published is None:
            # This step could not be foreseen, so its values were not collected. The next step is published instead.
            return CallAt(step=run.step + 1)
        published: dict[str, Any] = dict(run.trainer.windows.published)
        if self._config.weights:
            trained = {
                id(variable) for variable in kerases.of(run.trainer.model).variables(run.trainer.model, trainable=True)
            }
            named = variables.flatten(run.trainer.model)
            published |= {f"weights/{path}": Histogram(v.numpy()) for path, v in named.items() if id(v) in trained}
        sent = self._tagged(published)
        media = {tag: value for tag, value in sent.items() if isinstance(value, Histogram | Image)}
        if numbers := {tag: value for tag, value in sent.items() if tag not in media}:
            run.tracker.log("intermediates", run.step, numbers)
        if media:
            run.tracker.publish("intermediates", run.step, media)
        return None

    def _tagged(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what is sent, by tag. Images share the name before their number.

        Raises:
          TagError: two names have one tag.
        """
        sent: dict[str, Any] = {}
        names: dict[str, str] = {}
        for full_name, value in published.items():
            name, slash, number = full_name.rpartition("/") if isinstance(value, Image) else (full_name, "", "")
            is_gradient = name == "gradient_norm" or name.startswith("gradients/")
            is_left_out = (is_gradient and not self._config.gradients) or int(number or 0) >= self._config.max_images
            is_named = any(fnmatch.fnmatchcase(name, pattern) for pattern in self._config.patterns)
            if is_left_out or not is_named:
                continue
            tag = f"{self._tag_of(name)}{slash}{number}"
            if tag in sent:
                raise TagError(
                    f"{names[tag]!r} and {full_name!r} are both sent as {tag!r}; give them different tags, or leave "
                    "one out (`patterns`)"
                )
            sent[tag], names[tag] = value, full_name
        return sent

    def _tag_of(self, name: str) -> str:
        for pattern, tag in self._config.tags.items():
            if match := re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name, re.DOTALL):
                filled = iter(match.groups())
                return "".join(next(filled) if char == "*" else char for char in tag)
        return name
