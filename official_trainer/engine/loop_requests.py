"""What actions ask the loop for, and that the loop does it.

Owns: the order in which requests are met. Does not own: which actions are called (`actions/schedule.py`), saving
(`loop_saving.py`), going back (`recovery.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import Request, Rollback, Run, Save, Stop
from official_trainer.engine.loop_parts import LoopParts, LoopProgress
from official_trainer.engine.loop_saving import Saving
from official_trainer.engine.recovery import DivergedError


class ActionRequests:
    """Calls the actions of a run, and does what they ask for.

    Attributes:
      weights: directory and step of the checkpoint whose weights are exported; None for the last ones.
    """

    def __init__(
        self, parts: LoopParts, progress: LoopProgress, run: Run, *, end_early: Callable[[str], None], saving: Saving
    ) -> None:
        """Takes the parts.

        Args:
          parts: of the loop.
          progress: where it is.
          run: what actions see.
          end_early: ends training at this step, for a reason.
          saving: takes requests for checkpoints.
        """
        self._actions, self._observer = parts.actions, parts.observer
        self._progress, self._run, self._end_early, self._saving = progress, run, end_early, saving
        self._is_stopped = False
        self.weights: tuple[str, int] | None = None

    def on_start(self) -> None:
        """The state is restored."""
        self._meet(self._actions.start(self._run))

    def on_step(self, *, summarized: bool) -> None:
        """A window has ended."""
        self._meet(self._actions.step(summarized=summarized, ended=self._progress.is_done))

    def on_last_step(self) -> None:
        """This step has become the last one, after its actions were called."""
        self._meet(self._actions.step(summarized=True, ended=True))

    def on_evaluation(self, logs: Mapping[str, float], outputs: Mapping[str, Any]) -> None:
        """This step was evaluated."""
        self._run.outputs = outputs
        self._meet(self._actions.evaluation(logs, ended=self._progress.is_done))

    def report_new_traces(self) -> None:
        """Tells actions which functions were traced since the last call."""
        self._meet(self._actions.traces(self._observer.new_traces()))

    def _meet(self, requests: Sequence[Request]) -> None:
        """Does what actions ask for; a rollback first, because other requests are about a state that it discards."""
        for request in requests:
            if isinstance(request, Rollback):
                raise DivergedError(f"{request.reason}; {self._saving.last_good()}")
        if any(isinstance(request, Save) for request in requests):
            self._saving.request()
        for request in requests:
            if isinstance(request, Stop) and not self._is_stopped:
                self._is_stopped, self.weights = True, request.weights
                self._end_early(request.reason)
