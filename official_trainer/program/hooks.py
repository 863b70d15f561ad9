"""Functions of a program as actions: what a `Loop` calls at its start, after steps, and at its end.

Owns: what a function is called with, and what it hands back. Does not own: adding them (`loop.py`), when they are due
(`triggers.py`), calling them and their errors (`actions/schedule.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer.actions.action import Action, Run
from official_trainer.triggers import Trigger

Hook = Callable[[Any, Any], Any]
"""Called with the loop, and its dataset or metrics; returns None, requests of an action, or an error."""


class Following(Action):
    """Tells a loop that a call has begun, before its hooks."""

    name = "loop"
    priority = -sys.maxsize

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def on_start(self, run: Run) -> None:
        self._loop.follow(run)


class _Hook(Action):
    """A function of a program as an action."""

    def __init__(self, loop: Any, name: str, priority: int, fn: Hook) -> None:
        self._loop, self._fn = loop, fn
        self.name, self.priority = name, priority

    def _call(self, argument: Any) -> Any:
        answer = self._fn(self._loop, argument)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def state(self) -> Mapping[str, Any]:
        return self._fn.state() if hasattr(self._fn, "state") else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if hasattr(self._fn, "restore"):
            self._fn.restore(state)


class StartHook(_Hook):
    """Is called with the dataset, when a call begins."""

    def on_start(self, run: Run) -> Any:
        return self._call(self._loop.dataset)


class StepHook(_Hook):
    """Is called with the metrics, after steps."""

    def __init__(self, *args: Any, when: Trigger) -> None:
        super().__init__(*args)
        self.when = when

    def on_step(self, run: Run) -> Any:
        return self._call(self._loop.metrics)


class EndHook(_Hook):
    """Is called with the metrics, when a call has succeeded."""

    def on_end(self, run: Run, failure: BaseException | None) -> Any:
        return None if failure is not None else self._call(self._loop.metrics)
