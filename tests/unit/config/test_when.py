"""When something is due: tables of steps, and that restarts and windows change none of them."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.actions import Action
from official_trainer.actions.schedule import Schedule
from official_trainer.config import ConfigError, When
from official_trainer.config.when import ExponentialWhen, Moment, Span


def when_of(name):
    return lambda value: When(**{name: value})


STEPS = [
    # when, last step, steps at which it is due
    (When(every=10), 35, [10, 20, 30]),
    (When(every=1), 3, [1, 2, 3]),
    (When(at_steps=(7, 3, 7, 90)), 50, [3, 7]),
    (When(first_steps=3), 50, [1, 2, 3]),
    (When(first_steps_of_process=2), 50, [1, 2]),
    (When(n_times=10), 100, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
    (When(n_times=3), 10, [4, 7, 10]),
    (When(n_times=10), 4, [1, 2, 3, 4]),
    (When(n_times=1), 77, [77]),
    (When(exponential=ExponentialWhen(start=100, factor=1.2)), 1000, [100, 220, 364, 537, 745, 995]),
    (When(exponential=ExponentialWhen(start=1, factor=1.2)), 16, [1, 3, 6, 10, 15]),
    (When(exponential=ExponentialWhen(start=1, factor=2.0)), 40, [1, 3, 7, 15, 31]),
    (When(at_end=True), 33, [33]),
    (When(any=(When(every=20), When(at_steps=(5, 20)))), 45, [5, 20, 40]),
    (When(any=(When(every=20), When(at_end=True))), 45, [20, 40, 45]),
    (When(exponential=ExponentialWhen(start=4, factor=2), call_on_end=True), 21, [4, 12, 21]),
    (When(every_seconds=9, call_on_end=True), 21, [21]),
    (When(all=(When(every=4), When(every=6))), 40, [12, 24, 36]),
    (When(all=(When(every=10), When(not_=When(first_steps=20)))), 45, [30, 40]),
    (When(all=(When(first_steps=5), When(at_steps=(9,)))), 45, []),
    (When(not_=When(every=2)), 7, [1, 3, 5, 7]),
    (When(not_=When(not_=When(every=3))), 7, [3, 6]),
    (When(any=(When(all=(When(every=10), When(not_=When(every=20)))), When(at_steps=(1,)))), 40, [1, 10, 30]),
]


def due_steps(when, end, *, stops=(), ends_known=True):
    """Returns the steps at which `when` is due in a run whose windows end where it says, and at `stops`."""
    span, found, step = Span(end_step=end if ends_known else None), [], 0
    while step < end:
        until = min([stop for stop in stops if stop > step], default=end)
        reached = when.next_step(step, min(until, end), span) or min(until, end)
        if when.is_due(Moment(after=step, step=reached, span=span, ended=reached == end)):
            found.append(reached)
        step = reached
    return found


def test_due_at_these_steps():
    """G2, G3, G4, B1: the same steps whether asked step by step or only where a window ends."""
    for when, end, steps in STEPS:
        assert due_steps(when, end) == steps, when
        assert due_steps(when, end, stops=range(1, end)) == steps, when
        assert not when.is_due(Moment(after=-1, step=0, span=Span(end_step=end))), when


foreseeable = st.deferred(
    lambda: st.one_of(
        st.integers(1, 30).map(when_of("every")),
        st.lists(st.integers(1, 90), min_size=1, max_size=4).map(tuple).map(when_of("at_steps")),
        st.integers(1, 30).map(when_of("first_steps")),
        st.integers(1, 20).map(when_of("n_times")),
        st.builds(ExponentialWhen, start=st.integers(1, 30), factor=st.floats(1.01, 3)).map(when_of("exponential")),
        st.just(When(at_end=True)),
        st.lists(foreseeable, min_size=1, max_size=3).map(tuple).map(when_of("any")),
        st.lists(foreseeable, min_size=1, max_size=3).map(tuple).map(when_of("all")),
        foreseeable.map(when_of("not_")),
    )
)


@given(foreseeable, st.integers(1, 100), st.lists(st.tuples(st.integers(1, 99), st.integers(0, 40)), max_size=5))
def test_restarts_and_windows_change_nothing(when, end, kills):
    """G2, G3, G4, B1: any kills, each resumed some steps before, give the steps of an unbroken run."""
    start, fired = 0, []
    for killed_at, lost in [*kills, (end, 0)]:
        stop = min(max(killed_at, start), end)
        span, step = Span(start_step=start, end_step=end), start
        while step < stop:
            at = when.next_step(step, stop, span) or stop
            if when.is_due(Moment(after=step, step=at, span=span, ended=at == end)):
                fired.append(at)
            step = at
        if stop == end:
            break
        start = max(stop - lost, 0)
        fired = [step for step in fired if step <= start]  # as the journal of a run is rewound
    assert fired == due_steps(when, end)


@given(foreseeable, st.integers(0, 60), st.integers(1, 40))
def test_a_step_that_is_jumped_over_counts(when, after, jump):
    """B1: due when it crosses a step at which it is due, and only then."""
    span = Span(end_step=200)
    crossed = [s for s in range(after + 1, after + jump + 1) if when.next_step(s - 1, s, span) is not None]
    moment = Moment(after=after, step=after + jump, span=span)
    if "at_end=True" not in repr(when):  # which asks whether this is the end, wherever that is
        assert when.is_due(moment) is bool(crossed)
    assert when.next_step(after, after + jump, span) == (crossed[0] if crossed else None)


def test_first_steps_of_a_process_are_its_own():
    """B1: exactly N, after each start, for N = 1 too."""
    for count in (1, 2, 5):
        span = Span(start_step=30, end_step=100)
        own = When(first_steps_of_process=count)
        found = [s for s in range(31, 60) if own.is_due(Moment(after=s - 1, step=s, span=span))]
        assert found == list(range(31, 31 + count))


def test_n_times_without_a_known_end():
    """G3: at 128·2^k."""
    assert due_steps(When(n_times=5), 1500, ends_known=False) == [128, 256, 512, 1024]


@given(st.integers(1, 120), st.integers(0, 60), st.integers(1, 100), st.booleans())
def test_n_times_of_a_process_are_those_of_a_run_of_its_length(count, step, length, is_known):
    """G17, G3: from where it began, also where the end is unknown."""
    span, whole = Span(start_step=50, end_step=50 + length if is_known else None), Span(end_step=length)
    whole = whole if is_known else Span()
    expected = When(n_times=count).next_step(step, 500, whole)
    found = When(n_times_of_process=count).next_step(50 + step, 550, span)
    assert found == (None if expected is None else expected + 50)


@given(st.integers(1, 120), st.integers(1, 100))
def test_n_times_is_at_most_n_and_ends_with_the_run(count, end):
    """G3: spread evenly, always once at the last step."""
    steps = due_steps(When(n_times=count), end)
    assert len(steps) == min(count, end)
    assert steps[-1] == end
    gaps = [b - a for a, b in itertools.pairwise([0, *steps])]
    assert max(gaps) - min(gaps) <= 1


def test_every_seconds_counts_from_the_end_or_the_start():
    """G5: by default the action's own time does not count."""
    for measure_from, since_end, since_start, is_due in (
        (None, 9.9, 50, False),
        ("end", 10, 50, True),
        ("start", 0.1, 10, True),
        ("start", 9.9, 9.9, False),
    ):
        moment = Moment(after=4, step=5, since_end_seconds=since_end, since_start_seconds=since_start)
        assert When(every_seconds=10, measure_from=measure_from).is_due(moment) is is_due


def test_events_are_due_when_they_happen():
    """B1: and have no step of their own."""
    span = Span(end_step=100)
    for when, event in ((When(after_eval=True), "evaluated"), (When(after_summary=True), "summarized")):
        assert when.is_due(Moment(after=4, step=5, span=span, **{event: True}))
        assert not when.is_due(Moment(after=4, step=5, span=span))
        assert when.next_step(0, 100, span) is None


def test_events_and_steps_can_be_combined():
    """B1: an evaluation of a multiple of 100; every 10 steps unless one was just evaluated; once a minute at most."""
    span = Span(end_step=1000)

    def moment(step, **more):
        return Moment(after=step - 1, step=step, span=span, **more)

    both = When(all=(When(after_eval=True), When(every=100)))
    assert both.is_due(moment(200, evaluated=True))
    assert not both.is_due(moment(200))
    assert not both.is_due(moment(250, evaluated=True))
    assert both.next_step(0, 1000, span) == 100  # it may be due there
    other = When(all=(When(every=10), When(not_=When(after_eval=True))))
    assert other.is_due(moment(20))
    assert not other.is_due(moment(20, evaluated=True))
    slow = When(all=(When(every=10), When(every_seconds=60)))
    assert [slow.is_due(moment(20, since_end_seconds=s)) for s in (59, 60)] == [False, True]
    either = When(any=(When(every=10), When(after_eval=True)))
    assert either.is_due(moment(7, evaluated=True))
    assert either.next_step(0, 100, span) == 10
    assert When(not_=When(after_eval=True)).is_due(moment(7))
    assert When(not_=When(after_eval=True)).next_step(7, 100, span) == 8
    assert When(all=(When(after_eval=True), When(at_end=True))).next_step(0, 500, span) is None


def test_the_end_is_where_training_ends():
    """B1: also where nobody foresaw it."""
    moment = Moment(after=16, step=17)
    assert When(at_end=True).is_due(dataclasses.replace(moment, ended=True))
    assert not When(at_end=True).is_due(moment)


def test_what_cannot_be_due_is_refused_before_the_first_step():
    """G4, B1, N7: also where no file but Python code says it."""
    for when, message in (
        (When(any=(When(at_end=True), When(every=0))), "x.when.any[1].every: must be at least 1, got 0"),
        (When(not_=When(all=())), "x.when.not.all: must name at least one trigger"),
        (100, "action 'x': `when` is 100; it must be a When of official_trainer.config, such as When(every=100)"),
    ):
        action = Action()
        action.name, action.when = "x", when
        with pytest.raises((ConfigError, TypeError)) as caught:
            Schedule([action])
        assert message in str(caught.value)
