"""The stall watchdog: a function of time first, then the thread that watches, by a clock that the test moves."""

import dataclasses
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.config import RuntimeConfig
from official_trainer.runs.health.stall_report import LateReports, Stall
from official_trainer.runs.health.watchdog import FACTOR, Progress, Reading, Watchdog
from official_trainer.threads import has_ended

FLOOR_SECONDS, STARTUP_SECONDS = 100, 1000
CHILD_SECONDS = 120


def run_of(events, *, startup_seconds=STARTUP_SECONDS):
    """Returns the Progress and the time after `events`: (seconds since the one before, method, argument)."""
    progress, now = Progress(floor_seconds=FLOOR_SECONDS, startup_seconds=startup_seconds), 0
    for seconds, call, argument in events:
        now += seconds
        if call == "enter":
            progress.enter(argument, None, now)
        elif call == "beat":
            progress.beat(argument, now)
        else:
            progress.read(argument, now)
    return progress, now


def limit_after(events, **limits):
    """Returns how many seconds without progress are healthy after `events`: exactly so many, and not one more."""
    progress, now = run_of(events, **limits)
    stall = progress.stall(now + 10**9)
    last = now + 10**9 - stall.waited_seconds + stall.limit_seconds
    again, _ = run_of(events, **limits)
    assert again.stall(last) is None
    assert again.stall(last + 1) is not None
    return stall.limit_seconds


def window(step):
    return Reading(step=step, waiting_for_input=False)


def waiting(step):
    return Reading(step=step, waiting_for_input=True)


# The policy.

TRAIN = (0, "enter", "train")


@pytest.mark.parametrize(
    ("longest", "startup", "limit"),
    [(None, 1000, 1000), (None, 1, 100), (0, 1000, 100), (10, 1000, 100), (11, 1000, 110), (500, 1000, 5000)],
)
def test_limits(longest, startup, limit):
    """N12: the startup limit before anything is known, then ten times the longest gap, never below the floor."""
    events = [] if longest is None else [TRAIN, (longest, "beat", 1)]
    assert limit_after(events, startup_seconds=startup) == limit


@pytest.mark.parametrize(
    ("events", "limit"),
    [
        pytest.param([], 1000, id="nothing seen"),
        pytest.param([(900, "enter", "build")], 1000, id="each phase has a first time"),
        pytest.param([TRAIN, (50, "beat", 1)], 500, id="a beat ends the startup"),
        pytest.param([TRAIN, (50, "beat", 1), (1, "beat", 2)], 500, id="the longest gap counts, not the last"),
        pytest.param([TRAIN, (50, "beat", 1), (0, "enter", "save")], 1000, id="phases do not learn from each other"),
        pytest.param(
            [TRAIN, (50, "beat", 1), (0, "enter", "save"), (30, "enter", "train"), (1, "enter", "save")],
            300,
            id="a phase that was left is known",
        ),
        pytest.param([TRAIN, (0, "read", window(0)), (40, "read", window(1))], 400, id="a step that moved counts"),
        pytest.param([TRAIN, (0, "read", waiting(0)), (1, "read", window(0))], 1000, id="a batch ends no startup"),
        pytest.param(
            [TRAIN, (0, "read", Reading(step=0, detail=1)), (1, "read", Reading(step=0, detail=9))],
            1000,
            id="neither does work elsewhere, such as prefetching while the step compiles",
        ),
        pytest.param(
            [TRAIN, (5, "read", window(7)), (1, "beat", None), (30, "read", waiting(7)), (20, "read", window(8))],
            300,
            id="input and window are told apart: now window",
        ),
        pytest.param(
            [
                *(TRAIN, (5, "read", window(7)), (1, "beat", None), (30, "read", waiting(7)), (20, "read", window(8))),
                (1, "read", waiting(8)),
            ],
            200,
            id="input and window are told apart: now input",
        ),
        pytest.param(
            [TRAIN, (5, "read", window(7)), (60, "read", window(8)), (1, "read", None)],
            650,
            id="without information what was healthy anywhere in training is",
        ),
        pytest.param(
            [TRAIN, (0, "read", window(7)), (60, "read", window(8)), (1, "read", waiting(8))],
            600,
            id="input that never was waited for long enough to be seen",
        ),
        pytest.param(
            [(0, "read", Reading(step=0)), (5, "enter", "train"), (1, "read", Reading(step=9))],
            1000,
            id="what was read before a phase began says nothing about it",
        ),
    ],
)
def test_limit_of(events, limit):
    """N12: which limit holds after what was seen."""
    assert limit_after(events) == limit


def test_a_reading_that_differs_is_progress_and_one_that_does_not_is_none():
    """N12: the gap begins anew only when something changed, forwards or backwards."""
    same = [TRAIN, (0, "read", window(5)), (10, "read", window(6)), (90, "read", window(6)), (0, "read", None)]
    progress, now = run_of(same)
    assert progress.stall(now + 15).waited_seconds == 105
    progress, now = run_of([*same, (0, "read", window(4))])  # rolled back
    assert progress.stall(now + 15) is None


def test_a_stall_is_told_once_until_there_is_progress():
    """N12: whoever only looks on is not flooded, and what turned out healthy is learned."""
    progress, now = run_of([TRAIN, (1, "beat", 1)])
    assert progress.stall(now + 101).waited_seconds == 101
    assert progress.stall(now + 500) is None
    progress.beat(2, now + 500)
    assert progress.stall(now + 500 + 5000) is None
    assert progress.stall(now + 500 + 5001).longest_gap_seconds == 500


PHASES = st.sampled_from(["build", "restore", "train", "evaluate", "save", "export", "another"])
SECONDS = st.integers(0, 10**6)


@given(
    floor_seconds=SECONDS,
    startup_seconds=SECONDS,
    work=st.lists(st.tuples(PHASES, st.lists(st.integers(0, 1000), min_size=1, max_size=8)), max_size=8),
    looks=st.integers(1, 5),
)
def test_a_slow_healthy_run_is_never_a_stall(floor_seconds, startup_seconds, work, looks):
    """N12: not while each gap is within the startup limit at first, then within ten times the longest before."""
    progress, now, longest = Progress(floor_seconds=floor_seconds, startup_seconds=startup_seconds), 0, {}
    for phase, gaps in work:
        progress.enter(phase, None, now)
        for permille in gaps:  # of what is allowed; the last one ends with the phase
            known = longest.get(phase)
            allowed = max(floor_seconds, startup_seconds if known is None else FACTOR * known)
            gap = allowed * permille // 1000
            for look in range(1, looks + 1):
                assert progress.stall(now + gap * look // looks) is None
            now += gap
            longest[phase] = max(known or 0, gap)
            progress.beat(None, now)


READINGS = st.builds(
    Reading, step=st.none() | st.integers(0, 9), waiting_for_input=st.sampled_from([None, True, False])
)
EVENTS = st.one_of(
    st.tuples(SECONDS, st.just("enter"), PHASES),
    st.tuples(SECONDS, st.just("beat"), st.none()),
    st.tuples(SECONDS, st.just("read"), st.none() | READINGS),
)


@given(st.lists(EVENTS, max_size=20))
def test_when_progress_ends_there_is_a_stall_in_the_end(events):
    """N12: at an instant that the longest gap bounds, whatever the run did before."""
    progress, now = run_of(events)
    longest = max((seconds for seconds, *_ in events), default=0) * max(len(events), 1)
    stall = progress.stall(now + max(STARTUP_SECONDS, FACTOR * longest) + 1)
    assert stall is not None
    assert stall.waited_seconds > stall.limit_seconds >= FLOOR_SECONDS


# What a stall says.


def stall_in(activity, *, longest=3.25, step=120):
    return Stall(
        activity=activity,
        waited_seconds=612.4,
        limit_seconds=600.0,
        longest_gap_seconds=longest,
        step=step,
    )


def test_a_stall_says_what_hangs_and_which_field_raises_the_limit():
    """N12: a message that mends."""
    assert str(stall_in("input")) == (
        "no progress for 612 s while waiting for the next batch at step 120; the limit is 600 s, and the longest gap "
        "before was 3.2 s.\n"
        "Usually the input pipeline itself waits for data: look at its files, at the network, at the dispatcher "
        "and the data workers if it has a tf.data service, and below at the stacks of threads in generators and Python "
        "functions of tf.data.\n"
        "If it was only slow, raise runtime.stall_floor_seconds; otherwise mend it, and the same command continues "
        "from the last checkpoint."
    )


@pytest.mark.parametrize(
    ("activity", "words"),
    [
        ("start", ["while starting", "import"]),
        ("build", ["while building the run", "device"]),
        ("restore", ["while restoring a checkpoint", "object store"]),
        ("follow", ["while looking for a checkpoint", "object store"]),
        ("window", ["while computing training steps", "a collective operation hangs"]),
        ("train", ["while training", "input pipeline", "collective"]),
        ("evaluate", ["while evaluating", "validation data"]),
        ("save", ["while saving a checkpoint", "the storage of model_dir does not answer", "disk", "object store"]),
        ("export", ["while exporting", "storage"]),
        ("drain", ["while in phase drain", "stacks"]),
    ],
)
def test_each_activity_has_its_advice(activity, words):
    """N12: where to look first."""
    assert [word for word in words if word not in str(stall_in(activity))] == []
    first = str(stall_in(activity, longest=None, step=None))  # there the floor would not help
    assert "runtime.stall_startup_seconds" in first and "runtime.stall_floor_seconds" not in first


# The watching, by a clock that the test moves.


@pytest.mark.parametrize(
    ("activity", "others", "code"),
    [
        ("input", (), 5),
        ("input", ("worker 1 does not answer",), 5),
        ("window", (), 5),
        ("window", ("worker 1 is waiting for the next batch",), 75),
        ("evaluate", (), 5),
        ("evaluate", ("worker 1 does not answer",), 75),
        ("peers", (), 75),
    ],
)
def test_who_hangs_and_who_waits_for_it(activity, others, code):
    """N12: the exit code tells them apart where that can be told."""
    assert dataclasses.replace(stall_in(activity), others=others).exit_code == code


def test_others_are_waited_for_so_long_and_no_longer():
    """N12: in a step, once such steps were done; not while this process waits for its own data."""
    events = [(1, "enter", "train"), (1, "read", window(1)), (1, "read", window(2))]
    progress, now = run_of(events)
    assert progress.stall(now + 50, patience_seconds=50) is None
    stall = progress.stall(now + 51, patience_seconds=50)
    assert (stall.exit_code, stall.limit_seconds) == (75, 50)
    assert "raise runtime.collective_timeout_seconds" in str(stall)
    progress, now = run_of([*events, (1, "read", waiting(2))])
    assert progress.stall(now + 51, patience_seconds=50) is None


@dataclasses.dataclass
class Clock:
    now: float = 1e6

    def __call__(self):
        return self.now


def watchdog_on(clock, probe=None, *, on_stall=None, floor_seconds=100, startup_seconds=1000):
    stalls = []
    runtime = RuntimeConfig(stall_floor_seconds=floor_seconds, stall_startup_seconds=startup_seconds)
    on_stall = on_stall or stalls.append
    watchdog = Watchdog(runtime, LateReports("run"), on_stall=lambda stall, *_: on_stall(stall), clock=clock)
    if probe is not None:
        watchdog.observe(probe)
    return watchdog, stalls


def watch(watchdog, clock, seconds):
    for _ in range(round(seconds / watchdog.poll_seconds)):
        clock.now += watchdog.poll_seconds
        watchdog.poll()


def test_a_stall_is_noticed_in_the_phase_where_it_is():
    """N12: phase, step, how long, and what was healthy before."""
    clock = Clock()
    watchdog, stalls = watchdog_on(clock)
    watchdog.enter("train", 7)
    watch(watchdog, clock, 40)
    watchdog.beat(8)
    watch(watchdog, clock, 399)
    assert stalls == []
    watch(watchdog, clock, 3)
    assert stalls == [Stall(activity="train", waited_seconds=401, limit_seconds=400, longest_gap_seconds=40, step=8)]


def test_looks_are_frequent_enough_for_the_floor():
    """N12: each second, or twenty times in the floor."""
    assert watchdog_on(Clock(), floor_seconds=600)[0].poll_seconds == 1
    assert watchdog_on(Clock(), floor_seconds=4)[0].poll_seconds == 0.2


def test_time_in_which_the_process_did_not_run_is_no_stall():
    """N12: SIGSTOP, or a laptop that sleeps: the watching thread slept too."""
    clock = Clock()
    watchdog, stalls = watchdog_on(clock)
    watchdog.enter("train")
    watchdog.beat()
    for _ in range(10):
        watch(watchdog, clock, 5)
        clock.now += 100_000
    watchdog.poll()
    assert stalls == []
    watch(watchdog, clock, 50)
    assert len(stalls) == 1


def test_a_pause_does_not_count_as_a_healthy_gap():
    """N12: else a night's sleep would raise the limit to days."""
    clock = Clock()
    watchdog, stalls = watchdog_on(clock)
    watchdog.enter("train")
    clock.now += 100_000
    watchdog.beat()
    watch(watchdog, clock, 102)
    assert [stall.limit_seconds for stall in stalls] == [100]


def test_a_watchdog_that_was_stopped_is_silent():
    """N12: the run has ended; what happens after it is nobody's stall."""
    clock = Clock()
    watchdog, stalls = watchdog_on(clock)
    watchdog.stop()
    watch(watchdog, clock, 5000)
    assert stalls == []


def test_a_last_look_after_the_end_asks_nothing():
    """N12: the thread may have ended its pause as the watchdog was stopped."""
    asked = []
    watchdog, _ = watchdog_on(Clock(), probe=lambda: asked.append("step") or {"step": 1})
    watchdog.stop()
    watchdog.poll()
    assert asked == []


def test_a_report_that_fails_does_not_end_the_watch():
    """N12: the next stall is noticed as well."""
    clock, calls = Clock(), []

    def fail(stall):
        calls.append(stall)
        raise OSError("no")

    watchdog, _ = watchdog_on(clock, on_stall=fail)
    for phase in ("train", "save"):
        watchdog.enter(phase)
        watch(watchdog, clock, 1002)
    assert [stall.activity for stall in calls] == ["train", "save"]


def look(watchdog, clock):
    """Polls once, and waits until the probe has answered what was asked then."""
    clock.now += watchdog.poll_seconds
    watchdog.poll()
    assert has_ended(watchdog._prober._call, CHILD_SECONDS)


def test_what_the_probe_sees_is_progress_and_tells_input_from_window():
    """N12: nobody has to call into a long window."""
    clock, seen = Clock(), {"step": 0, "waiting_for_input": False}
    watchdog, stalls = watchdog_on(clock, probe=lambda: seen, startup_seconds=100)
    watchdog.enter("train")
    for step in range(400):
        seen = {"step": step // 2, "waiting_for_input": bool(step % 2)}
        look(watchdog, clock)
    assert stalls == []
    for _ in range(110):
        look(watchdog, clock)
    watchdog.stop()
    assert [(stall.activity, stall.step) for stall in stalls] == [("input", 199)]


@pytest.mark.parametrize("way", ["blocks", "fails", "knows nothing", "is not there yet"])
def test_a_probe_without_an_answer_holds_up_nobody(way):
    """N12: a device that hangs may not answer questions either."""
    clock, never = Clock(), threading.Event()

    def probe():
        if way == "blocks":
            never.wait()
        if way == "fails":
            raise RuntimeError("no step yet")
        return {}

    watchdog, stalls = watchdog_on(clock, probe=None if way == "is not there yet" else probe)
    watchdog.enter("train")
    watchdog.beat()
    watch(watchdog, clock, 102)
    watchdog.stop()
    never.set()
    assert [(stall.activity, stall.limit_seconds) for stall in stalls] == [("train", 100)]


def test_a_probe_that_failed_is_asked_again():
    """N12: what it sees counts from then on."""
    clock, steps = Clock(), iter(range(1000))

    def probe():
        step = next(steps)
        if step < 5:
            raise RuntimeError("no step yet")
        return {"step": step}

    watchdog, stalls = watchdog_on(clock, probe=probe, startup_seconds=100)
    watchdog.enter("train")
    for _ in range(300):
        look(watchdog, clock)
    watchdog.stop()
    assert stalls == []


def test_an_answer_from_before_a_phase_says_nothing_about_it():
    """N12: else the step that a restore sets would look like the first step of training."""
    clock, seen = Clock(), {"step": 0}
    watchdog, stalls = watchdog_on(clock, probe=lambda: seen)
    watchdog.enter("restore")
    look(watchdog, clock)
    seen = {"step": 5000}
    watchdog.enter("train", 5000)
    for _ in range(900):
        look(watchdog, clock)
    watchdog.stop()
    assert stalls == []
