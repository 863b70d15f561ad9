"""When a loop saves its state: at its steps, when an action asks, at a stop, and while the main thread hangs.

Owns: that a step is saved once and no state that is not finite ever, and what a process that ends now leaves behind.
Does not own: writing checkpoints (`checkpoints/store.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from official_trainer.engine.loop_parts import LoopParts
from official_trainer.engine.recovery import NonFiniteError, Recovery
from official_trainer.errors import ExitCode, UserError
from official_trainer.shown import first_few
from official_trainer.stopping import NOTHING_LOST

_logger = logging.getLogger(__name__)

_AT_FIRST = "before the first step"


class Saving:
    """Saves the state of a loop."""

    def __init__(self, parts: LoopParts, recovery: Recovery) -> None:
        self._parts, self._recovery = parts, recovery
        self._store = parts.store
        self._saved_step: int | None = None
        self._is_requested = False
        self._no_state_while: str | None = _AT_FIRST  # None: there is a state to save

    def begin(self) -> None:
        """Training begins: from here on there is a state to save."""
        self._no_state_while = None

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """For a block that goes back and repeats steps. After an error in it, the state must not be saved."""
        self._no_state_while = "while steps were repeated to find one that failed"
        yield
        self._no_state_while = None
        self._saved_step = None  # later steps will be saved again

    def step_to_save(self) -> int:
        """Updates the step after a call that was interrupted; returns 0 while there is no state to save."""
        return self._parts.read_step() if self._no_state_while is None else 0

    def request(self) -> None:
        """An action asks for a checkpoint of this step."""
        self._is_requested = True

    def save_if_due(self) -> None:
        """Saves, if this step is due and not saved yet."""
        is_due = self._is_planned() or self._is_requested or self._parts.is_paused
        if is_due and self._saved_step != self._parts.state.step:
            self.save()
        self._is_requested = False

    def save(self) -> None:
        """Saves the state as it is, or begins to.

        Raises:
          NonFiniteError: a weight is not finite.
        """
        step = self._parts.state.step
        self._parts.enter("save")
        if names := self._parts.trainer.non_finite_weights():
            raise NonFiniteError(f"weights are not finite at step {step}: {first_few(names)}; {self.last_good()}")
        if self._is_planned():
            # Not at other steps: that would round what is computed from here on.
            self._parts.trainer.checkpoint_state.synchronize()
        self._begin(step)
        self.report()

    def report(self) -> None:
        """Reports checkpoints that were committed meanwhile; raises the error of one that could not be written."""
        for step in self._store.poll():
            self._parts.observer.on_save(step)

    def finish(self) -> None:
        """Waits until everything is saved, and reports it."""
        self._store.wait()
        self.report()

    def steps(self) -> Sequence[int]:
        """Waits for the save that runs, and returns the steps that are saved."""
        self._store.wait()
        return self._store.steps()

    def last_good(self) -> str:
        """Returns which checkpoint is the last good one, for an error message."""
        try:
            self._store.wait()
        except UserError as error:  # a worse error is being reported
            _logger.warning("%s", error)
        step = self._store.latest_step()
        return f"the last good checkpoint is {'none' if step is None else self._store.prefix(step)}"

    def save_while_hanging(self, is_unchanged: Callable[[], bool]) -> bool:
        """Saves the state while the main thread hangs between two steps; returns whether it is saved.

        Args:
          is_unchanged: called after the values were read; if False, the main thread has moved on and nothing is saved.
        """
        step = self.step_to_save()
        if step == 0 or self._store.latest_step() == step:
            return True
        if self._parts.trainer.non_finite_weights():
            return False
        self._begin(step, is_unchanged)
        self._store.wait()
        return self._store.latest_step() == step

    def describe_end(self) -> tuple[str, ExitCode]:
        """Returns what a process that has to end now leaves behind, and its exit code; from any thread."""
        step, saved = self.step_to_save(), self._store.latest_step()
        if step == 0:
            return f"{self._no_state_while or _AT_FIRST}; {NOTHING_LOST}", ExitCode.PREEMPTED
        if saved == step:
            return f"at step {step}, which is saved; the same command continues", ExitCode.PREEMPTED
        return f"at step {step}, which is not saved; {self.last_good()}", ExitCode.RETRY

    def _is_planned(self) -> bool:
        return self._parts.due.saves.is_due_at(self._parts.state.step) or self._parts.is_done

    def _begin(self, step: int, only_if: Callable[[], bool] = lambda: True) -> None:
        self._saved_step = step
        self._parts.trainer.checkpoint_state.before_save()
        self._parts.observer.before_save(step)
        self._store.save(step, {**self._recovery.state(), **self._parts.actions.state()}, only_if=only_if)
