"""Profiles: of exactly the steps that were asked for, on demand too, and the run is as it is without."""

import pathlib

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.profile import FILE, Profile, ProfileConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.config import When
from tests.support.action_runs import do
from tests.support.runs import differences


def profiles(model_dir, directory="train"):
    return sorted(pathlib.Path(model_dir, directory, "plugins", "profile").glob("*/*.xplane.pb"))


def steps_in(path):
    """Returns how many steps a profile has: each takes one batch from the iterator."""
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    events = [
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    ]
    assert any("loop" in event for event in events)  # the window
    return events.count("IteratorGetNextOp::DoCompute")


def is_running():
    try:
        tf.profiler.experimental.start("unused")
    except tf.errors.AlreadyExistsError:
        return True
    tf.profiler.experimental.stop(save=False)
    return False


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    model_dir = str(tmp_path_factory.mktemp("plain") / "run")
    do(model_dir)
    return model_dir


def test_a_profile_has_exactly_the_steps_asked_for_and_changes_nothing(model_dir, plain):
    """N24: three steps after step 11, where TensorBoard looks; weights, rows and checkpoints are the same bits."""
    do(model_dir, "trainer.actions=[{type: profile, when: {at_steps: [11]}, steps: 3}]")
    (path,) = profiles(model_dir)
    assert steps_in(path) == 3
    assert not is_running()
    assert differences(model_dir, plain) == []


def test_a_run_that_fails_leaves_no_profiler_on(model_dir, monkeypatch):
    """N24: what was profiled until then is written."""

    def fail(trainer, *args):
        raise RuntimeError("no evaluation")

    monkeypatch.setattr("official_trainer.engine.trainer.Trainer.evaluate", fail)
    with pytest.raises(RuntimeError, match="no evaluation"):
        do(model_dir, "trainer.actions=[{type: profile, when: {at_steps: [19]}, steps: 50}]")
    assert len(profiles(model_dir)) == 1
    assert not is_running()


# With a clock.

NEVER = When(at_steps=(1000,))


class Clock:
    """Moves on by itself, a second each time it is read."""

    def __init__(self, step_seconds=1.0):
        self.now, self.step_seconds = 0.0, step_seconds

    def __call__(self):
        self.now += self.step_seconds
        return self.now


class Profiler:
    """Writes down when the profiler is started and stopped."""

    def __init__(self):
        self.step, self.log, self.looks = 0, [], 0

    def start(self, logdir):
        self.log.append(("start", self.step))

    def stop(self):
        self.log.append(("stop", self.step))


@pytest.fixture
def profiler(monkeypatch):
    fake = Profiler()
    monkeypatch.setattr("tensorflow.profiler.experimental.start", fake.start)
    monkeypatch.setattr("tensorflow.profiler.experimental.stop", fake.stop)
    return fake


class Steps:
    """A schedule with one profile, called after windows of given steps."""

    def __init__(self, profiler, model_dir, when=NEVER, **options):
        self.clock = Clock(step_seconds=0.0)
        self.profiler = profiler
        action = Profile(ProfileConfig(**options), clock=self.clock)
        action.when = when
        self.schedule = Schedule([action], clock=self.clock)
        self.run = Run(state=LoopState(end_step=100), trainer=None, model_dir=str(model_dir), tracker=None)
        self.schedule.start(self.run)

    def to(self, step, seconds=0.0):
        """Runs windows to `step`, each as far as the schedule lets it."""
        while self.run.step < step:
            found = self.schedule.next_step(self.run.step, step)
            self.run.state.step = self.profiler.step = step if found is None else found
            self.clock.now += seconds
            self.schedule.step(summarized=False, ended=self.run.step == 100)


def test_the_file_starts_a_profile_once_and_is_removed(profiler, tmp_path):
    """N24: on demand: a few seconds later, of as many steps, and no window is cut for looking."""
    steps = Steps(profiler, tmp_path, steps=4)
    (tmp_path / FILE).touch()
    steps.to(10, seconds=1.0)
    assert profiler.log == []
    steps.to(20, seconds=2.5)
    assert profiler.log == [("start", 20)]
    assert not (tmp_path / FILE).exists()
    steps.to(60, seconds=5.0)
    assert profiler.log == [("start", 20), ("stop", 24)]


def test_the_file_is_looked_for_every_two_seconds_at_most(profiler, tmp_path, monkeypatch):
    """N24: a run directory may be far away."""
    looks = []
    monkeypatch.setattr("official_trainer.files.exists", lambda path: looks.append(path))
    steps = Steps(profiler, tmp_path)
    for step in range(1, 81):
        steps.to(step, seconds=0.1)
    assert 3 <= len(looks) <= 4


def test_a_file_that_comes_while_a_profile_runs_asks_for_the_next(profiler, tmp_path):
    """N24: one at a time; nothing that was asked for is lost."""
    steps = Steps(profiler, tmp_path, When(at_steps=(10, 12)), steps=5)
    steps.to(10, seconds=3.0)
    (tmp_path / FILE).touch()
    steps.to(15, seconds=3.0)
    assert profiler.log == [("start", 10), ("stop", 15), ("start", 15)]
    steps.to(30)
    assert profiler.log[3:] == [("stop", 20)]


def test_a_plan_by_the_clock_is_kept_beside_the_looks(profiler, tmp_path):
    """N24: every thirty seconds means thirty, not the two of the looks."""
    steps = Steps(profiler, tmp_path, When(every_seconds=30.0), steps=1)
    for step in range(2, 100, 2):
        steps.to(step, seconds=2.5)
    begun = [step for what, step in profiler.log if what == "start"]
    assert begun[0] in range(24, 29)
    assert len(begun) == 4


def test_going_back_stops_it(profiler, tmp_path):
    """N24, N2: the step at which it was to stop may never come."""
    steps = Steps(profiler, tmp_path, When(at_steps=(10,)), steps=50)
    steps.to(20)
    steps.run.state.step = 5
    steps.schedule.restore({})
    assert profiler.log == [("start", 10), ("stop", 20)]
    steps.to(11)
    assert profiler.log[2:] == [("start", 10)]


def test_somebody_elses_profiler_is_named_and_left_alone(tmp_path):
    """N24: there is one in a process."""
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        steps = Steps(Profiler(), tmp_path / "run", When(at_steps=(10,)))
        steps.schedule.actions[0].on_error = "fail"
        with pytest.raises(
            Exception, match=r"steps after 10 cannot be profiled, because other code has started a profiler"
        ):
            steps.to(10)
        steps.schedule.end(None)
    finally:
        tf.profiler.experimental.stop()
    assert profiles(tmp_path / "other", ".")
    assert not profiles(tmp_path / "run")
