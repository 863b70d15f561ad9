"""Values that the model publishes inside a step, its gradients and its weights, sent to the trackers.

Owns: which of them are sent. Does not own: collecting them (`tasks/publish.py`,
`engine/train_steps.py`), how they are shown (`tracking/`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Any

from official_trainer.actions.action import Action, CallAt, Run
from official_trainer.config import ActionConfig, Positive, When
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
      max_images: how many pictures of one name at most; the model may publish fewer.
    """

    when: When | None = When(n_times=100)
    weights: bool = True
    gradients: bool = True
    patterns: tuple[str, ...] = ("*",)
    max_images: Positive = 3

    def build(self) -> PublishIntermediates:
        return PublishIntermediates(self)


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
        sent = {name: value for name, value in published.items() if self._is_sent(name, value)}
        media = {name: value for name, value in sent.items() if isinstance(value, Histogram | Image)}
        if numbers := {name: value for name, value in sent.items() if name not in media}:
            run.tracker.log("intermediates", run.step, numbers)
        if media:
            run.tracker.publish("intermediates", run.step, media)
        return None

    def _is_sent(self, full_name: str, value: Any) -> bool:
        """Whether a value is sent. Images share the name before their number."""
        name, _, number = full_name.rpartition("/") if isinstance(value, Image) else (full_name, "", "")
        is_gradient = name == "gradient_norm" or name.startswith("gradients/")
        is_left_out = (is_gradient and not self._config.gradients) or int(number or 0) >= self._config.max_images
        return not is_left_out and any(fnmatch.fnmatchcase(name, pattern) for pattern in self._config.patterns)
