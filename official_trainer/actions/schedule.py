"""Which actions are called now: their order, their triggers, their errors, and the state that a checkpoint holds.

Owns: asking triggers, calling hooks by priority, what an error in one means, `state` and `restore` of all of them.
Does not own: what actions do (`action.py`, `actions/`), doing what they ask for (`engine/loop.py`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import Action, CallAt, Callback, Request, Run, Stop
from official_trainer.config import ActionConfig, flow
from official_trainer.errors import ExitCode, UserError, describe_error
from official_trainer.stopping import PreemptedError
from official_trainer.triggers import AfterEval, Moment, Span

_logger = logging.getLogger(__name__)

_SHOWN_FRAMES = 4

_HOOKS = ("on_start", "on_step", "on_eval", "on_trace", "on_end")


class ActionError(UserError, RuntimeError):
    """An action failed, and its `on_error` is `fail`.

    Attributes:
      summary: which action, where, and what happened, in a line.
      place: the lines of code it came through; nothing for an error that is meant for users.
    """

    def __init__(self, action: Action, hook: str, step: int, error: BaseException) -> None:
        self.summary = f"action '{action.name}' failed in {hook} at step {step}: {describe_error(error)}"
        self.place = "" if isinstance(error, UserError) else _place_of(error)
        self.exit_code = error.exit_code if isinstance(error, UserError) else ExitCode.FAILED
        super().__init__(f"{self.summary}{self.place}")


def as_action(thing: Any) -> Action:
    """Returns what was given as an action: an `Action`, the config of one, or a callable for after evaluations.

    Raises:
      TypeError: it is none of these.
    """
    if isinstance(thing, ActionConfig):
        return configured(thing)
    if isinstance(thing, Action):
        return thing
    if callable(thing):
        return Callback(thing)
    raise TypeError(f"{thing!r} is no action: it is no Action, no ActionConfig, and cannot be called")


def _number(callbacks: Sequence[Callback]) -> None:
    """Gives callables that have one name different ones: `ConditionalAction`, `ConditionalAction-2`."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        number = seen[callback.name] = seen.get(callback.name, 0) + 1
        callback.name += f"-{number}" if number > 1 else ""


def configured(config: ActionConfig) -> Action:
    """Returns the action of a section of `trainer.actions`."""
    action: Action = config.build()
    action.name = config.name or config.type
    action.priority, action.on_error = config.priority, config.on_error
    if config.when is not None:
        action.when = config.when.trigger()
    return action


class _Entry:
    """One action with what is remembered of it in this process."""

    def __init__(self, thing: Any) -> None:
        self.action = as_action(thing)
        self.action.name = self.action.name or type(self.action).__name__
        self.settings = flow(thing) if isinstance(thing, ActionConfig) else ""
        self.hooks = {hook for hook in _HOOKS if _has_own(self.action, hook)}
        self.is_disabled = False
        self.called_at: int | None = None  # the step of the last on_step
        self.extra_steps: set[int] = set()  # asked for with CallAt
        self.began_seconds = self.ended_seconds = 0.0


class Schedule:
    """All actions of a run, in the order in which they are called."""

    def __init__(self, actions: Sequence[Any] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes actions, configs of actions, and plain callables.

        Raises:
          ValueError: two have one name, which checkpoints could not tell apart.
        """
        self._entries = sorted((_Entry(thing) for thing in actions), key=lambda entry: entry.action.priority)
        _number([action for action in self.actions if isinstance(action, Callback)])
        names = [action.name for action in self.actions]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two actions are named {twice!r}; give one of them another name")
        self._clock = clock
        self._asked_step = 0
        self._seen_evaluation: int | None = None
        self._stopped: dict[str, Any] | None = None
        self._has_begun = self._has_clock = False
        self._run: Run | None = None
        self.spent_seconds = 0.0
        """How long all calls took so far."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions, in their order."""
        return tuple(entry.action for entry in self._entries)

    def monitored(self) -> dict[str, str]:
        """Returns the metrics of an evaluation that actions need, each with the name of the action."""
        return {metric: action.name for action in reversed(self.actions) for metric in action.monitored()}

    def only_after_evaluations(self) -> list[str]:
        """Returns the names of actions that nothing but an evaluation calls, but for the start and the end."""
        acting = [entry for entry in self._entries if entry.hooks & {"on_step", "on_eval"}]
        waiting = [e.action for e in acting if "on_step" not in e.hooks or isinstance(e.action.when, AfterEval)]
        return [action.name for action in waiting]

    def needed_checkpoints(self, planned: Sequence[int]) -> set[int]:
        """Returns those of the planned checkpoints that an action still needs; any thread may ask."""
        return {step for action in self.actions for step in action.needed_checkpoints(planned)}

    # Events.

    def start(self, run: Run) -> list[Request]:
        """Begins: the state of `run` is restored."""
        self._run, self._has_begun = run, True
        self._asked_step = run.step
        self._set_clocks()
        self._warn_of_idle()
        requests = self._stop_again()
        for entry in self._entries:
            requests += self._call(entry, "on_start")
        if run.step > 0:
            # A run that is asked to stop saves at once, also where actions are due and none, or not all, were called.
            moment = self._moment(summarized=run.summary_step == run.step, ended=run.step == run.state.end_step)
            for entry in self._entries:
                requests += self._call_step(entry, moment)
        return requests

    def _warn_of_idle(self) -> None:
        stepping = [e.action for e in self._entries if "on_step" in e.hooks and e.action.when.is_foreseeable]
        if not stepping or (end := self._span().end_step) is None:
            return
        if idle := [action.name for action in stepping if action.when.next_step(0, end, self._span()) is None]:
            names = ", ".join(idle)
            _logger.warning("these actions are due at no step up to %s, where training ends: %s", end, names)

    def _stop_again(self) -> list[Request]:
        """Returns the stop that ended this run, while the action that asked for it is there as it was."""
        stopped, self._stopped = self._stopped, None
        if stopped is None or (stopped["by"], stopped["settings"]) not in [
            (entry.action.name, entry.settings) for entry in self._entries
        ]:
            return []
        self._stopped = stopped
        reason = f"{stopped['reason']}; to go on after all, change or remove the action '{stopped['by']}'"
        return [Stop(reason=reason, weights=None if stopped["weights"] is None else tuple(stopped["weights"]))]

    def step(self, *, summarized: bool, ended: bool) -> list[Request]:
        """Calls what is due after a window."""
        moment = self._moment(summarized=summarized, ended=ended)
        if not self._has_clock:
            self._start_clock()
        requests = [request for entry in self._entries for request in self._call_step(entry, moment)]
        self._asked_step = moment.step
        return requests

    def last_step(self) -> list[Request]:
        """Calls what is due at the last step, which this turned out to be after all was asked."""
        return self.step(summarized=True, ended=True)

    def evaluation(self, logs: Mapping[str, float], *, ended: bool) -> list[Request]:
        """Calls what is due after an evaluation of this step."""
        moment = self._moment(evaluated=True, ended=ended)
        requests: list[Request] = []
        for entry in self._entries:
            if "on_eval" not in entry.hooks:
                requests += self._call_step(entry, moment)
            elif self._is_due(entry, moment):
                requests += self._call(entry, "on_eval", logs)
        self._seen_evaluation = moment.step
        return requests

    def has_seen_evaluation(self, step: int) -> bool:
        """Whether the state of the actions includes the evaluation of `step`."""
        return self._seen_evaluation == step

    def traces(self, traces: Sequence[Any]) -> list[Request]:
        """Calls what wants to know of functions that were traced."""
        return [r for trace in traces for entry in self._entries for r in self._call(entry, "on_trace", trace)]

    def end(self, failure: BaseException | None) -> None:
        """Calls every `on_end`, also when one fails; the first error is raised at the end, unless a failure is told."""
        errors: list[ActionError] = []
        for entry in self._entries if self._has_begun else ():
            try:
                self._call(entry, "on_end", failure)
            except ActionError as error:
                errors.append(error)
        self._has_begun = False
        for other in errors if failure is not None else errors[1:]:
            _logger.error("%s", other)
        if errors and failure is None:
            raise errors[0]

    # Steps that windows have to end at.

    def next_step(self, after: int, until: int) -> int | None:
        """Returns the first step in `(after, until]` at which a window has to end for an action."""
        return self._first(self._entries, after, until)

    def next_published_step(self, after: int, until: int) -> int | None:
        """Returns the first step in `(after, until]` of which somebody wants what is published from inside."""
        return self._first([entry for entry in self._entries if entry.action.publishes], after, until)

    def _first(self, entries: Sequence[_Entry], after: int, until: int) -> int | None:
        span, found = self._span(), []
        for entry in entries:
            if "on_step" in entry.hooks and not entry.is_disabled:
                found.append(entry.action.when.next_step(after, until, span))
                found += [step for step in entry.extra_steps if after < step <= until]
        return min((step for step in found if step is not None), default=None)

    # State.

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest has to hold; empty without actions that remember anything.

        Raises:
          ActionError: an action has no state that JSON takes, and its `on_error` is `fail`.
        """
        states: dict[str, Any] = {}
        for entry in self._entries:
            try:
                if found := json.loads(json.dumps(dict(entry.action.state()))):
                    states[entry.action.name] = found
            except Exception as error:
                self._failed(entry, "state()", error)
        called = {entry.action.name: entry.called_at for entry in self._entries if entry.called_at is not None}
        found = {"actions": states, "called": called, "evaluated": self._seen_evaluation, "stopped": self._stopped}
        return found if any(found.values()) else {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Gives every action its state from the manifest of the checkpoint that was restored, `{}` if there is none."""
        states = extra.get("actions", {})
        self._seen_evaluation, self._stopped = extra.get("evaluated"), extra.get("stopped")
        for entry in self._entries:
            try:
                entry.action.restore(states.get(entry.action.name, {}))
            except Exception as error:
                self._failed(entry, "restore()", error)
            entry.called_at = extra.get("called", {}).get(entry.action.name)
            entry.extra_steps.clear()
        if unknown := sorted(states.keys() - {entry.action.name for entry in self._entries}):
            _logger.warning(
                "the checkpoint has the state of actions that are not there any more: %s", ", ".join(unknown)
            )
        if self._run is not None:
            self._asked_step = self._run.step

    # Calls.

    def _is_due(self, entry: _Entry, moment: Moment) -> bool:
        if any(moment.after < step <= moment.step for step in entry.extra_steps):
            return True
        trigger = entry.action.when
        if not trigger.is_foreseeable:  # else the time does not matter, and a window may last a millisecond only
            ended, began = self._clock() - entry.ended_seconds, self._clock() - entry.began_seconds
            moment = dataclasses.replace(moment, since_end_seconds=ended, since_start_seconds=began)
        return trigger.is_due(moment)

    def _call_step(self, entry: _Entry, moment: Moment) -> list[Request]:
        """Calls `on_step` if it is due and was not called at this step, for another reason or before a restart."""
        if "on_step" not in entry.hooks or entry.called_at == moment.step or not self._is_due(entry, moment):
            return []
        before, entry.called_at = entry.called_at, self._step()
        entry.extra_steps = {step for step in entry.extra_steps if step > self._step()}
        try:
            return self._call(entry, "on_step")
        except BaseException:
            entry.called_at = before  # a stop comes up here too, and then this has to be done after the restart
            raise

    def _call(self, entry: _Entry, hook: str, *arguments: Any) -> list[Request]:
        """Calls a hook if the action has it; returns what it asks for."""
        if hook not in entry.hooks or entry.is_disabled:
            return []
        entry.began_seconds = self._clock()
        try:
            requests = _requests(getattr(entry.action, hook)(self._run, *arguments))
        except PreemptedError:
            raise
        except Exception as error:
            self._failed(entry, hook, error)
            return []
        finally:
            entry.ended_seconds = self._clock()
            self.spent_seconds += entry.ended_seconds - entry.began_seconds
        entry.extra_steps |= {request.step for request in requests if isinstance(request, CallAt)}
        for stop in [request for request in requests if isinstance(request, Stop)][:1]:
            self._stopped = self._stopped or {"by": entry.action.name, "settings": entry.settings, **vars(stop)}
        return [request for request in requests if not isinstance(request, CallAt)]

    def _failed(self, entry: _Entry, hook: str, error: Exception) -> None:
        failure = error if isinstance(error, ActionError) else ActionError(entry.action, hook, self._step(), error)
        if entry.action.on_error == "fail":
            raise failure from error
        entry.is_disabled = entry.action.on_error == "disable"
        said = "; it is not called again" if entry.is_disabled else ""
        _logger.warning("%s%s (on_error: %s)%s", failure.summary, said, entry.action.on_error, failure.place)

    def _start_clock(self) -> None:
        self._has_clock = True
        self._set_clocks()

    def _set_clocks(self) -> None:
        for entry in self._entries:
            entry.began_seconds = entry.ended_seconds = self._clock()

    def _step(self) -> int:
        return 0 if self._run is None else self._run.step

    def _span(self) -> Span:
        assert self._run is not None
        return Span(start_step=self._run.state.start_step, end_step=self._run.state.end_step)

    def _moment(self, **happened: bool) -> Moment:
        step = self._step()
        return Moment(after=min(self._asked_step, step - 1), step=step, span=self._span(), **happened)


def _place_of(error: BaseException) -> str:
    """Returns the innermost lines of code that an error came through, other than those of this file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return "".join(f"\n  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames[-_SHOWN_FRAMES:])


def _requests(answer: Any) -> list[Request]:
    """Returns what a hook asks for as a list."""
    answers = [] if answer is None else list(answer) if isinstance(answer, list | tuple) else [answer]
    for request in answers:
        if not isinstance(request, Request):
            raise TypeError(
                f"it returned {request!r}; a hook returns None, or Stop, Save, Rollback, CallAt of action.py"
            )
    return answers


def _has_own(action: Action, hook: str) -> bool:
    """Whether an action has a hook that does something."""
    return getattr(type(action), hook, None) is not getattr(Action, hook) and hasattr(action, hook)
