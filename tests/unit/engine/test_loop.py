"""The order of events and their exact steps, with parts that only write down what they are asked."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.engine.loop import NonFiniteError
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support.loops import Disk, Killed, config_of, multiples, start

intervals = st.integers(1, 40)


@settings(max_examples=50)
@given(st.integers(1, 60), intervals, intervals, intervals, st.integers(1, 120))
def test_every_event_fires_at_exactly_its_steps(steps_per_loop, summary, checkpoint, validation, total):
    """T10, G2: for any intervals, and whatever steps_per_loop is."""
    disk = Disk()
    config = config_of(
        train_steps=total,
        steps_per_loop=steps_per_loop,
        summary_interval=summary,
        checkpoint_interval=checkpoint,
        validation_interval=validation,
    )
    loop, trainer = start(disk, config)
    loop.run()
    assert [s for split, s in disk.rows if split == "train"] == multiples(summary, total)
    assert [s for split, s in disk.rows if split == "validation"] == multiples(validation, total)
    assert [s for kind, s in disk.events if kind == "save"] == multiples(checkpoint, total)
    assert max(trainer.lengths) <= steps_per_loop
    assert sum(trainer.lengths) == total


@settings(max_examples=50)
@given(st.integers(1, 30), intervals, intervals, intervals, st.lists(st.integers(1, 110), max_size=4))
def test_processes_that_stop_at_a_step_leave_the_rows_of_an_unbroken_run(
    steps_per_loop, summary, checkpoint, validation, stops
):
    """N15: `--until_step` saves that step, whatever is due there; the last step alone is the end."""
    disk, reached = Disk(), 0
    config = config_of(
        steps_per_loop=steps_per_loop,
        summary_interval=summary,
        checkpoint_interval=checkpoint,
        validation_interval=validation,
    )
    ends = []
    for until_step in stops:
        loop, trainer = start(disk, config, until_step=until_step, methods={"on_end": lambda *end: ends.append(end)})
        loop.run()
        before, reached = reached, min(max(reached, until_step), 100)
        assert sum(trainer.lengths) == reached - before and disk.checkpoints[-1] == reached
        assert bool(ends) == (reached == 100)
    loop, _ = start(disk, config)
    loop.run()
    assert sorted(disk.rows) == sorted(
        [("train", s) for s in multiples(summary, 100)] + [("validation", s) for s in multiples(validation, 100)]
    )


def test_a_crash_in_the_evaluation_where_a_process_stops_does_not_lose_it():
    """N15: given again, the command trains nothing, and makes up for it; what is said of the end names both steps."""
    disk, said = Disk(), []
    with pytest.raises(Killed):
        start(disk, config_of(), until_step=40, kill_at=("evaluate", 40))[0].run()
    assert disk.checkpoints[-1] == 40 and ("validation", 40) not in disk.rows
    loop, trainer = start(disk, config_of(), until_step=40, methods={"on_stop": said.append})
    loop.run()
    assert ("validation", 40) in disk.rows and trainer.lengths == []
    assert said == ["stopped at step 40 of 100, by --until_step; without it the same command goes on"]


@pytest.mark.parametrize(
    ("evaluate", "steps"), [("interval", [40, 80, 100]), ("end", [100]), ("never", [])]
)  # fmt: skip
def test_modes_differ_in_when_they_evaluate(evaluate, steps):
    """T10: train_and_eval, train_and_post_eval, train."""
    disk = Disk()
    loop, _ = start(disk, config_of(), evaluate=evaluate)
    logs = loop.run()
    assert [s for split, s in disk.rows if split == "validation"] == steps
    assert ("accuracy" in logs) == bool(steps)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_state_that_is_not_finite_is_never_saved(loss):
    """G8, T12: the check comes before the save; the failed window is on record."""
    disk = Disk()
    loop, _ = start(disk, config_of(), losses={50: loss})
    with pytest.raises(NonFiniteError, match=r"the training loss is .* at step 50; the last good checkpoint is none"):
        loop.run()
    assert disk.checkpoints == []
    assert ("train", 50) in disk.rows


def test_loss_bound_is_enforced_from_its_first_step():
    """T12: loss_upper_bound counts from recovery_begin_steps on; a negative recovery_max_trials turns it off."""
    losses = {10: 5.0}
    with pytest.raises(NonFiniteError, match=r"the training loss is 5 at step 10, above trainer.loss_upper_bound=2"):
        start(Disk(), config_of(loss_upper_bound=2.0, steps_per_loop=1), losses=losses)[0].run()
    late = {10: 5.0, 29: 1.0}
    start(Disk(), config_of(loss_upper_bound=2.0, recovery_begin_steps=30, steps_per_loop=1), losses=late)[0].run()
    start(Disk(), config_of(loss_upper_bound=2.0, recovery_max_trials=-1), losses=losses)[0].run()


def test_recovery_goes_back_and_past_the_data():
    """T12: back to the last checkpoint, on with the data after the bad batch, at most so many times."""
    disk = Disk()
    loop, trainer = start(disk, config_of(recovery_max_trials=1, steps_per_loop=1), losses={75: math.nan})
    loop.run()
    assert trainer.train_iterator.skipped == 75 - 50
    assert [s for split, s in disk.rows if split == "train"] == [20, 40, 60, 80, 100]


def test_recovery_gives_up():
    """T12: without a checkpoint, or after the last trial, the run fails."""
    with pytest.raises(NonFiniteError):
        start(Disk(), config_of(recovery_max_trials=3), losses={10: math.nan})[0].run()
    disk = Disk()
    disk.checkpoints.append(50)
    loop, trainer = start(disk, config_of(recovery_max_trials=2), losses={})
    trainer.run_steps = lambda n, publish: setattr(trainer, "mean_loss", math.nan) or n
    with pytest.raises(NonFiniteError):
        loop.run()


def test_a_stop_request_saves_and_ends():
    """N5, N6: the state is saved at the step where the request is seen; the error carries exit code 143."""
    disk, stop = Disk(), StopRequest()

    def on_window(state, steps, seconds, loss):
        if state.step >= 33:
            stop.reason = "SIGTERM"

    loop, trainer = start(disk, config_of(steps_per_loop=7), stop=stop, methods={"on_window": on_window})
    with pytest.raises(PreemptedError, match=r"SIGTERM at step \d+, which is saved") as caught:
        loop.run()
    assert caught.value.exit_code == 143
    assert disk.checkpoints[-1] == trainer.global_step.value
    loop, _ = start(disk, config_of())
    loop.run()
    assert [s for split, s in disk.rows if split == "train"] == [20, 40, 60, 80, 100]


def test_epochs_end_where_the_data_says():
    """G6: the first epoch of data of unknown size tells where the run ends."""
    disk = Disk()
    loop, trainer = start(disk, config_of(train_steps=0, train_epochs=3), data_length=17)
    loop.run()
    assert trainer.global_step.value == 51
    assert loop.state.end_step == 51
    assert disk.checkpoints[-1] == 51
    assert ("validation", 51) in disk.rows


def test_data_that_stops_ends_the_run():
    """G6: `on_data_end: stop` makes the last step the end, with its save and evaluation."""
    disk = Disk()
    loop, _ = start(disk, config_of(), data_length=33)
    loop.run()
    assert disk.checkpoints[-1] == 33
    assert disk.rows[-1] == ("validation", 33)


def test_windows_grow_from_one_step():
    """N5: the first window is short, whatever steps_per_loop is, so that a slow step is noticed."""
    _, trainer = loop_and_trainer = start(
        Disk(),
        config_of(
            train_steps=200, steps_per_loop=1000, summary_interval=200, checkpoint_interval=200, validation_interval=200
        ),
    )
    loop_and_trainer[0].run()
    assert trainer.lengths == [1, 10, 100, 89]


def test_state_tells_where_the_run_stands():
    """G7: step, start, end, and the median step duration."""
    disk = Disk()
    disk.checkpoints.append(50)
    loop, _ = start(disk, config_of())
    assert loop.state.median_step_seconds is None
    loop.run()
    state = loop.state
    assert (state.step, state.start_step, state.end_step) == (100, 50, 100)
    assert state.median_step_seconds > 0
    assert state.shared == {}
    assert state.epoch == 0.0  # the data has no end
