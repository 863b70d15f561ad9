"""What every tracker does: the packaged ones, found by their files, and those that a run always has."""

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import official_trainer
from official_trainer.config import TrackerConfig
from official_trainer.tracking import Histogram, Image, Media, Outcome, Text, Tracker, Trackers
from official_trainer.tracking.console import Console
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.media import size_bytes
from official_trainer.tracking.tensorboard import TensorBoardTracker
from official_trainer.tracking.threads import ThreadedTracker
from tests.support.tracking.readers import READERS

FIXED = {
    "console": lambda place: Console(io.StringIO(), end_step=40),
    "jsonl": lambda place: JsonlTracker(f"{place.directory}/metrics.jsonl"),
    "tensorboard": lambda place: TensorBoardTracker(place.directory),
}
CONFIGURED = sorted(TrackerConfig.names())
MEDIA = {
    "weights": Histogram(np.linspace(-1, 1, 100)),
    "dev/sample": Image(np.zeros((4, 6, 3), np.uint8)),
    "note": Text("*so*"),
}
SHOWS_MEDIA = {"tensorboard", "mlflow", "wandb"}


def build(name, place):
    if name in FIXED:
        return FIXED[name](place)
    config = TrackerConfig.named(name)()
    missing = [module for module in config.NEEDS if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"NOT TESTED: {', '.join(missing)} is not installed; pip install '{config.INSTALL}'")
    return config.build(place)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Names of other machines are not even looked up."""

    def refuse(host, *args, **kwargs):
        raise AssertionError(f"a tracker looks for {host!r}")

    monkeypatch.setattr("socket.getaddrinfo", refuse)


def test_every_type_can_be_read_here():
    """A new tracker says here how what it writes is read."""
    assert READERS.keys() == {*CONFIGURED, *FIXED} - {"console"}
    assert {"csv", "mlflow", "wandb"} <= set(CONFIGURED)


def part(tracker, start, steps, end=None):
    """What one process of a run does with it, through what a run puts around it."""
    told = Trackers([ThreadedTracker(tracker, name="x", on_error="fail")])
    told.rewind(start)
    told.describe("digits", {"trainer.train_steps": 40, "task.model.filters[0]": "a", "task.none": None})
    for step in steps:
        told.log("train", step, {"loss": np.float32(step), "odd": float("nan")})
        told.publish("train", step, MEDIA)
        told.log("validation", step, {"dev": {"accuracy": step / 100}, "far": float("inf")})
    told.flush()
    if end is not None:
        told.end(end)
    told.close()


@pytest.mark.parametrize("name", [*FIXED, *CONFIGURED])
def test_a_tracker_keeps_its_contract(name, place, capfd):
    """B6, T18: nothing before the first call; log, media, rewind, log again, flush, close, reopen: each point is there
    once, whatever the number; and it prints nothing.
    """
    tracker = build(name, place)
    assert isinstance(tracker, Tracker)
    assert list(Path(place.directory).iterdir()) == []
    part(tracker, 0, [10, 20, 30])
    part(build(name, place), 20, [30, 40], Outcome(step=40, metrics={"dev/accuracy": 0.4}))
    part(build(name, place), 40, [], Outcome(step=40, metrics={"dev/accuracy": 0.4}))
    assert capfd.readouterr() == ("", "")
    if name == "console":
        return
    found = [(place, step) for place, step, _ in READERS[name](Path(place.directory))]
    for point in ("train/loss", "train/odd", "validation/dev/accuracy", "validation/far"):
        assert sorted(step for place, step in found if place == point) == [10, 20, 30, 40], point
    media = ["train/weights", "train/dev/sample", "train/note"] if name in SHOWS_MEDIA else []
    for point in media:
        assert sorted(step for place, step in found if place == point) == [10, 20, 30, 40], point


@pytest.mark.parametrize("name", [*FIXED, *CONFIGURED])
def test_a_tracker_that_was_never_used_leaves_nothing(name, place):
    """B6: also where a run ends before its first number."""
    tracker = build(name, place)
    tracker.rewind(0)
    tracker.flush()
    tracker.close()
    assert list(Path(place.directory).iterdir()) == []


def test_configs_are_read_and_built_without_any_of_their_libraries(tmp_path):
    """N7: and without TensorFlow and NumPy; a machine that shows a config needs none of them."""
    code = """
import json, sys
from official_trainer.config import TrackerConfig
from official_trainer.tracking import Place
place = Place(directory=sys.argv[1], experiment="e", name="n")
for name in TrackerConfig.names():
    TrackerConfig.named(name)().build(place)
print(json.dumps(sorted({"tensorflow", "numpy", "mlflow", "wandb", "tensorboard", "PIL"} & set(sys.modules))))
"""
    environ = {"PYTHONPATH": str(Path(official_trainer.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_the_base_class_is_the_tracker_that_writes_nowhere():
    """B6: null writer."""
    for tracker in (Tracker(), Trackers([])):
        part(tracker, 0, [10], Outcome())


def test_media_are_arrays_of_their_own_when_a_tracker_gets_them():
    """B6: device memory is released in the caller, and nobody changes them behind the thread's back."""
    tf = pytest.importorskip("tensorflow")

    class Keeper(Tracker):
        def publish(self, split, step, media):
            self.media = media

    keeper, pixels = Keeper(), np.zeros((2, 2, 1), np.uint8)
    values = tf.Variable([[1.0, float("nan")], [float("inf"), 2.0]])
    media = {"a": Histogram(values), "b": {"c": Image(pixels), "d": Image(tf.constant([[[-1.0], [0.5], [2.0]]]))}}
    bfloat16 = Histogram(tf.constant([0.5, 2.0], tf.bfloat16))
    Trackers([keeper]).publish("train", 1, {**media, "e": bfloat16, "f": Histogram(tf.constant([True, False]))})
    pixels += 1
    values.assign_add(tf.ones_like(values))
    kept = keeper.media
    assert list(kept) == ["a", "b/c", "b/d", "e", "f"]
    assert all(isinstance(thing, Media) for thing in kept.values())
    assert type(kept["a"].values) is np.ndarray
    assert kept["a"].values.tolist() == [1.0, 2.0]
    assert kept["b/c"].pixels.tolist() == [[[0], [0]], [[0], [0]]]
    assert kept["b/d"].pixels.tolist() == [[[0], [128], [255]]]
    assert (kept["e"].values.tolist(), kept["f"].values.tolist()) == ([0.5, 2.0], [1.0, 0.0])
    assert [size_bytes(thing) for thing in (kept["a"], kept["b/c"], Text("four"))] == [8, 4, 4]


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0], [-1e38, 1e38], [1, 2, 3]])
def test_a_histogram_counts_every_value(values):
    """T18: none, one, equal ones, far ones, integers."""
    counts, edges = Histogram(np.array(values, np.float32 if 3.0 in values else None)).buckets()
    assert counts.sum() == len(values)
    assert (len(counts), len(edges)) == (64, 65)
    assert np.isfinite(edges).all()
