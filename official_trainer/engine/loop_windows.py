"""The windows of a run: how many steps each has, and what follows where the data ends.

Owns: the length of a window, up to where something is due, and short enough to react in time. Does not own: how a
window is traced (`windows.py`), when something is due, and which step is the last (`loop_parts.py`).
"""

from __future__ import annotations

import contextlib
import logging
import time

from official_trainer.engine.loop_parts import LoopParts
from official_trainer.engine.recovery import Recovery
from official_trainer.lazy import collecting_rarely

_logger = logging.getLogger(__name__)

MAX_WINDOW_SECONDS = 1.0
"""Windows are kept shorter than this, or one step long, so that signals are seen and progress is shown in time."""

WINDOW_GROWTH = 10
"""A window is at most this many times as long as the last one: the first, which traces, says little about speed."""


class LoopWindows:
    """Runs the windows of a loop, one after the other."""

    def __init__(self, parts: LoopParts, recovery: Recovery) -> None:
        self._parts, self._recovery = parts, recovery
        self._max_steps = 1

    def run(self) -> None:
        """Runs a window up to the next step at which something is due, at most."""
        state = self._parts.state
        due = self._parts.due.next_step(state.step)
        if state.end_step is not None:
            due = min(due, state.end_step)
        if self._parts.until_step is not None:
            due = min(due, self._parts.until_step)
        acts = self._parts.actions.next_step(state.step, due - 1)
        self._run(due if acts is None else acts)

    def run_to(self, step: int) -> None:
        """Runs windows until `step`, to repeat what was run before: the mean loss starts again where it did."""
        trainer, due = self._parts.trainer, self._parts.due
        self._parts.read_step()
        while (now := self._parts.state.step) < step:
            if due.is_summary_due(now):
                trainer.train_loop_end()
                trainer.train_loop_begin()
            self._run(min(step, due.summaries.following(now)))
            self._parts.stop.check()

    def _run(self, due_step: int) -> None:
        state, trainer = self._parts.state, self._parts.trainer
        self._recovery.leave_out_if_due(state.step)
        until = min(due_step, self._recovery.next_step(state.step))
        num_steps = min(int(until) - state.step, self._parts.config.steps_per_loop, self._max_steps)
        published = self._parts.actions.next_published_step(state.step, state.step + num_steps)
        options = {}
        if published is not None:
            num_steps = max(1, published - 1 - state.step)
            options = {"publish": True} if published == state.step + 1 else {}
        is_first = state.step == state.start_step  # imports what `build_inputs` needs, and is traced
        start = time.monotonic()
        with collecting_rarely() if is_first else contextlib.nullcontext():
            ran = trainer.run_steps(num_steps, **options)
        seconds = time.monotonic() - start
        state.step += ran
        if ran:
            state.step_seconds.append(seconds / ran)
            state.step_durations.add(seconds / ran, steps=ran)
            most = int(MAX_WINDOW_SECONDS / max(seconds / ran, 1e-9))
            self._max_steps = max(1, min(ran * WINDOW_GROWTH, most))
        if ran < num_steps:
            self._end_epoch()
        state.epoch = trainer.train_iterator.epoch(state.step)
        self._parts.observer.on_window(state, ran, seconds, trainer.mean_loss)

    def _end_epoch(self) -> None:
        """The data ended: begins the next epoch, or ends the run here."""
        state, iterator = self._parts.state, self._parts.trainer.train_iterator
        if not self._parts.due.counts_epochs:
            _logger.info("the training data ended at step %d, and so does training (on_data_end: stop)", state.step)
            state.end_step = state.step
            return
        epoch_steps = iterator.position.start_step(state.step)
        iterator.begin_next_epoch()
        state.end_step = self._parts.due.end_after(int(iterator.position.epoch.numpy()), state.step, epoch_steps)
