"""Which actions are called when, in which order, and what an error in one means."""

import errno
import logging
import os
import types

import pytest

from official_trainer.actions.action import Action, CallAt, Callback, LoopState, Run
from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.config import When
from official_trainer.errors import ExitCode, UserError
from official_trainer.stopping import PreemptedError


class MetricWriter:
    def __init__(self):
        self.rows = []

    def log(self, split, step, values):
        self.rows.append((split, step, values))


class Recorder(Action):
    """Writes down every call in one list that all of them share."""

    def __init__(self, calls, name="", priority=0, when=None, answers=()):
        self.calls, self.name, self.priority, self.answers = calls, name, priority, dict(answers)
        if when is not None:
            self.when = when

    def _note(self, hook, run, *more):
        self.calls.append((self.name, hook, run.step, *more))
        answer = self.answers.get((hook, run.step), self.answers.get(hook))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def on_start(self, run):
        return self._note("on_start", run)

    def on_step(self, run):
        return self._note("on_step", run)

    def on_eval(self, run, logs):
        return self._note("on_eval", run, dict(logs))

    def on_trace(self, run, trace):
        return self._note("on_trace", run, trace)

    def on_end(self, run, failure):
        return self._note("on_end", run, failure)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def calls():
    return []


def started(*actions, end_step=100, start_step=0, clock=None):
    """Returns a schedule that has begun, and its run."""
    schedule = Schedule(actions, **({} if clock is None else {"clock": clock}))
    state = LoopState(step=start_step, start_step=start_step, end_step=end_step)
    run = Run(state=state, trainer=types.SimpleNamespace(), model_dir="", tracker=MetricWriter())
    schedule.restore({})
    schedule.start(run)
    return schedule, run


def to(schedule, run, *steps, summarized=False):
    """Goes to each of the steps in a window of its own; returns what was asked for."""
    asked = []
    for step in steps:
        run.state.step = step
        asked += schedule.step(summarized=summarized, ended=step == run.state.end_step)
    return asked


def names(calls, hook):
    return [call[0] for call in calls if call[1] == hook]


# Order.


def test_lowest_priority_first_then_as_given(calls):
    """G1: negative ones are allowed; the order of the list breaks ties; in every hook."""
    given = [("late", 100), ("a", 0), ("b", 0), ("early", -5), ("c", 0)]
    schedule, run = started(*(Recorder(calls, name, priority, When(every=1)) for name, priority in given))
    to(schedule, run, 1)
    schedule.evaluation({"accuracy": 1.0}, ended=False)
    schedule.traces(["trace"])
    schedule.end(None)
    for hook in ("on_start", "on_step", "on_eval", "on_trace", "on_end"):
        assert names(calls, hook) == ["early", "a", "b", "c", "late"]


def test_what_is_no_action_is_refused():
    """G1: with what may be given."""
    with pytest.raises(TypeError, match="3 is not an action: expected an Action, an ActionConfig or a callable"):
        Schedule([3])


# When.


def test_hooks_are_called_when_due(calls):
    """B1: `on_step` at the steps of the trigger, `on_eval` after evaluations of these steps."""
    schedule, run = started(Recorder(calls, "a", when=When(every=10)))
    to(schedule, run, 5, 10)
    schedule.evaluation({"x": 1.0}, ended=False)
    to(schedule, run, 15)
    schedule.evaluation({"x": 2.0}, ended=False)
    to(schedule, run, 33)  # jumped over 20 and 30
    assert calls[1:] == [("a", "on_step", 10), ("a", "on_eval", 10, {"x": 1.0}), ("a", "on_step", 33)]


def test_by_default_with_every_new_result(calls):
    """B1: each summary of training, each evaluation."""
    schedule, run = started(Recorder(calls, "a"))
    to(schedule, run, 5)
    to(schedule, run, 10, summarized=True)
    schedule.evaluation({}, ended=False)
    assert [call[1:3] for call in calls] == [("on_start", 0), ("on_step", 10), ("on_eval", 10)]


def test_without_on_eval_an_evaluation_calls_on_step_once(calls):
    """B1: an action that only knows steps may be due after evaluations."""

    class Stepping(Action):
        name, when = "s", When(any=(When(after_eval=True), When(every=20)))

        def on_step(self, run):
            calls.append(run.step)

    schedule, run = started(Stepping())
    to(schedule, run, 10)
    schedule.evaluation({}, ended=False)
    to(schedule, run, 20)
    schedule.evaluation({}, ended=False)
    assert calls == [10, 20]


def test_windows_end_where_actions_are_due(calls):
    """B1, B7: and one step of its own is known before where something is published from inside."""
    publisher = Recorder(calls, "p", when=When(every=7))
    publisher.publishes = True
    eval_only = Callback(print)
    schedule, _ = started(Recorder(calls, "a", when=When(every=10)), publisher, eval_only)
    assert [schedule.next_step(after, 100) for after in (0, 7, 10, 14)] == [7, 10, 14, 20]
    assert schedule.next_step(0, 6) is None
    assert schedule.next_published_step(7, 100) == 14


def test_seconds_are_counted_from_the_end_of_the_action(calls):
    """G5: the clock starts at the first step; the time of the action itself does not count."""
    clock = Clock()

    class Slow(Recorder):
        def on_step(self, run):
            clock.now += 50
            return super().on_step(run)

    schedule, run = started(Slow(calls, "slow", when=When(every_seconds=10)), clock=clock)
    clock.now += 1000  # tracing, before the first step is done
    to(schedule, run, 1)
    clock.now += 9
    to(schedule, run, 2)
    clock.now += 1
    to(schedule, run, 3)
    clock.now += 9
    to(schedule, run, 4)
    clock.now += 1
    to(schedule, run, 5)
    assert [call[2] for call in calls if call[1] == "on_step"] == [3, 5]


def test_seconds_may_be_counted_from_the_start(calls):
    """G5: then it does count."""
    clock = Clock()

    class Slow(Recorder):
        def on_step(self, run):
            clock.now += 8
            return super().on_step(run)

    schedule, run = started(Slow(calls, "slow", when=When(every_seconds=10, measure_from="start")), clock=clock)
    to(schedule, run, 1)
    for step in range(2, 6):
        clock.now += 5
        to(schedule, run, step)
    assert [call[2] for call in calls if call[1] == "on_step"] == [3, 4, 5]


def test_a_call_can_be_asked_for(calls):
    """N24: at one more step, where a window then ends."""
    schedule, run = started(Recorder(calls, "a", when=When(every=50), answers={("on_step", 50): CallAt(step=53)}))
    assert to(schedule, run, 50) == []
    assert schedule.next_step(50, 100) == 53
    to(schedule, run, 52, 53, 54)
    assert [call[2] for call in calls if call[1] == "on_step"] == [50, 53]


# What is asked for.


def test_an_answer_that_is_no_request_is_an_error(calls):
    """G1: a hook that returns something means to ask for something."""
    schedule, run = started(Recorder(calls, "a", when=When(every=1), answers={"on_step": True}))
    with pytest.raises(ActionError, match="action 'a' failed in on_step at step 1: TypeError: it returned True; a"):
        to(schedule, run, 1)


# Errors.


def test_an_error_names_action_hook_and_step(calls):
    """G1: and ends the run; the cause is kept."""
    schedule, run = started(Recorder(calls, "a", when=When(every=1), answers={"on_step": KeyError("x")}))
    with pytest.raises(ActionError) as caught:
        to(schedule, run, 7)
    summary, *place = str(caught.value).splitlines()
    assert summary == "action 'a' failed in on_step at step 7: KeyError: 'x'"
    assert [line.partition(" in ")[2] for line in place] == [
        'on_step: return self._note("on_step", run)',
        "_note: raise answer",
    ]
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.exit_code == ExitCode.FAILED


class WrongDataError(UserError):
    exit_code = ExitCode.DATA


@pytest.mark.parametrize(
    ("error", "message", "exit_code"),
    [
        (WrongDataError("no rows"), "no rows$", ExitCode.DATA),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/a/metrics.jsonl"),
            r"/runs/a/metrics.jsonl: No space left on device\. Free some .*$",
            ExitCode.RETRY,
        ),
    ],
)
def test_an_error_for_users_keeps_its_exit_code(calls, error, message, exit_code):
    """G1, N3, N6: a full disk is the storage's fault, and the same command may be started again."""
    schedule, _ = started(Recorder(calls, "a", when=When(after_eval=True), answers={"on_eval": error}))
    with pytest.raises(ActionError, match=f"^action 'a' failed in on_eval at step 0: {message}") as caught:
        schedule.evaluation({}, ended=False)
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize(("on_error", "called"), [("warn", [1, 2, 3]), ("disable", [1])])
def test_an_error_may_be_a_warning(calls, caplog, on_error, called):
    """G1: said each time, or said once and not called again; others go on."""
    action = Recorder(calls, "a", when=When(every=1), answers={"on_step": OSError("disk")})
    action.on_error = on_error
    schedule, run = started(action, Recorder(calls, "b", when=When(every=1)))
    with caplog.at_level(logging.WARNING):
        to(schedule, run, 1, 2, 3)
    assert [call[2] for call in calls if call[:2] == ("a", "on_step")] == called
    assert len(names(calls, "on_step")) - len(called) == 3
    said = (
        f"action 'a' failed in on_step at step 1: OSError: disk{'; it is not called again' * (on_error == 'disable')}"
    )
    first, *place = caplog.records[0].getMessage().splitlines()
    assert first == f"{said} (on_error: {on_error})"
    assert "test_schedule.py" in place[0]
    assert len(caplog.records) == len(called)


def test_a_stop_of_the_run_is_no_error_of_an_action(calls):
    """N5: whatever `on_error` says."""
    action = Recorder(calls, "a", when=When(every=1), answers={"on_step": PreemptedError("SIGTERM")})
    action.on_error = "warn"
    schedule, run = started(action)
    with pytest.raises(PreemptedError):
        to(schedule, run, 1)


def test_every_end_hook_runs_and_is_told_of_the_failure(calls, caplog):
    """G1: also when one of them fails; then the first error, unless there is a failure already."""
    failing = [Recorder(calls, name, answers={"on_end": RuntimeError(name)}) for name in ("a", "b")]
    schedule, _ = started(*failing, Recorder(calls, "c"))
    with pytest.raises(ActionError, match="action 'a' failed in on_end at step 0: RuntimeError: a"):
        schedule.end(None)
    assert "action 'b' failed in on_end" in caplog.text
    failure = ValueError("the run failed")
    schedule, _ = started(*failing, Recorder(calls, "c"))
    calls.clear()
    schedule.end(failure)
    assert [(call[0], call[3]) for call in calls] == [("a", failure), ("b", failure), ("c", failure)]
    Schedule([Recorder(calls, "d")]).end(failure)  # never began
    assert len(calls) == 3


# State.


class Counter(Action):
    when = When(every=1)

    def __init__(self, name="counter"):
        self.name, self.count = name, 0

    def on_step(self, run):
        self.count += 1

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state.get("count", 0)


def test_state_goes_through_a_checkpoint():
    """N2: into the manifest and out again; an action that is new begins."""
    first, run = started(Counter(), Counter("other"))
    to(first, run, 1, 2, 3)
    first.evaluation({}, ended=False)
    extra = first.state()
    states = {"counter": {"count": 3}, "other": {"count": 3}}
    assert extra == {"actions": states, "called": {"counter": 3, "other": 3}, "evaluated": 3, "stopped": None}
    again = Schedule([Counter(), Counter("new")])
    again.restore(extra)
    assert [action.count for action in again.actions] == [3, 0]
    assert again.has_seen_evaluation(3)
    again.restore({})  # rolled back to the beginning
    assert [action.count for action in again.actions] == [0, 0]
    assert not again.has_seen_evaluation(3)


def test_state_of_an_action_that_is_gone_is_said(caplog):
    """N2: nothing is lost in silence."""
    Schedule([Counter()]).restore({"actions": {"old": {"count": 1}}})
    assert "the checkpoint has the state of actions that the run no longer has: old" in caplog.text


def test_actions_that_wait_for_evaluations_are_known(calls):
    """G1: so that a mode without evaluations can say that they do nothing."""

    class OnlyEval(Action):
        name = "only_eval"

        def on_eval(self, run, logs):
            pass

    class Stepping(Action):
        def __init__(self, name, when):
            self.name, self.when = name, when

        def on_step(self, run):
            pass

    actions = (
        OnlyEval(),
        Stepping("after", When(after_eval=True)),
        Stepping("steps", When(every=3)),
        Recorder(calls, "both"),
    )
    assert Schedule(actions).only_after_evaluations() == ["only_eval", "after"]


def test_a_trigger_that_never_comes_is_said(calls, caplog):
    """B1: once, at the start, where the steps are known in advance."""
    from official_trainer.config import When

    never = (
        Recorder(calls, "late", when=When(at_steps=(5000,))),
        Recorder(calls, "odd", when=When(all=(When(every=10), When(at_steps=(5,))))),
    )
    started(*never, Recorder(calls, "fine", when=When(every=10)), Recorder(calls, "eval", when=When(after_eval=True)))
    said = "these actions are due at no step up to 100, where training ends: late, odd"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize("hook", ["state", "restore"])
def test_state_follows_on_error_too(caplog, hook):
    """G1, N2: a state that cannot be saved or read fails the run, or begins anew and is said."""

    class Wrong(Counter):
        def state(self):
            return {"model": object()} if hook == "state" else {"count": 3}

        def restore(self, state):
            if hook == "restore" and state:
                raise KeyError("format")

    action = Wrong("wrong")
    action.on_error = "warn"
    schedule, _ = started(action, Counter("other"))
    schedule.restore({"actions": {"wrong": {"count": 3}, "other": {"count": 1}}})
    states = schedule.state()["actions"]
    assert states == {"other": {"count": 1}} if hook == "state" else {"other": {"count": 1}, "wrong": {"count": 3}}
    assert f"action 'wrong' failed in {hook}() at step 0" in caplog.text
    action.on_error = "fail"
    reason = "TypeError: .*not JSON" if hook == "state" else "KeyError: 'format'"
    with pytest.raises(ActionError, match=rf"action 'wrong' failed in {hook}\(\) at step 0: {reason}"):
        schedule.restore({"actions": {"wrong": {"count": 3}}})
        schedule.state()
