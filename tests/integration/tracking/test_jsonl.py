"""Metrics on a URL, which TensorFlow's file systems write."""

from official_trainer.tracking.jsonl import JsonlTracker, read_rows


def test_metrics_on_a_url():
    tracker = JsonlTracker("ram://metrics/metrics.jsonl", clock=lambda: 0)
    for step in (1, 2, 3):
        tracker.log("train", step, {"loss": 1.0})
    tracker.rewind(2)
    tracker.log("train", 3, {"loss": 2.0})
    tracker.close()
    assert [(row["step"], row["loss"]) for row in read_rows(tracker.path)] == [(1, 1.0), (2, 1.0), (3, 2.0)]
