"""What actions see of the loop and what it does for them, however often the run is killed."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.actions.action import Action, Rollback, Save, Stop
from official_trainer.actions.schedule import ActionError
from official_trainer.config import ActionConfig, When
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.errors import ExitCode
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support.loops import KILLS, Disk, Killed, config_of, multiples, start


class Steps(Action):
    """Remembers, in its state, each step at which it was called."""

    def __init__(self, when, name="steps", answer=None):
        self.when, self.name, self.answer = when, name, answer
        self.steps = []

    def on_step(self, run):
        self.steps.append(run.step)
        return self.answer(run) if self.answer else None

    def state(self):
        return {"steps": self.steps}

    def restore(self, state):
        self.steps = list(state.get("steps", []))


class Patience(Action):
    """Stops after `patience` evaluations without a better accuracy."""

    name, when = "patience", When(after_eval=True)

    def __init__(self, patience):
        self.patience, self.best, self.waited, self.seen = patience, -1.0, 0, []

    def on_eval(self, run, logs):
        self.seen.append(run.step)
        self.waited = 0 if logs["accuracy"] > self.best else self.waited + 1
        self.best = max(self.best, logs["accuracy"])
        return self._answer()

    def _answer(self):
        return Stop(reason=f"waited {self.waited}") if self.waited >= self.patience else None

    def state(self):
        return {"best": self.best, "waited": self.waited, "seen": self.seen}

    def restore(self, state):
        self.best, self.waited = state.get("best", -1.0), state.get("waited", 0)
        self.seen = list(state.get("seen", []))


def run(disk, config, *actions, **kwargs):
    loop, trainer = start(disk, config, *actions, **kwargs)
    loop.run()
    return loop, trainer


@settings(max_examples=50)
@given(st.tuples(*[st.integers(1, 40)] * 3), st.integers(1, 40), st.integers(1, 3), st.integers(0, 10**6), KILLS)
def test_actions_rows_and_states_are_the_same_after_any_kills(intervals, every, patience, seed, kills):
    """T10, N15, B1, G2, G3, N2: each row is there once; also a kill between an evaluation's row and a checkpoint."""
    steps_per_loop, checkpoint, validation = intervals
    accuracies = {step: ((step * 7919 + seed) % 101) / 101 for step in range(1, 101)}
    config = config_of(checkpoint_interval=checkpoint, validation_interval=validation, steps_per_loop=steps_per_loop)

    def actions():
        when = [
            When(every=every),
            When(n_times=7),
            When(any=(When(at_steps=(3, 50)), When(at_end=True))),
            When(after_summary=True),
        ]
        return [*(Steps(trigger, str(n)) for n, trigger in enumerate(when)), Patience(patience)]

    whole, killed, unbroken = Disk(), Disk(), actions()
    loop, _ = run(whole, config, *unbroken, accuracies=accuracies)
    for kill_at in kills:
        try:
            run(killed, config, *actions(), accuracies=accuracies, kill_at=kill_at)
        except (Killed, PreemptedError):
            continue
    last = actions()
    again, _ = run(killed, config, *last, accuracies=accuracies)
    assert again.state.step == loop.state.step
    assert [action.state() for action in last] == [action.state() for action in unbroken]
    assert sorted(killed.rows) == sorted(whole.rows)


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 40))
def test_windows_end_where_actions_are_due(steps_per_loop, every, times):
    """B1, G2, G3: whatever steps_per_loop is."""
    first, second = Steps(When(every=every), "first"), Steps(When(n_times=times), "second")
    run(Disk(), config_of(steps_per_loop=steps_per_loop), first, second)
    assert first.steps == [step for step in multiples(every, 100) if step % every == 0]
    assert len(second.steps) == min(times, 100)
    assert second.steps[-1] == 100


def test_order_at_a_step():
    """G8, N2: summary, action, checkpoint with its state, evaluation, action, row."""
    disk = Disk()

    class Both(Steps):
        def on_step(self, run):
            disk.events.append(("on_step", run.step))
            super().on_step(run)

        def on_eval(self, run, logs):
            disk.events.append(("on_eval", run.step))
            assert logs == {"accuracy": 0.005}

        def on_end(self, run, failure):
            disk.events.append(("on_end", run.step))

    config = config_of(train_steps=5, summary_interval=5, checkpoint_interval=5, validation_interval=5)
    run(disk, config, Both(When(every=5)))
    assert [kind for kind, _ in disk.events] == [
        "initialize", "train", "on_step", "save", "on_eval", "validation", "on_end",
    ]  # fmt: skip
    assert disk.extra[5] == {
        "actions": {"steps": {"steps": [5]}},
        "called": {"steps": 5},
        "evaluated": None,
        "stopped": None,
    }


def test_actions_see_the_run():
    """G7: where it stands, the newest summary, and a blackboard."""
    seen = []

    class Looks(Steps):
        def on_step(self, run):
            run.state.shared["count"] = run.state.shared.get("count", 0) + 1
            seen.append((run.step, run.state.end_step, run.summary_step, run.train_logs.get("step")))
            seen.append(run.state.shared["count"])

    run(Disk(), config_of(train_steps=40), Looks(When(every=15)))
    assert seen == [(15, 40, None, None), 1, (30, 40, 20, 20.0), 2]


# What is asked for.


def test_a_stop_is_the_end():
    """G1: summary, checkpoint and evaluation of that step, as of a last one; and it stays the end."""
    disk, said = Disk(), []
    action = Steps(When(at_steps=(33,)), answer=lambda run: Stop(reason="enough"))
    loop, _ = start(disk, config_of(), action, methods={"on_stop": said.append})
    loop.run()
    assert loop.state.step == 33
    assert disk.checkpoints[-1] == 33
    assert ("train", 33) in disk.rows
    assert ("validation", 33) in disk.rows
    assert said == ["enough"]


def test_a_stop_after_an_evaluation_is_saved_with_what_is_known():
    """G1: the checkpoint of that step is made after the evaluation; a restart finds the end."""
    disk, action = Disk(), Patience(1)
    accuracies = {20: 0.5, 40: 0.4}
    last = Steps(When(at_end=True), "last")
    config = config_of(validation_interval=20, checkpoint_interval=50)
    run(disk, config, action, last, accuracies=accuracies)
    assert disk.checkpoints == last.steps == [40]
    assert disk.extra[40]["actions"]["patience"]["waited"] == 1
    assert disk.extra[40]["evaluated"] == 40
    rows = list(disk.rows)
    loop, trainer = run(disk, config, Patience(1), accuracies=accuracies)
    assert (loop.state.step, trainer.lengths, disk.rows) == (40, [], rows)


@pytest.mark.parametrize(
    ("patience", "name", "last_step"), [(1, "patience", 40), (2, "patience", 100), (1, "other", 80)]
)  # fmt: skip
def test_a_stopped_run_stays_stopped_until_the_action_is_another(patience, name, last_step, caplog):
    """G1: for the same reason, though the action itself does not remember; changed or removed, it holds no longer."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class PatienceConfig(ActionConfig):
        patience: int = 1

        def build(self):
            return Patience(self.patience)

    disk, config, said = Disk(), config_of(validation_interval=20, checkpoint_interval=50), []
    accuracies = {20: 0.5, 40: 0.4, 60: 0.6}
    run(disk, config, PatienceConfig(name="patience"), accuracies=accuracies)
    action = PatienceConfig(name=name, patience=patience)
    loop, _ = start(disk, config, action, methods={"on_stop": said.append}, accuracies=accuracies)
    caplog.set_level("INFO")
    loop.run()
    assert loop.state.step == last_step
    if last_step == 40:
        assert said == ["waited 1"]
        assert "to go on after all, change or remove the action 'patience'" in caplog.text


def test_a_save_is_made_once():
    """G1: at a step of its own, and not twice where one is due."""
    disk = Disk()
    run(disk, config_of(), Steps(When(at_steps=(13, 50)), answer=lambda run: Save()))
    assert [step for kind, step in disk.events if kind == "save"] == [13, 50, 100]


def test_a_rollback_goes_through_recovery():
    """N13, N2: back to the checkpoint, states too, past the data; and no more often than allowed."""
    disk = Disk()
    gone = []

    def answer(run):
        if not gone:
            gone.append(run.step)
            return Rollback(reason="the loss has jumped")
        return None

    action = Steps(When(at_steps=(60,)), "diverged", answer)
    steps = Steps(When(every=20))
    loop, trainer = run(disk, config_of(recovery_max_trials=1), steps, action)
    assert gone == [60]
    assert trainer.train_iterator.skipped == 10
    assert steps.steps == [20, 40, 60, 80, 100]
    assert action.steps == [60]
    assert loop.state.step == 100
    with pytest.raises(NonFiniteError, match=r"the loss has jumped; the last good checkpoint is ckpt-50\n") as caught:
        run(Disk(), config_of(), Steps(When(at_steps=(60,)), answer=lambda run: Rollback(reason="the loss has jumped")))
    assert caught.value.exit_code == ExitCode.NON_FINITE


def test_an_action_that_fails_ends_the_run_and_leaves_its_checkpoints():
    """G1: by name; end hooks are told."""
    told = []

    class Ends(Steps):
        def on_end(self, run, failure):
            told.append(failure)

    def fail(run):
        raise OSError("disk full")

    disk = Disk()
    with pytest.raises(ActionError, match="action 'broken' failed in on_step at step 70: OSError: disk full") as caught:
        run(disk, config_of(), Steps(When(at_steps=(70,)), "broken", fail), Ends(When(every=10), "ends"))
    assert told == [caught.value]
    assert disk.checkpoints == [50]


def test_end_hooks_are_told_of_a_stop():
    """N5, G1: after the state is saved."""
    told, disk, stop = [], Disk(), StopRequest()

    class Ends(Steps):
        def on_end(self, run, failure):
            told.append((type(failure), disk.checkpoints[-1]))

    def ask(run):
        stop.reason = "SIGTERM"

    with pytest.raises(PreemptedError):
        run(disk, config_of(), Ends(When(at_steps=(30,)), answer=ask), stop=stop)
    ((kind, saved),) = told
    assert kind is PreemptedError
    assert saved >= 30


@pytest.mark.parametrize("place", ["in the window", "in the action"])
def test_a_stop_where_an_action_is_due_does_not_lose_its_call(place):
    """B1, N5: the state is saved at once, and the call is made after the restart; at the last step too."""
    for stopped_at in (30, 100):
        disk, stop = Disk(), StopRequest()

        def leave(run, at=stopped_at):
            if place == "in the action" and run.step == at:
                raise PreemptedError("SIGTERM")

        def ask(state, *numbers, at=stopped_at, stop=stop):
            if place == "in the window" and state.step == at:
                stop.reason = "SIGTERM"

        def actions(answer=None):
            return [
                Steps(When(any=(When(every=30), When(at_end=True))), "first"),
                Steps(When(any=(When(every=30), When(at_end=True))), "second", answer),
            ]

        loop, _ = start(disk, config_of(), *actions(leave), methods={"on_window": ask}, stop=stop)
        with pytest.raises(PreemptedError):
            loop.run()
        assert disk.checkpoints[-1] == stopped_at
        again = actions()
        run(disk, config_of(), *again)
        assert again[0].steps == [30, 60, 90, 100]
        # What an action notes before it is left is its own affair; that it is called again is what counts.
        assert sorted(set(again[1].steps)) == [30, 60, 90, 100]
        assert again[1].steps.count(stopped_at) == (2 if place == "in the action" else 1)
