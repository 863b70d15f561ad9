"""Calls the actions of a run when they are due: their order, steps and errors, and their state in checkpoints.

Owns: asking what is due, calling hooks by priority, handling their errors, `state` and `restore` of all actions; what
an action hands back (`CallAt`, `Assign`, `Result`), which the next one finds done. Does not own: the actions
(`action.py`, `actions/`), executing their other requests (`engine/loop.py`), assigning (`engine/checkpoint_state.py`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import operator
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.actions.action import Action, Assign, CallAt, Callback, Request, Result, Run, Stop
from official_trainer.config import ActionConfig, When, fields, flow
from official_trainer.config.decode import check_section
from official_trainer.config.when import Moment, Span
from official_trainer.errors import ExitCode, UserError, describe_error
from official_trainer.shown import shorten
from official_trainer.stopping import PreemptedError
from official_trainer.tasks import contract
from official_trainer.user_code import during, is_users

_logger = logging.getLogger(__name__)

_SHOWN_FRAMES = 4

_HOOKS = {
    "on_start": ("run",),
    "on_step": ("run",),
    "on_eval": ("run, logs",),
    "on_trace": ("run, trace",),
    "on_stall": ("run, reason",),
    "on_end": ("run, failure",),
}
_CALLS = {**_HOOKS, "monitored": ("",), "needed_checkpoints": ("planned",), "state": ("",), "restore": ("state",)}
_MAY_ASSIGN = ("on_step", "on_eval")
"""The hooks that a run which is killed and continued calls as an unbroken one does."""


class ActionError(UserError, RuntimeError):
    """An action failed, and its `on_error` is `fail`.

    Attributes:
      summary: the action, the hook, the step and the error, in a line.
      place: the innermost lines of code of the traceback, the user's if there are any; empty for an error for users.
      bug: the error in the action's code; None for an error that is meant for users.
    """

    def __init__(self, action: Action, hook: str, step: int, error: BaseException) -> None:
        error = files.as_storage_error(error) or error
        self.summary = f"action '{action.name}' failed in {hook} at step {step}: {describe_error(error)}"
        self.bug = None if isinstance(error, UserError) else error
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        frames = [frame for frame in frames if is_users(frame.filename)] or frames
        lines = [f"\n  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames[-_SHOWN_FRAMES:]]
        self.place = "" if self.bug is None else "".join(lines)
        self.exit_code = error.exit_code if isinstance(error, UserError) else ExitCode.FAILED
        super().__init__(f"{self.summary}{self.place}")


def as_action(source: Any) -> Action:
    """Returns the action of an `Action`, the config of one, or a callable for after evaluations.

    Raises:
      TypeError: it is none of these, or cannot be called with what it would get.
    """
    if isinstance(source, ActionConfig):
        contract.check_calls(source, {"build": ("",)})
        action: Action = source.build()
        action.take_section(source)
        return action
    if isinstance(source, Action):
        return source
    if isinstance(source, type) and issubclass(source, Action | ActionConfig):
        raise TypeError(f"the class {source.__name__} is not an action; write {source.__name__}(…), an object of it")
    if callable(source):
        if wrong := contract.why_not(source, "logs"):
            name = getattr(source, "__name__", repr(source))
            raise TypeError(f"an action that is a function is called as {name}(logs), which fails: {wrong}")
        return Callback(source)
    raise TypeError(f"{source!r} is not an action: expected an Action, an ActionConfig or a callable")


class _Entry:
    """One action and its calls in this process.

    Attributes:
      action: the action.
      settings: its section as text, empty for one that is not from the config.
      hooks: the names of the hooks that it defines.
      called_at: the step of the last call of `on_step`.
      extra_steps: steps that it has asked for with `CallAt`.
      spent_seconds: how long all of its calls took.
    """

    def __init__(self, source: Any, clock: Callable[[], float]) -> None:
        self.action = as_action(source)
        action, cls = self.action, type(self.action)
        contract.check_calls(action, _CALLS, on_error=action.on_error)
        action.name = action.name or cls.__name__
        if not isinstance(action.when, When):
            raise TypeError(
                f"action '{action.name}': `when` is {shorten(repr(action.when))}; it must be a When of "
                "official_trainer.config, such as When(every=100)"
            )
        if type(action.when) is When:  # one that is derived has its rules
            _check_when(action.when, f"{action.name}.when")
        self.settings = flow(source) if isinstance(source, ActionConfig) else ""
        # Hooks that do something.
        self.hooks = {h for h in _HOOKS if getattr(cls, h, None) is not getattr(Action, h) and hasattr(action, h)}
        self.called_at: int | None = None
        self.extra_steps: set[int] = set()
        self.spent_seconds = 0.0
        self._clock = clock
        self._is_disabled = False
        self.start_clock()

    def start_clock(self) -> None:
        """Counts the seconds of `every_seconds` from now."""
        self._began_seconds = self._ended_seconds = self._clock()

    def next_step(self, after: int, until: int, span: Span) -> int | None:
        """Returns the first step in `(after, until]` at which `on_step` is due."""
        if "on_step" not in self.hooks or self._is_disabled:
            return None
        planned = self.action.when.next_step(after, until, span)
        extra = (step for step in self.extra_steps if after < step <= until)
        return min([*extra, *([] if planned is None else [planned])], default=None)

    def is_due(self, moment: Moment) -> bool:
        """Whether the action is due at `moment`."""
        if any(moment.after < step <= moment.step for step in self.extra_steps):
            return True
        when = self.action.when
        if not when.is_foreseeable:  # else the time does not matter, and a window may last a millisecond only
            ended, began = self._clock() - self._ended_seconds, self._clock() - self._began_seconds
            moment = dataclasses.replace(moment, since_end_seconds=ended, since_start_seconds=began)
        return when.is_due(moment)

    def call_step(self, run: Run, moment: Moment) -> list[Request]:
        """Calls `on_step` if it is due and was not called at this step, for another reason or before a restart."""
        if "on_step" not in self.hooks or self.called_at == moment.step or not self.is_due(moment):
            return []
        self.extra_steps = {step for step in self.extra_steps if step > run.step}
        requests = self.call("on_step", run)  # raises a stop too, and then the call has to be made after the restart
        self.called_at = moment.step
        return requests

    def call_eval(self, run: Run, moment: Moment, logs: Mapping[str, float]) -> list[Request]:
        """Calls `on_eval` if it is due; `on_step` for an action without it."""
        if "on_eval" not in self.hooks:
            return self.call_step(run, moment)
        return self.call("on_eval", run, logs) if self.is_due(moment) else []

    def call(self, hook: str, run: Run, *arguments: Any) -> list[Request]:
        """Calls a hook if the action has it, does what concerns this action alone, and returns its other requests."""
        if hook not in self.hooks or self._is_disabled:
            return []
        self._began_seconds = self._clock()
        try:
            with during(
                f"calling {hook} of the action '{self.action.name}' at step {run.step}", task=self.action, method=hook
            ):
                requests = _requests(getattr(self.action, hook)(run, *arguments))
            return [request for request in requests if not self._is_met(hook, run, request)]
        except PreemptedError:
            raise
        except Exception as error:
            self.fail(hook, run.step, error)
            return []
        finally:
            self._ended_seconds = self._clock()
            self.spent_seconds += self._ended_seconds - self._began_seconds

    def _is_met(self, hook: str, run: Run, request: Request) -> bool:
        """Does what is asked for if it concerns this action alone; returns whether it does."""
        match request:
            case CallAt(step=step):
                self.extra_steps.add(step)
            case Assign(values=values):
                if hook not in _MAY_ASSIGN:
                    raise ValueError(
                        f"it returned Assign, which is for {' and '.join(_MAY_ASSIGN)}: {hook} is called again after a "
                        "restart, and the run would end with other weights than an unbroken one. First weights are for "
                        "Task.initialize"
                    )
                run.trainer.checkpoint_state.assign(values)
            case Result(value=value):
                run.state.results[self.action.name] = json.loads(json.dumps(value))
            case _:
                return False
        return True

    def fail(self, hook: str, step: int, error: Exception) -> None:
        """Handles an error of a hook as `on_error` configures.

        Raises:
          ActionError: `on_error` is `fail`.
        """
        failure = error if isinstance(error, ActionError) else ActionError(self.action, hook, step, error)
        if self.action.on_error == "fail":
            raise failure from error
        self._is_disabled = self.action.on_error == "disable"
        then = "; it is not called again" if self._is_disabled else ""
        _logger.warning("%s%s (on_error: %s)%s", failure.summary, then, self.action.on_error, failure.place)


class Schedule:
    """All actions of a run, in the order in which they are called."""

    def __init__(self, actions: Sequence[Any] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes actions, configs of actions, and plain callables.

        Raises:
          ValueError: two have the same name, so checkpoints could not distinguish their states.
        """
        self._entries = sorted((_Entry(source, clock) for source in actions), key=lambda entry: entry.action.priority)
        seen: dict[str, int] = {}  # callables with one name: `ConditionalAction`, `ConditionalAction-2`
        for action in self.actions:
            if isinstance(action, Callback):
                number = seen[action.name] = seen.get(action.name, 0) + 1
                action.name += f"-{number}" if number > 1 else ""
        names = [action.name for action in self.actions]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two actions are named {twice!r}; give one of them another name")
        self._checked_step = 0
        self._evaluated_step: int | None = None
        self._stopped: dict[str, Any] | None = None
        self._has_begun = self._has_stepped = False
        self._run: Run | None = None
        self._results: dict[str, Any] = {}

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions, in their order."""
        return tuple(entry.action for entry in self._entries)

    @property
    def spent_seconds(self) -> float:
        """How long all calls took so far."""
        return sum(entry.spent_seconds for entry in self._entries)

    def monitored(self) -> dict[str, str]:
        """Returns the metrics of an evaluation that actions need, each with the name of the action."""
        return {metric: action.name for action in reversed(self.actions) for metric in action.monitored()}

    def only_after_evaluations(self) -> list[str]:
        """Returns the names of actions that are only called after evaluations, apart from the start and the end."""
        acting = [entry for entry in self._entries if entry.hooks & {"on_step", "on_eval"}]
        waiting = [e.action for e in acting if "on_step" not in e.hooks or e.action.when == When(after_eval=True)]
        return [action.name for action in waiting]

    def needed_checkpoints(self, planned: Sequence[int]) -> set[int]:
        """Returns those of the planned checkpoints that an action still needs; any thread may call it."""
        return {step for action in self.actions for step in action.needed_checkpoints(planned)}

    # Events.

    def start(self, run: Run) -> list[Request]:
        """Begins: the state of `run` is restored."""
        self._run, self._has_begun = run, True
        run.state.results = self._results
        self._checked_step = run.step
        for entry in self._entries:
            entry.start_clock()
        end, span = run.state.end_step, run.state.span
        stepping = [e.action for e in self._entries if "on_step" in e.hooks and e.action.when.is_foreseeable]
        idle = [action.name for action in stepping if end is not None and action.when.next_step(0, end, span) is None]
        if idle:
            names = ", ".join(idle)
            _logger.warning("these actions are due at no step up to %s, where training ends: %s", end, names)
        requests = self._repeated_stop() + self._requests(lambda entry: entry.call("on_start", run))
        if run.step > 0:
            # A run that is stopped saves at once, also where actions are due and none, or not all, were called.
            moment = self._moment(summarized=run.is_summarized, ended=run.step == run.state.end_step)
            requests += self._requests(lambda entry: entry.call_step(run, moment))
        return requests

    def step(self, *, summarized: bool, ended: bool) -> list[Request]:
        """Calls the actions that are due after a window."""
        moment = self._moment(summarized=summarized, ended=ended)
        if not self._has_stepped:
            self._has_stepped = True
            for entry in self._entries:
                entry.start_clock()
        requests = self._requests(lambda entry: entry.call_step(self._begun, moment))
        self._checked_step = moment.step
        return requests

    def evaluation(self, logs: Mapping[str, float], *, ended: bool) -> list[Request]:
        """Calls the actions that are due after an evaluation of this step."""
        moment, run = self._moment(evaluated=True, ended=ended), self._begun
        requests = self._requests(lambda entry: entry.call_eval(run, moment, logs))
        self._evaluated_step = moment.step
        return requests

    def has_seen_evaluation(self, step: int) -> bool:
        """Whether the state of the actions includes the evaluation of `step`."""
        return self._evaluated_step == step

    def traces(self, traces: Sequence[Any]) -> list[Request]:
        """Calls `on_trace` for each function that was traced."""
        run = self._begun
        requests: list[Request] = []
        for trace in traces:
            requests += self._requests(operator.methodcaller("call", "on_trace", run, trace))
        return requests

    def stall(self, reason: object) -> None:
        """Calls every `on_stall`, from the thread that ends the process; errors are logged."""
        for entry in self._entries if self._has_begun else ():
            try:
                entry.call("on_stall", self._begun, str(reason))
            except ActionError as error:  # nothing can be done about it any more
                _logger.error("%s", error)

    def end(self, failure: BaseException | None) -> None:
        """Calls every `on_end`, also when one fails; then raises the first error, unless the run has failed."""
        errors: list[ActionError] = []
        for entry in self._entries if self._has_begun else ():
            try:
                entry.call("on_end", self._begun, failure)
            except ActionError as error:
                errors.append(error)
        self._has_begun = False
        for other in errors if failure is not None else errors[1:]:
            _logger.error("%s", other)
        if errors and failure is None:
            raise errors[0]

    # Steps at which windows have to end.

    def next_step(self, after: int, until: int) -> int | None:
        """Returns the first step in `(after, until]` at which a window has to end for an action."""
        return _first_step(self._entries, after, until, self._begun.state.span)

    def next_published_step(self, after: int, until: int) -> int | None:
        """Returns the first step in `(after, until]` whose published values an action needs."""
        publishing = [entry for entry in self._entries if entry.action.publishes]
        return _first_step(publishing, after, until, self._begun.state.span)

    # State.

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint's manifest; empty if no action has any.

        Raises:
          ActionError: the state of an action cannot be written as JSON, and its `on_error` is `fail`.
        """
        states: dict[str, Any] = {}
        for entry in self._entries:
            try:
                if action_state := json.loads(json.dumps(dict(entry.action.state()))):
                    states[entry.action.name] = action_state
            except Exception as error:
                entry.fail("state()", 0 if self._run is None else self._run.step, error)
        called = {entry.action.name: entry.called_at for entry in self._entries if entry.called_at is not None}
        state = {"actions": states, "called": called, "evaluated": self._evaluated_step, "stopped": self._stopped}
        state |= {"results": self._results} if self._results else {}
        return state if any(state.values()) else {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restores every action from the manifest of the checkpoint that was restored, `{}` for a run that begins."""
        states = extra.get("actions", {})
        self._evaluated_step, self._stopped = extra.get("evaluated"), extra.get("stopped")
        self._results.clear()
        self._results.update(extra.get("results", {}))
        for entry in self._entries:
            try:
                entry.action.restore(states.get(entry.action.name, {}))
            except Exception as error:
                entry.fail("restore()", 0 if self._run is None else self._run.step, error)
            entry.called_at = extra.get("called", {}).get(entry.action.name)
            entry.extra_steps.clear()
        if unknown := sorted(states.keys() - {entry.action.name for entry in self._entries}):
            _logger.warning(
                "the checkpoint has the state of actions that the run no longer has: %s", ", ".join(unknown)
            )
        if self._run is not None:
            self._checked_step = self._run.step

    @property
    def _begun(self) -> Run:
        assert self._run is not None, "start was not called"
        return self._run

    def _requests(self, call: Callable[[_Entry], list[Request]]) -> list[Request]:
        """Makes a call of each action; returns all requests, and keeps the first stop for checkpoints."""
        requests: list[Request] = []
        for entry in self._entries:
            answers = call(entry)
            for stop in [request for request in answers if isinstance(request, Stop)][:1]:
                self._stopped = self._stopped or {"by": entry.action.name, "settings": entry.settings, **vars(stop)}
            requests += answers
        return requests

    def _repeated_stop(self) -> list[Request]:
        """Returns the stop that ended this run, while the action that requested it is unchanged; else forgets it."""
        stopped = self._stopped or {}
        if (stopped.get("by"), stopped.get("settings")) not in [(e.action.name, e.settings) for e in self._entries]:
            self._stopped = None
            return []
        how = "the run has ended already; to go on after all, change or remove the action '%s'"
        _logger.info(how, stopped["by"])  # no part of the reason, which is on record as an unbroken run has it
        return [Stop(reason=stopped["reason"])]

    def _moment(self, **happened: bool) -> Moment:
        run = self._begun
        return Moment(after=min(self._checked_step, run.step - 1), step=run.step, span=run.state.span, **happened)


def _first_step(entries: Sequence[_Entry], after: int, until: int, span: Span) -> int | None:
    steps = [entry.next_step(after, until, span) for entry in entries]
    return min((step for step in steps if step is not None), default=None)


def _requests(answer: Any) -> list[Request]:
    """Returns the requests in what a hook has returned."""
    answers = [] if answer is None else list(answer) if isinstance(answer, list | tuple) else [answer]
    for request in answers:
        if not isinstance(request, Request):
            raise TypeError(
                f"it returned {shorten(repr(request))}; a hook returns None, or Stop, Save, Rollback, CallAt, Assign, "
                "Result of official_trainer.actions"
            )
    return answers


def _check_when(when: When, path: str) -> None:
    """Refuses what a file could not set either: for a `When` that Python code gives to an action."""
    sections = [(inner, section) for inner, section in fields.in_force(when, path) if isinstance(section, When)]
    for inner, section in reversed(sections):  # the inner ones first, whose messages say more
        check_section(section, inner)
