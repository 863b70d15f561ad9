"""When something is due: tables of steps, and that restarts and windows change none of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer import triggers
from official_trainer.triggers import (
    AfterEval,
    AfterSummary,
    AllOf,
    AnyOf,
    AtEnd,
    AtSteps,
    Every,
    EverySeconds,
    Exponential,
    FirstSteps,
    Moment,
    Not,
    NTimes,
    Span,
    Trigger,
)

STEPS = [
    # trigger, last step, steps at which it is due
    (Every(10), 35, [10, 20, 30]),
    (Every(1), 3, [1, 2, 3]),
    (AtSteps((7, 3, 7, 90)), 50, [3, 7]),
    (FirstSteps(3), 50, [1, 2, 3]),
    (FirstSteps(2, of_process=True), 50, [1, 2]),
    (NTimes(10), 100, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
    (NTimes(3), 10, [4, 7, 10]),
    (NTimes(10), 4, [1, 2, 3, 4]),
    (NTimes(1), 77, [77]),
    (Exponential(100, 1.2), 1000, [100, 220, 364, 537, 745, 995]),
    (Exponential(1, 1.2), 16, [1, 3, 6, 10, 15]),
    (Exponential(1, 2.0), 40, [1, 3, 7, 15, 31]),
    (AtEnd(), 33, [33]),
    (AnyOf((Every(20), AtSteps((5, 20)))), 45, [5, 20, 40]),
    (AnyOf((Every(20), AtEnd())), 45, [20, 40, 45]),
    (AllOf((Every(4), Every(6))), 40, [12, 24, 36]),
    (AllOf((Every(10), Not(FirstSteps(20)))), 45, [30, 40]),
    (AllOf((FirstSteps(5), AtSteps((9,)))), 45, []),
    (Not(Every(2)), 7, [1, 3, 5, 7]),
    (Not(Not(Every(3))), 7, [3, 6]),
    (AnyOf((AllOf((Every(10), Not(Every(20)))), AtSteps((1,)))), 40, [1, 10, 30]),
]


def due_steps(trigger, end, *, stops=(), ends_known=True):
    """Returns the steps at which `trigger` is due in a run whose windows end where it says, and at `stops`."""
    span, found, step = Span(end_step=end if ends_known else None), [], 0
    while step < end:
        until = min([stop for stop in stops if stop > step], default=end)
        reached = trigger.next_step(step, min(until, end), span) or min(until, end)
        if trigger.is_due(Moment(after=step, step=reached, span=span, ended=reached == end)):
            found.append(reached)
        step = reached
    return found


@pytest.mark.parametrize(("trigger", "end", "steps"), STEPS, ids=[str(trigger) for trigger, _, _ in STEPS])
def test_due_at_these_steps(trigger, end, steps):
    """G2, G3, G4, B1: the same steps whether asked step by step or only where a window ends."""
    assert due_steps(trigger, end) == steps
    assert due_steps(trigger, end, stops=range(1, end)) == steps
    assert not trigger.is_due(Moment(after=-1, step=0, span=Span(end_step=end)))


foreseeable = st.deferred(
    lambda: st.one_of(
        st.integers(1, 30).map(Every),
        st.lists(st.integers(1, 90), min_size=1, max_size=4).map(tuple).map(AtSteps),
        st.integers(1, 30).map(FirstSteps),
        st.integers(1, 20).map(NTimes),
        st.builds(Exponential, st.integers(1, 30), st.floats(1.01, 3)),
        st.just(AtEnd()),
        st.lists(foreseeable, min_size=1, max_size=3).map(tuple).map(AnyOf),
        st.lists(foreseeable, min_size=1, max_size=3).map(tuple).map(AllOf),
        foreseeable.map(Not),
    )
)


@given(foreseeable, st.integers(1, 100), st.lists(st.tuples(st.integers(1, 99), st.integers(0, 40)), max_size=5))
def test_restarts_and_windows_change_nothing(trigger, end, kills):
    """G2, G3, G4, B1: any kills, each resumed some steps before, give the steps of an unbroken run."""
    start, fired = 0, []
    for killed_at, lost in [*kills, (end, 0)]:
        stop = min(max(killed_at, start), end)
        span, step = Span(start_step=start, end_step=end), start
        while step < stop:
            at = trigger.next_step(step, stop, span) or stop
            if trigger.is_due(Moment(after=step, step=at, span=span, ended=at == end)):
                fired.append(at)
            step = at
        if stop == end:
            break
        start = max(stop - lost, 0)
        fired = [step for step in fired if step <= start]  # as the journal of a run is rewound
    assert fired == due_steps(trigger, end)


@given(foreseeable, st.integers(0, 60), st.integers(1, 40))
def test_a_step_that_is_jumped_over_counts(trigger, after, jump):
    """B1: due when it crosses a step at which it is due, and only then."""
    span = Span(end_step=200)
    crossed = [s for s in range(after + 1, after + jump + 1) if trigger.next_step(s - 1, s, span) is not None]
    moment = Moment(after=after, step=after + jump, span=span)
    if "AtEnd" not in repr(trigger):  # which asks whether this is the end, wherever that is
        assert trigger.is_due(moment) is bool(crossed)
    assert trigger.next_step(after, after + jump, span) == (crossed[0] if crossed else None)


def test_first_steps_of_a_process_are_its_own():
    """B1: exactly N, after each start, for N = 1 too."""
    for count in (1, 2, 5):
        span = Span(start_step=30, end_step=100)
        own = FirstSteps(count, of_process=True)
        found = [s for s in range(31, 60) if own.is_due(Moment(after=s - 1, step=s, span=span))]
        assert found == list(range(31, 31 + count))


def test_n_times_without_a_known_end():
    """G3: at 128·2^k."""
    assert due_steps(NTimes(5), 1500, ends_known=False) == [128, 256, 512, 1024]


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_n_times_of_a_process_are_those_of_a_run_of_its_length(count):
    """G17, G3: from where it began, also where the end is unknown."""
    for end in (110, None):
        span, whole = Span(start_step=50, end_step=end), Span(end_step=None if end is None else end - 50)
        for step in range(60):
            expected = NTimes(count).next_step(step, 500, whole)
            found = NTimes(count, of_process=True).next_step(50 + step, 550, span)
            assert found == (None if expected is None else expected + 50)


@pytest.mark.parametrize("count", [1, 3, 7, 10, 99, 100, 101])
@pytest.mark.parametrize("end", [1, 2, 10, 97, 100])
def test_n_times_is_at_most_n_and_ends_with_the_run(count, end):
    """G3: spread evenly, always once at the last step."""
    steps = due_steps(NTimes(count), end)
    assert len(steps) == min(count, end)
    assert steps[-1] == end
    gaps = [b - a for a, b in itertools.pairwise([0, *steps])]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("measure_from", "since_end", "since_start", "is_due"),
    [("end", 9.9, 50, False), ("end", 10, 50, True), ("start", 0.1, 10, True), ("start", 9.9, 9.9, False)],
)
def test_every_seconds_counts_from_the_end_or_the_start(measure_from, since_end, since_start, is_due):
    """G5: by default the action's own time does not count."""
    moment = Moment(after=4, step=5, since_end_seconds=since_end, since_start_seconds=since_start)
    assert EverySeconds(10, measure_from).is_due(moment) is is_due


def test_events_are_due_when_they_happen():
    """B1: and have no step of their own."""
    span = Span(end_step=100)
    for trigger, event in ((AfterEval(), "evaluated"), (AfterSummary(), "summarized")):
        assert trigger.is_due(Moment(after=4, step=5, span=span, **{event: True}))
        assert not trigger.is_due(Moment(after=4, step=5, span=span))
        assert trigger.next_step(0, 100, span) is None


def test_events_and_steps_can_be_combined():
    """B1: an evaluation of a multiple of 100; every 10 steps unless one was just evaluated; once a minute at most."""
    span = Span(end_step=1000)

    def moment(step, **more):
        return Moment(after=step - 1, step=step, span=span, **more)

    both = AllOf((AfterEval(), Every(100)))
    assert both.is_due(moment(200, evaluated=True))
    assert not both.is_due(moment(200))
    assert not both.is_due(moment(250, evaluated=True))
    assert both.next_step(0, 1000, span) == 100  # it may be due there
    other = AllOf((Every(10), Not(AfterEval())))
    assert other.is_due(moment(20))
    assert not other.is_due(moment(20, evaluated=True))
    slow = AllOf((Every(10), EverySeconds(60)))
    assert [slow.is_due(moment(20, since_end_seconds=s)) for s in (59, 60)] == [False, True]
    either = AnyOf((Every(10), AfterEval()))
    assert either.is_due(moment(7, evaluated=True))
    assert either.next_step(0, 100, span) == 10
    assert Not(AfterEval()).is_due(moment(7))
    assert Not(AfterEval()).next_step(7, 100, span) == 8
    assert AllOf((AfterEval(), AtEnd())).next_step(0, 500, span) is None


@pytest.mark.parametrize("step", [17, 50])
def test_the_end_is_where_training_ends(step):
    """B1: also where nobody foresaw it."""
    assert AtEnd().is_due(Moment(after=step - 1, step=step, span=Span(end_step=None), ended=True))
    assert not AtEnd().is_due(Moment(after=step - 1, step=step, span=Span(end_step=None)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Every(0), "every is 0; it must be at least 1"),
        (lambda: AtSteps((3, 0)), r"at_steps is \(3, 0\); it must be steps from 1 on"),
        (lambda: FirstSteps(0), "first_steps is 0; it must be at least 1"),
        (lambda: FirstSteps(-1, of_process=True), "first_steps_of_process is -1; it must be at least 1"),
        (lambda: NTimes(0), "n_times is 0; it must be at least 1"),
        (lambda: Exponential(0, 1.2), "exponential.start is 0; it must be at least 1"),
        (lambda: Exponential(10, 1.0), "exponential.factor is 1.0; it must be greater than 1"),
        (lambda: EverySeconds(0), "every_seconds is 0; it must be greater than 0"),
        (lambda: AnyOf(()), "any is nothing; it must be at least one trigger"),
        (lambda: AllOf(()), "all is nothing; it must be at least one trigger"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused(build, message):
    """G4, B1: where it is written, not where it would hang."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        build()


@pytest.mark.parametrize(
    "trigger", [value for value in vars(triggers).values() if isinstance(value, type) and issubclass(value, Trigger)]
)
def test_triggers_are_values(trigger):
    """B1: frozen, equal by what they say, and usable as keys; by discovery."""
    if trigger.__name__.startswith("_") or trigger is Trigger:
        return
    examples = [example for example, _, _ in STEPS] + [AfterEval(), AfterSummary(), EverySeconds(5)]
    (example, *_) = [example for example in examples if type(example) is trigger]
    assert {example: 1}[example] == 1
    with pytest.raises(AttributeError):
        example.steps = 3
