"""What actions hand back: new values of variables, and results; however often the run is killed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.actions.action import Action, Assign, Result, Rollback
from official_trainer.actions.schedule import ActionError
from official_trainer.config import When
from official_trainer.stopping import PreemptedError
from tests.support.loops import KILLS, Disk, Killed, config_of, start


class Changes(Action):
    """Changes the weight by what it is, the step, and what another action has handed back."""

    def __init__(self, when, name="changes", factor=3):
        self.when, self.name, self.factor = when, name, factor

    def on_step(self, run):
        return self._changed(run)

    def _changed(self, run):
        found = run.state.results.get("counts", {"calls": 0})["calls"]
        return Assign(values={"weight": (run.trainer.weight * self.factor + run.step + found) % 10007})


class ChangesAfterEvaluations(Changes):
    def on_eval(self, run, logs):
        return self._changed(run)


class Counts(Action):
    """Hands back how often it was called, which it takes from its last result."""

    name = "counts"

    def __init__(self, when):
        self.when = when

    def on_step(self, run):
        before = run.state.results.get(self.name, {"calls": 0})
        return Result(value={"calls": before["calls"] + 1})


def run(disk, config, *actions, **kwargs):
    loop, trainer = start(disk, config, *actions, **kwargs)
    evaluate = trainer.evaluate
    trainer.evaluate = lambda steps: {**evaluate(steps), "weight": trainer.weight}
    loop.run()
    return loop, trainer


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), KILLS)
def test_a_killed_run_ends_with_the_weights_rows_and_results_of_an_unbroken_one(
    saves, validation, every, counts, kills
):
    """B12, N1: also killed between an action and the next checkpoint, or between an evaluation's row and that."""
    config = config_of(checkpoint_interval=saves, validation_interval=validation, steps_per_loop=7)

    def actions():
        after = (
            ChangesAfterEvaluations(When(after_eval=True), "after", 5),
            Changes(When(after_eval=True), "after too", 7),
        )
        return [Counts(When(every=counts)), Changes(When(every=every)), *after]

    whole, killed = Disk(), Disk()
    loop, trainer = run(whole, config, *actions())
    for kill_at in kills:
        try:
            run(killed, config, *actions(), kill_at=kill_at)
        except (Killed, PreemptedError):
            continue
    again, last = run(killed, config, *actions())
    assert last.weight == trainer.weight
    assert killed.results == whole.results
    assert again.state.results == loop.state.results


def test_what_is_handed_back_is_in_the_checkpoint_and_the_evaluation_of_that_step():
    """B12: and of two actions of a step, the second one finds what the first one has changed."""
    disk, seen = Disk(), []

    class Looks(Changes):
        def on_step(self, run):
            seen.append(run.trainer.weight)

    sets = Changes(When(every=20), "sets", factor=0)
    config = config_of(train_steps=20, checkpoint_interval=20, validation_interval=20)
    run(disk, config, sets, Looks(When(every=20), "looks"))
    assert seen == [20]
    assert disk.weights == {20: 20}
    assert disk.results["validation", 20]["weight"] == 20


def test_what_is_handed_back_after_an_evaluation_counts_from_the_next_step_on():
    """B12: the checkpoint of that step has the weights that were evaluated."""
    disk = Disk()
    config = config_of(train_steps=20, checkpoint_interval=20, validation_interval=20)
    _, trainer = run(disk, config, ChangesAfterEvaluations(When(after_eval=True), factor=0))
    assert disk.weights[20] == disk.results["validation", 20]["weight"] != 20
    assert trainer.weight == 20


@pytest.mark.parametrize("hook", ["on_start", "on_trace", "on_end"])
def test_hooks_that_a_restart_calls_again_may_not_assign(hook):
    """B12: the message says which may, and where first weights belong."""
    action = type("Sets", (Action,), {hook: lambda self, run, *arguments: Assign(values={"weight": 0})})()
    loop, trainer = start(Disk(), config_of(), action)
    trainer.context.traces.take = lambda: ["a trace"]
    said = rf"action 'Sets' failed in {hook} at step \d+: .*Assign, which is for on_step and on_eval: {hook} is called"
    with pytest.raises(ActionError, match=f"(?s){said} again after a restart.*First weights are for Task.initialize"):
        loop.run()


def test_values_that_are_refused_name_the_action():
    """B12: with `on_error: warn` the run goes on as if nothing had been handed back."""

    def refuse(values):
        raise ValueError("'weight' is no variable")

    def ends_with(on_error):
        action = Changes(When(at_steps=(30,)))
        action.on_error = on_error
        loop, trainer = start(Disk(), config_of(), action)
        trainer.assign = refuse
        loop.run()
        return trainer.weight

    with pytest.raises(ActionError, match=r"action 'changes' failed in on_step at step 30: .*'weight' is no variable"):
        ends_with("fail")
    _, untouched = run(Disk(), config_of())
    assert ends_with("warn") == untouched.weight


def test_a_rollback_takes_back_what_was_assigned_and_found():
    """B12, N13: both are those of the checkpoint, and come again."""
    gone = []

    class Goes(Action):
        name, when = "goes", When(at_steps=(60,))

        def on_step(self, run):
            gone.append((run.trainer.weight, dict(run.state.results)))
            return Rollback(reason="once") if len(gone) == 1 else None

    config = config_of(recovery_max_trials=1, recovery_data="repeat")
    loop, _ = run(Disk(), config, Counts(When(every=20)), Changes(When(at_steps=(55,))), Goes())
    assert len(gone) == 2
    assert gone[0] == gone[1]
    assert loop.state.results == {"counts": {"calls": 5}}


# Results and arguments.


def test_the_caller_passes_arguments_and_reads_results_by_name():
    """B12: `shared` for values of any kind, `results` for what actions hand back; the newest of each, to the end."""
    seen = []

    class Reads(Action):
        name, when, priority = "reads", When(every=10), 1

        def on_step(self, run):
            seen.append((run.state.shared["teacher"], run.state.results["counts"]))
            return [Result(value=(run.step, None, "text"))]

        def on_end(self, run, failure):
            return Result(value={"steps": run.step})

    loop, _ = start(Disk(), config_of(train_steps=20), Reads(), Counts(When(every=10)))
    teacher = object()
    loop.state.shared["teacher"] = teacher
    loop.run()
    assert seen == [(teacher, {"calls": 1}), (teacher, {"calls": 2})]
    assert loop.state.results == {"counts": {"calls": 2}, "reads": {"steps": 20}}


def test_a_result_that_no_checkpoint_can_hold_is_refused():
    """B12: when it is handed back, by the name of the action."""

    class Hands(Action):
        name, when = "hands", When(at_end=True)

        def on_step(self, run):
            return Result(value=object())

    loop, _ = start(Disk(), config_of(), Hands())
    with pytest.raises(ActionError, match=r"action 'hands' failed in on_step at step 100: .* object is not JSON"):
        loop.run()
