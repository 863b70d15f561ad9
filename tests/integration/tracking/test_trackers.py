import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.tracking import Image, MetricError, Table, Text, Trackers, flatten, numbers_in, points
from official_trainer.tracking.tensorboard import TensorBoardTracker
from official_trainer.tracking.threads import ThreadedTracker


class Recorder:
    def __init__(self, calls, name, error=None):
        self.calls, self.name, self.error = calls, name, error

    def log(self, split, step, values):
        self.calls.append((self.name, "log", split, step, values))

    def rewind(self, step):
        self.calls.append((self.name, "rewind", step))

    def flush(self):
        self.calls.append((self.name, "flush"))

    def close(self):
        self.calls.append((self.name, "close"))
        if self.error:
            raise self.error


def test_numbers_of_every_kind_become_python_floats():
    """B6: device memory is released in the caller, whatever the trackers do."""
    values = {"a": 1, "b": np.float32(0.5), "c": tf.constant(2.0), "d": {"e": {"f": np.array(3)}}, "g": tf.Variable(4)}
    flat = flatten(values)
    assert flat == {"a": 1.0, "b": 0.5, "c": 2.0, "d/e/f": 3.0, "g": 4.0}
    assert list(flat) == ["a", "b", "c", "d/e/f", "g"]
    assert all(type(value) is float for value in flat.values())


class Words:
    """Results of the user's own."""

    def as_logs(self):
        return {"count": 2, "all": Table(["word"], [["a"], ["b"]])}


def test_results_of_every_kind_become_points():
    """B13, T24: numbers, media, texts, objects of the user's own, and images as Model Garden returns them."""
    batch = np.zeros([2, 4, 6, 3], np.uint8)
    values = {"dev": {"words": Words()}, "note": "a", "of_tensor": tf.constant("b"), "image/worst": tf.constant(batch)}
    found = points({**values, "image/best/0": batch[:1]})
    assert found["dev/words/count"] == 2.0
    assert found["dev/words/all"].markdown() == "| word |\n|---|\n| a |\n| b |"
    assert (found["note"], found["of_tensor"]) == (Text("a"), Text("b"))
    assert {name for name, value in found.items() if isinstance(value, Image)} == {
        "image/worst/0", "image/worst/1", "image/best/0",
    }  # fmt: skip
    assert flatten(values) == {"dev/words/count": 2.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dev": {"confusion": np.zeros((2, 2))}}, r"metric 'dev/confusion' has shape \[2, 2\]; .* reduce it"),
        ({"loss": np.zeros((1,))}, r"metric 'loss' has shape \[1\]"),
        ({"loss": None}, r"metric 'loss' is None \(NoneType\); metrics are single numbers"),
        ({"a": {"b": 1}, "a/b": 2}, r"two metrics are named 'a/b'; rename one"),
    ],
)
def test_what_is_not_one_number_is_refused_by_name(values, message):
    """T9: an error that names the metric, not a silent loss."""
    with pytest.raises(MetricError, match=message):
        flatten(values)


def test_every_tracker_hears_everything_in_order():
    """B6: order is kept."""
    calls = []
    trackers = Trackers([Recorder(calls, "first"), Recorder(calls, "second")])
    trackers.rewind(0)
    trackers.log("train", 5, {"dev": {"loss": tf.constant(0.5)}})
    trackers.flush()
    assert calls == [
        ("first", "rewind", 0),
        ("second", "rewind", 0),
        ("first", "log", "train", 5, {"dev/loss": 0.5}),
        ("second", "log", "train", 5, {"dev/loss": 0.5}),
        ("first", "flush"),
        ("second", "flush"),
    ]


def test_a_tracker_that_fails_to_close_does_not_keep_others_open():
    """B6: errors surface at close."""
    calls = []
    trackers = Trackers([Recorder(calls, "first", OSError("disk full")), Recorder(calls, "second")])
    with pytest.raises(OSError, match="disk full"):
        trackers.close()
    assert calls == [("first", "close"), ("second", "close")]


def test_a_number_passes_twelve_functions_on_its_way_to_tensorboard(tmp_path):
    """B6: from the result of a summary to TensorBoard's writer of records, in two threads."""
    seen = []

    def see(frame, event, argument):
        code = frame.f_code
        if event == "call" and "/official_trainer/" in code.co_filename and not code.co_name.startswith("<"):
            seen.append(code.co_qualname)

    def write(step):
        recorded = points({"training_loss": tf.constant(0.5), "accuracy": tf.constant(0.25)})  # as the loop does
        numbers_in(recorded)
        trackers.log("train", step, recorded)

    before = sys.getprofile()
    threading.setprofile(see)
    try:
        board = ThreadedTracker(TensorBoardTracker(tmp_path), name="tensorboard", on_error="fail")
        trackers = Trackers([board])
        write(1)  # opens the file
        board.flush()
        seen.clear()
        sys.setprofile(see)
        write(2)
        sys.setprofile(before)
        board.flush()
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
    passed = {*seen, "ThreadedTracker._run"} - {"TensorBoardTracker.flush"}
    board.close()
    assert {"points", "Trackers.log", "TensorBoardTracker.log", "TensorBoardTracker._add"} <= passed
    assert len(passed) <= 12, sorted(passed)
