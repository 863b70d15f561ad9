"""Profiles of a few steps, at chosen steps or on demand by a file in the run directory.

Owns: when TensorFlow's profiler starts and stops, and that it never stays on. Does not own: what is in a profile, or
showing it (TensorBoard's profile plugin).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from official_trainer import files
from official_trainer.actions.action import Action, CallAt, Run
from official_trainer.config import ActionConfig, Positive, When
from official_trainer.config.folders import folder_problem
from official_trainer.config.when import Moment
from official_trainer.errors import UserError
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

FILE = "PROFILE"
"""The file in the run directory that asks for a profile."""

LOOK_SECONDS = 2.0
"""Shortest time between two checks for that file."""


class ProfileError(UserError, RuntimeError):
    """A profile cannot be taken."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig(ActionConfig):
    """Profiles a few steps; TensorBoard shows where their time goes, with its plugin `tensorboard-plugin-profile`.

    The file `PROFILE` in the run directory starts one too: `touch MODEL_DIR/PROFILE`. It is removed when it does, a few
    seconds later.

    Attributes:
      when: the steps after which a profile begins.
      steps: how many steps it covers.
      directory: folder in the run directory; profiles lie in `plugins/profile` below it, where TensorBoard finds them.
    """

    when: When | None = When(at_steps=(100,))
    on_error: Literal["fail", "warn", "disable"] = "warn"
    steps: Positive = 5
    directory: str = "train"

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := folder_problem(self.directory, default="train"):
            yield "directory", problem

    def build(self) -> Profile:
        return Profile(self)


class Profile(Action):
    """Starts TensorFlow's profiler, and stops it exactly `steps` later, at the end of the run, or when it fails."""

    def __init__(self, config: ProfileConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the section, and what tells the time in seconds."""
        self._config, self._clock = config, clock
        self._planned = Action.when
        self._running: tuple[str, int] | None = None  # folder of the profile that runs, and the step at which it stops
        self._checked_seconds = -float("inf")
        self._began_seconds = self._ended_seconds = clock()

    @property
    def when(self) -> When:
        """The steps of planned profiles; and every few seconds, at ends of windows, where the file is to be checked."""
        return When(any=(self._planned, When(every_seconds=LOOK_SECONDS)))

    @when.setter
    def when(self, planned: When) -> None:
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
        if self._running is not None and run.step >= self._running[1]:
            self._stop()
        is_last = run.state.end_step is not None and run.step >= run.state.end_step
        if self._running is not None or is_last:
            return None
        now = self._clock()
        moment = Moment(  # whether a planned one is due: this is also called for the file, and to end a profile
            after=run.step - 1,  # a window ends at each step that can be foreseen
            step=run.step,
            span=run.state.span,
            evaluated=evaluated,
            summarized=run.is_summarized,
            since_end_seconds=now - self._ended_seconds,
            since_start_seconds=now - self._began_seconds,
        )
        if not (self._planned.is_due(moment) or self._is_demanded(run, now)):
            return None
        self._began_seconds = now
        folder = files.join(run.model_dir, self._config.directory)
        try:
            tf.profiler.experimental.start(folder)
        except tf.errors.AlreadyExistsError:  # a process has one profiler
            raise ProfileError(
                f"the steps after {run.step} cannot be profiled, because other code has started a profiler in this "
                "process; remove that (a TensorBoard callback, tf.profiler in the task), or this action"
            ) from None
        until = run.step + self._config.steps
        self._running = folder, until
        return CallAt(step=until)

    def _is_demanded(self, run: Run, now: float) -> bool:
        if now - self._checked_seconds < LOOK_SECONDS:
            return False
        self._checked_seconds = now
        path = files.join(run.model_dir, FILE)
        if not files.exists(path):
            return False
        files.remove(path)
        return True

    def _stop(self) -> None:
        if self._running is None:
            return
        folder, _ = self._running
        self._running = None
        self._ended_seconds = self._clock()
        tf.profiler.experimental.stop()
        _logger.info("a profile is in %s", files.join(folder, "plugins", "profile"))
