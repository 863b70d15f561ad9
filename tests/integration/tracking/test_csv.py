"""Tables on a URL, which TensorFlow's file systems write."""

from official_trainer.tracking.csv import CsvTracker


def test_a_table_on_a_url():
    tracker = CsvTracker("ram://table/metrics.csv", clock=lambda: 1.5)
    tracker.rewind(0)
    for step in (1, 2, 3):
        tracker.log("train", step, {"loss": 1.0})
    tracker.rewind(2)
    tracker.log("train", 3, {"loss": 2.0, "more": 1.0})
    tracker.close()
    assert [row["step"] for row in tracker._rows()] == ["1", "2", "3"]
