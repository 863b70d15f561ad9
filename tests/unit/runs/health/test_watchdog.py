"""The watchdog: what is progress, how long a time without it is healthy, what a stall says. A poll is a second."""

import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.config import RuntimeConfig
from official_trainer.distributed.cluster import Cluster
from official_trainer.runs.health.watchdog import FACTOR, WAITING, Watchdog

FLOOR_SECONDS, STARTUP_SECONDS = 100, 1000
TWO_WORKERS = Cluster(addresses={"worker": ("a:1", "b:1")}, role="worker", index=0, source="TF_CONFIG")


class Watched:
    """A watchdog that is polled by hand; its `stalls` do not end the process."""

    def __init__(self, *, floor_seconds=FLOOR_SECONDS, startup_seconds=STARTUP_SECONDS, trainer=None, **options):
        runtime = RuntimeConfig(
            stall_floor_seconds=floor_seconds, stall_startup_seconds=startup_seconds, collective_timeout_seconds=50
        )
        self.stalls = []
        self.watchdog = Watchdog(runtime, "run", end=lambda *stall: self.stalls.append(stall), **options)
        self.enter, self.beat = self.watchdog.enter, self.watchdog.beat
        if trainer is not None:
            self.watchdog.observe(trainer)

    def wait(self, seconds):
        for _ in range(round(seconds / self.watchdog.poll_seconds)):
            self.watchdog.poll()
        return self

    def limit(self):
        """Returns after how many healthy seconds there is a stall, which it waits for."""
        seconds = 0
        while not self.stalls:
            self.wait(1)
            seconds += 1
        return seconds - 1


class Trainer:
    """What the watchdog sees of a trainer: the clock of its steps, and how it takes part in a process group."""

    def __init__(self):
        self.mark, self.is_waiting, self.on_part = 0.0, False, None
        self.means_waiting = lambda mark: self.is_waiting
        self.context = types.SimpleNamespace(clock=self)
        self.process_group = types.SimpleNamespace(is_waiting=False, after_parts=self._take)

    def _take(self, on_part):
        self.on_part = on_part


@pytest.fixture(autouse=True)
def without_dumps(monkeypatch):
    """Polls by hand are no thread that looks: nothing is written after them."""
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda *arguments, **options: None)


def test_limits():
    """N12: the limit of the start-up until the phase has moved, then ten times the longest time, or the floor."""
    limits = [(None, 1000, 1000), (None, 1, 100), (0, 1000, 100), (10, 1000, 100), (11, 1000, 110), (500, 1000, 5000)]
    for longest, startup, limit in limits:
        watched = Watched(startup_seconds=startup)
        watched.enter("train")
        if longest is not None:
            watched.wait(longest).beat(1)
            watched.beat(2)
        assert watched.limit() == limit, (longest, startup)


def test_each_phase_has_a_first_time():
    """N12: the first save or evaluation takes what it takes; the next one is known."""
    watched = Watched()
    watched.wait(900).enter("train")
    watched.wait(50).beat(1)
    watched.enter("save")
    watched.wait(999).enter("train")
    watched.wait(499).enter("evaluate")
    assert watched.limit() == 1000
    assert "raise runtime.stall_startup_seconds" in watched.stalls[0][0]


def test_a_first_batch_that_does_not_come_is_warned_of_once(caplog):
    """N12: after a minute, long before it is a stall; not while a first step compiles."""
    watched = Watched(trainer=(trainer := Trainer()))
    watched.enter("train")
    watched.wait(200)
    assert not caplog.messages
    trainer.is_waiting = True
    watched.wait(300)
    assert caplog.messages == [
        "no batch has come for 3 min 21 s. A shuffle may still fill its buffer, or a disk or a network be slow; but "
        "data that repeats, and of which a filter leaves nothing, never has a batch. After 16 min 40 s the process "
        "ends (runtime.stall_startup_seconds)"
    ]


def test_whoever_waits_for_the_chief_may_wait():
    """N12: a worker has nothing to do while the chief saves."""
    watched = Watched()
    watched.enter(WAITING)
    assert watched.wait(10**5).stalls == []


SECONDS = st.integers(0, 300)


@given(
    floor_seconds=st.integers(20, 300),
    startup_seconds=st.integers(1, 300),
    work=st.lists(
        st.tuples(
            st.sampled_from(["train", "evaluate", "save"]), st.lists(st.integers(0, 1000), min_size=1, max_size=3)
        ),
        max_size=4,
    ),
)
def test_a_slow_healthy_run_is_never_a_stall_and_its_end_always_is(floor_seconds, startup_seconds, work):
    """N12: not while the first time of a phase is within its limit, and others within ten times the longest before."""
    watched, longest = Watched(floor_seconds=floor_seconds, startup_seconds=startup_seconds), {}
    for phase, times in work:
        watched.enter(phase)
        for permille in times:  # of what is allowed
            before = longest.get(phase)
            allowed = max(floor_seconds, startup_seconds if before is None else FACTOR * before)
            seconds = min(allowed, 2000) * permille // 1000
            assert watched.wait(seconds).stalls == []
            longest[phase] = max(before or 0, seconds)
            watched.beat()
    assert watched.limit() >= floor_seconds


def test_the_batches_of_a_long_window_and_the_parts_of_an_evaluation_are_progress():
    """N12: a window may be long that was short before; a batch shows nothing about how long it takes to compile."""
    trainer = Trainer()
    watched = Watched(trainer=trainer)
    watched.enter("train", 7)
    trainer.mark = 1.0
    assert watched.wait(999).stalls == []
    watched.beat(8)
    for _ in range(5):
        trainer.mark += 1.0
        assert watched.wait(900).stalls == []
    watched.enter("evaluate", 8)
    for _ in range(5):
        assert watched.wait(90).stalls == []
        trainer.on_part()
    assert watched.limit() == 900
    assert "while evaluating at step 8" in watched.stalls[0][0]


@pytest.mark.parametrize(
    ("doing", "cluster", "code", "words"),
    [
        (
            "input",
            None,
            5,
            ["waiting for the next batch at step 8", "(runtime.stall_floor_seconds, or 10 times"],
        ),
        ("input", TWO_WORKERS, 5, ["waiting for the next batch at step 8", "raise runtime.stall_floor_seconds"]),
        ("train", None, 5, ["computing training steps at step 8", "a collective operation hangs"]),
        (
            "train",
            TWO_WORKERS,
            75,
            ["limit is 50 s (runtime.collective_timeout_seconds)", "the one that hangs ends with 5"],
        ),
        ("peers", TWO_WORKERS, 75, ["waiting for the run's other processes"]),
    ],
)
def test_who_hangs_and_who_waits_for_it(doing, cluster, code, words):
    """N12, T16: the exit code tells them apart, and the message says what to look at and what to raise."""
    trainer = Trainer()
    watched = Watched(trainer=trainer, cluster=cluster)
    watched.enter("train", 7)
    watched.wait(1).beat(8)
    trainer.is_waiting, trainer.process_group.is_waiting = doing == "input", doing == "peers"
    assert watched.limit() == (50 if (doing, cluster) == ("train", TWO_WORKERS) else 100)
    ((message, exit_code),) = watched.stalls
    assert exit_code == code
    assert [word for word in words if word not in message] == []


def test_a_stall_says_what_hangs_and_which_field_raises_the_limit():
    """N12: a message that mends."""
    watched = Watched()
    watched.enter("save", 120)
    watched.wait(2).beat(120)
    assert watched.limit() == 100
    assert watched.stalls[0][0] == (
        "no progress for 1 min 41 s while saving a checkpoint at step 120; the limit is 1 min 40 s "
        "(runtime.stall_floor_seconds, or 10 times the longest time before).\n"
        "Usually the storage of model_dir does not answer, or is very slow: look at the disk, the mount or the object "
        "store, and the network to it.\n"
        "If it was only slow, raise runtime.stall_floor_seconds; otherwise mend it, and the same command continues "
        "from the last checkpoint."
    )


ADVICE = {
    "start": ("while starting", "import"),
    "build": ("while building the run", "device"),
    "restore": ("while restoring a checkpoint", "object store"),
    "follow": ("while looking for a checkpoint", "object store"),
    "evaluate": ("while evaluating", "validation data", "device"),
    "export": ("while exporting", "disk"),
    "predict": ("while in phase predict", "stacks"),
}


def test_each_phase_has_its_advice():
    """N12: where to look first."""
    for phase, words in ADVICE.items():
        watched = Watched()
        watched.enter(phase)
        watched.limit()
        assert [word for word in words if word not in watched.stalls[0][0]] == []


def test_polls_are_frequent_enough_for_the_floor():
    """N12: each second, or twenty times in the floor."""
    assert Watched(floor_seconds=600).watchdog.poll_seconds == 1
    assert Watched(floor_seconds=4).watchdog.poll_seconds == 0.2


def test_a_watchdog_whose_block_has_ended_is_silent():
    """N12: the run has ended; what happens after it is nobody's stall."""
    watched = Watched()
    with watched.watchdog:
        watched.enter("train")
    assert watched.wait(5000).stalls == []


def test_without_a_floor_nothing_is_a_stall():
    """N12: it can be turned off."""
    watched = Watched(floor_seconds=None)
    watched.enter("train")
    assert watched.wait(5000).stalls == []
