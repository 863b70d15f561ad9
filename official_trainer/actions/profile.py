"""Profiles of a few steps, at chosen steps or as soon as somebody touches a file.

Owns: when TensorFlow's profiler starts and stops, and that it never stays on. Does not own: what is in a profile, or
showing it (TensorBoard's profile plugin).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from official_trainer import files
from official_trainer.actions.action import Action, CallAt, Run
from official_trainer.config import ActionConfig, Positive, When
from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.triggers import AnyOf, EverySeconds, Moment, Span, Trigger

_logger = logging.getLogger(__name__)

FILE = "PROFILE"
"""The file in the run directory that asks for a profile."""

LOOK_SECONDS = 2.0
"""How often that file is looked for, at most."""


class ProfileError(UserError, RuntimeError):
    """A profile cannot be taken."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig(ActionConfig):
    """Profiles a few steps; TensorBoard's profile plugin shows where their time goes.

    Attributes:
      when: the steps after which a profile begins.
      steps: how many steps it covers.
      on_demand: whether the file `PROFILE` in the run directory starts one too: `touch MODEL_DIR/PROFILE`. The file is
        removed when it does, a few seconds later.
      directory: folder in the run directory; profiles lie in `plugins/profile` below it, where TensorBoard finds them.
    """

    when: When | None = When(at_steps=(100,))
    on_error: Literal["fail", "warn", "disable"] = "warn"
    steps: Positive = 5
    on_demand: bool = True
    directory: str = "train"

    def build(self) -> Profile:
        return Profile(steps=self.steps, on_demand=self.on_demand, directory=self.directory)


class Profile(Action):
    """Starts TensorFlow's profiler, and stops it exactly `steps` later, at the end of the run, or when it fails."""

    def __init__(
        self,
        *,
        steps: int = 5,
        on_demand: bool = True,
        directory: str = "train",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the fields of `ProfileConfig`, and what tells the time in seconds."""
        self._steps, self._on_demand, self._directory = steps, on_demand, directory
        self._clock = clock
        self._planned: Trigger = Action.when
        self._logdir = ""
        self._until: int | None = None
        self._looked_seconds = -float("inf")
        self._began_seconds = self._ended_seconds = clock()

    @property
    def when(self) -> Trigger:
        """When a profile is planned, and every few seconds, at ends of windows, if there is something to look at."""
        if self._on_demand or not self._planned.is_foreseeable:  # the call that ends one moves the schedule's clock
            return AnyOf((self._planned, EverySeconds(LOOK_SECONDS)))
        return self._planned

    @when.setter
    def when(self, planned: Trigger) -> None:
        self._planned = planned

    def on_start(self, run: Run) -> None:
        self._began_seconds = self._ended_seconds = self._clock()

    def on_step(self, run: Run) -> CallAt | None:
        return self._step(run, evaluated=False)

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> CallAt | None:
        return self._step(run, evaluated=True)

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        self._stop()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stop()  # rolled back: the step at which it was to stop may never come

    def _step(self, run: Run, *, evaluated: bool) -> CallAt | None:
        if self._until is not None and run.step >= self._until:
            self._stop()
        if self._until is not None or _is_last(run):
            return None
        if not (self._is_planned(run, evaluated=evaluated) or self._is_demanded(run)):
            return None
        self._start(run)
        self._until = run.step + self._steps
        return CallAt(step=self._until)

    def _is_planned(self, run: Run, *, evaluated: bool) -> bool:
        """Asks the trigger itself: the schedule says that something is due, not what."""
        now = self._clock()
        moment = Moment(
            after=run.step - 1,  # a window ends at each step that can be foreseen
            step=run.step,
            span=Span(start_step=run.state.start_step, end_step=run.state.end_step),
            evaluated=evaluated,
            summarized=run.summary_step == run.step,
            since_end_seconds=now - self._ended_seconds,
            since_start_seconds=now - self._began_seconds,
        )
        return self._planned.is_due(moment)

    def _is_demanded(self, run: Run) -> bool:
        now = self._clock()
        if not self._on_demand or now - self._looked_seconds < LOOK_SECONDS:
            return False
        self._looked_seconds = now
        path = files.join(run.model_dir, FILE)
        if not files.exists(path):
            return False
        files.remove(path)
        return True

    def _start(self, run: Run) -> None:
        self._began_seconds = self._clock()
        self._logdir = files.join(run.model_dir, self._directory)
        try:
            tf.profiler.experimental.start(self._logdir)
        except tf.errors.AlreadyExistsError:  # there is one in a process
            raise ProfileError(
                f"the steps after {run.step} cannot be profiled, because a profiler runs in this process that somebody "
                "else has started; take that out (a TensorBoard callback, tf.profiler in the task), or this action"
            ) from None

    def _stop(self) -> None:
        if self._until is None:
            return
        self._until = None
        self._ended_seconds = self._clock()
        try:
            tf.profiler.experimental.stop()
        except tf.errors.UnavailableError:
            raise ProfileError("somebody else has stopped the profiler; there is no profile") from None
        _logger.info("a profile is in %s", files.join(self._logdir, "plugins", "profile"))


def _is_last(run: Run) -> bool:
    return run.state.end_step is not None and run.step >= run.state.end_step
