import csv

import pytest

from official_trainer import config as configuration
from official_trainer.config import ConfigError
from official_trainer.tracking import MetricError
from official_trainer.tracking.csv import CsvConfig, CsvTracker, TableError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def tracker_of(path):
    return CsvTracker(str(path), clock=lambda: 1.5)


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_step_and_split(path, place):
    """B6: one table that a spreadsheet opens."""
    tracker = CsvConfig().build(place)
    assert not path.exists()
    assert tracker.path == str(path)
    tracker = tracker_of(path)
    for step in (10, 20):
        tracker.log("train", step, {"loss": 0.5 + step, "a,b": float("nan")})
    tracker.close()
    assert path.read_text() == 'step,split,time,loss,"a,b"\n10,train,1.500,10.5,nan\n20,train,1.500,20.5,nan\n'


def test_a_new_metric_is_a_new_last_column(path):
    """B6: columns stay where they are; rows without the metric have an empty cell."""
    tracker = tracker_of(path)
    tracker.log("train", 10, {"loss": 1.0})
    tracker.log("validation", 10, {"loss": 2.0, "dev/accuracy": 0.5})
    tracker.log("train", 20, {"loss": 3.0})
    tracker.close()
    assert [list(row.values()) for row in table(path)] == [
        ["10", "train", "1.500", "1.0", ""],
        ["10", "validation", "1.500", "2.0", "0.5"],
        ["20", "train", "1.500", "3.0", ""],
    ]


def test_a_restart_appends_and_a_rewind_drops_what_is_after_it(path):
    """B6, T18: no row is there twice, or orphaned."""
    for start in (0, 20):
        tracker = tracker_of(path)
        tracker.rewind(start)
        for step in (start + 10, start + 20):
            tracker.log("train", step, {"loss": float(step)})
        tracker.close()
    assert [row["step"] for row in table(path)] == ["10", "20", "30", "40"]
    tracker = tracker_of(path)
    tracker.rewind(20)
    assert [row["step"] for row in table(path)] == ["10", "20"]
    tracker.log("train", 20, {"loss": -1.0})
    tracker.close()
    assert [(row["step"], row["loss"]) for row in table(path)] == [("10", "10.0"), ("20", "-1.0")]


def test_a_line_that_was_cut_off_is_dropped(path, caplog):
    """N1: a killed process may leave half a line, and files that it was writing."""
    tracker = tracker_of(path)
    for step in (10, 20):
        tracker.log("train", step, {"loss": 0.25})
    tracker.close()
    path.write_text(path.read_text()[:-3])
    left = path.with_name("metrics.csv.tmp-1")
    left.write_text("step")
    again = tracker_of(path)
    again.rewind(20)
    again.log("train", 30, {"loss": 0.5})
    again.close()
    assert [row["step"] for row in table(path)] == ["10", "30"]
    assert not left.exists()
    path.write_text(path.read_text() + "40,train\nno,row,at,all\n")
    again = tracker_of(path)
    again.log("train", 50, {"loss": 0.5})
    again.close()
    assert [row["step"] for row in table(path)] == ["10", "30", "50"]
    assert "metrics.csv: 2 lines are no rows of it, left out" in caplog.text


def test_a_table_of_somebody_else_is_left_alone(path):
    path.write_text("name,price\nbread,2\n")
    with pytest.raises(
        TableError, match=r"metrics.csv was not written by this program: its first line is 'name,price'"
    ):
        tracker_of(path).log("train", 10, {"loss": 1.0})
    with pytest.raises(TableError):
        tracker_of(path).rewind(0)
    assert path.read_text() == "name,price\nbread,2\n"


def test_metrics_cannot_take_the_names_of_its_own_columns(path):
    with pytest.raises(MetricError, match=r"a metric cannot be named 'split': .*metrics.csv has a column of that name"):
        tracker_of(path).log("train", 10, {"split": 1.0})


def test_the_ledger_cannot_be_its_file():
    """Refused with the place: it would overwrite what a restart reads."""
    with pytest.raises(ConfigError, match=r"trainer.trackers\[0\].file: is 'metrics.jsonl'; .* ends in .csv"):
        configuration.resolve(
            configuration.ExperimentConfig(), sets=["trainer.trackers=[{type: csv, file: metrics.jsonl}]"]
        )


def test_a_table_of_another_folder_is_refused():
    """B6: another run's table would be taken for this one's, and written over."""
    (said,) = [what for field, what in CsvConfig(file="../x.csv").problems() if field == "file"]
    assert said == "is '../x.csv'; it must be the name of one file in the run directory"


def test_a_first_row_without_metrics_has_the_header_too(tmp_path):
    tracker = CsvTracker(str(tmp_path / "metrics.csv"), clock=lambda: 7.0)
    tracker.log("train", 1, {})
    tracker.log("train", 2, {"loss": 0.5})
    tracker.close()
    assert (tmp_path / "metrics.csv").read_text() == "step,split,time,loss\n1,train,7.000,\n2,train,7.000,0.5\n"


def test_a_table_that_was_removed_is_begun_again(path, caplog):
    """N15: and it is said."""
    tracker = tracker_of(path)
    for step in (10, 20, 30, 40):
        tracker.log("train", step, {"loss": 1.0})
        if step == 20:
            path.unlink()
    tracker.close()
    assert [row["step"] for row in table(path)] == ["30", "40"]
    assert caplog.text.count("metrics.csv was removed, emptied or replaced: the next rows are written to it") == 1
