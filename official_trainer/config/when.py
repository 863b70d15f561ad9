"""The `when` of an action: a trigger, as it is written in YAML.

Owns: the names and the syntax of triggers. Does not own: their meaning (`triggers.py`). In YAML::

    when: {every: 100}
    when: after_eval
    when: {any: [at_end, {all: [{every: 10}, {not: {first_steps: 100}}]}]}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from official_trainer import triggers
from official_trainer.config import fields
from official_trainer.config.declaration import Above, Config, Positive, PositiveFloat


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialWhen(Config):
    """Steps at growing distances.

    Attributes:
      start: the first step, and the first distance.
      factor: each distance is this many times the previous one, and at least one step more.
    """

    start: Positive = 100
    factor: Annotated[float, Above(1)] = 1.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class When(Config):
    """When an action is due: exactly one trigger, and the options that some triggers have.

    Steps are global steps: they do not depend on restarts or on `steps_per_loop`, and a window ends at each of them.

    Attributes:
      every: at the multiples of this step.
      at_steps: at these steps.
      first_steps: at this many steps from the beginning of the run.
      first_steps_of_process: at this many steps after each start.
      n_times: this many times, evenly over the run, the last time at its last step.
      exponential: at steps with growing distances.
      every_seconds: when this many seconds have passed, at the end of the window; counted from the first step.
      measure_from: whether `every_seconds` counts from the `end` of the action's last call, or from its `start`.
      call_on_end: with `exponential` or `every_seconds`: whether the action is also due at the last step.
      after_eval: after each evaluation.
      after_summary: with each summary of training.
      at_end: at the last step, also when training ends early.
      any: at the steps of any of these.
      all: at the steps at which all of these are due.
      not_: at the steps at which this is not due; written `not`.

    Example:
      >>> from official_trainer.config import When
      >>> when = When(any=(When(at_steps=(10, 500)), When(at_end=True)))
      >>> when.trigger().is_due_at(500)
      True
    """

    WORDS: ClassVar[tuple[str, ...]] = ("after_eval", "after_summary", "at_end")
    IS_WHOLE: ClassVar[bool] = True

    every: Positive | None = None
    at_steps: tuple[Positive, ...] | None = None
    first_steps: Positive | None = None
    first_steps_of_process: Positive | None = None
    n_times: Positive | None = None
    exponential: ExponentialWhen | None = None
    every_seconds: PositiveFloat | None = None
    measure_from: Literal["end", "start"] | None = None
    call_on_end: bool | None = None
    after_eval: bool | None = None
    after_summary: bool | None = None
    at_end: bool | None = None
    any: tuple[When, ...] | None = None
    all: tuple[When, ...] | None = None
    not_: When | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        chosen = self._chosen()
        if not chosen:
            yield "every", f"or another trigger must be set: {', '.join(_TRIGGERS)}"
        elif len(chosen) > 1:
            yield chosen[-1], f"cannot be set together with {chosen[0]}; combine them by any: […] or all: […]"
        for name in ("any", "all"):
            if getattr(self, name) == ():
                yield name, "must name at least one trigger"
        if self.at_steps == ():
            yield "at_steps", "must name at least one step"
        for word in self.WORDS:
            if getattr(self, word) is False:
                yield word, f"cannot be false; write not: {word}"
        if self.measure_from is not None and self.every_seconds is None:
            yield "measure_from", "has no effect without every_seconds"
        if self.call_on_end is not None and self.every_seconds is None and self.exponential is None:
            yield "call_on_end", "has no effect without every_seconds or exponential"

    def trigger(self) -> triggers.Trigger:
        """Returns the trigger that this describes."""
        (name,) = self._chosen()
        trigger = _TRIGGERS[name](getattr(self, fields.field_name(name)))
        if isinstance(trigger, triggers.EverySeconds) and self.measure_from is not None:
            trigger = dataclasses.replace(trigger, measure_from=self.measure_from)
        return triggers.AnyOf((trigger, triggers.AtEnd())) if self.call_on_end else trigger

    def _chosen(self) -> list[str]:
        return [name for name in _TRIGGERS if getattr(self, fields.field_name(name)) not in (None, False)]


def _all(parts: tuple[When, ...]) -> tuple[triggers.Trigger, ...]:
    return tuple(part.trigger() for part in parts)


_TRIGGERS: dict[str, Callable[[Any], triggers.Trigger]] = {
    "every": triggers.Every,
    "at_steps": triggers.AtSteps,
    "first_steps": triggers.FirstSteps,
    "first_steps_of_process": lambda count: triggers.FirstSteps(count, of_process=True),
    "n_times": triggers.NTimes,
    "exponential": lambda section: triggers.Exponential(section.start, section.factor),
    "every_seconds": triggers.EverySeconds,
    "after_eval": lambda _: triggers.AfterEval(),
    "after_summary": lambda _: triggers.AfterSummary(),
    "at_end": lambda _: triggers.AtEnd(),
    "any": lambda parts: triggers.AnyOf(_all(parts)),
    "all": lambda parts: triggers.AllOf(_all(parts)),
    "not": lambda part: triggers.Not(part.trigger()),
}
"""The trigger of each field, from its value."""
