import json
import math

import pytest

from official_trainer import files
from official_trainer.tracking import MetricError
from official_trainer.tracking.jsonl import JsonlTracker, read_rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def tracker(path):
    times = iter(range(100, 200))
    with_clock = JsonlTracker(str(path), clock=lambda: next(times))
    yield with_clock
    with_clock.close()


def places(path):
    return [(row["step"], row["split"]) for row in read_rows(str(path))]


def test_a_row_is_on_disk_when_log_returns(path, tracker):
    """N15: `metrics.jsonl`."""
    tracker.log("train", 10, {"loss": 0.5, "dev/accuracy": 1.0})
    assert path.read_text() == '{"step": 10, "split": "train", "time": 100, "loss": 0.5, "dev/accuracy": 1.0}\n'
    tracker.log("validation", 10, {"loss": 0.25})
    assert [json.loads(line)["time"] for line in path.read_text().splitlines()] == [100, 101]


def test_values_that_are_not_finite_are_strict_json(path, tracker):
    tracker.log("train", 1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e-300})

    def refuse(constant):
        raise AssertionError(constant)

    row = json.loads(path.read_text(), parse_constant=refuse)
    assert (row["a"], row["b"], row["c"]) == ("NaN", "Infinity", "-Infinity")
    (row,) = read_rows(str(path))
    assert math.isnan(row["a"])
    assert (row["b"], row["c"], row["d"]) == (math.inf, -math.inf, 1e-300)
    assert row["split"] == "train"


def test_a_rewind_drops_what_comes_after(path, tracker):
    """N15: one row per step after any number of restarts."""
    tracker.rewind(0)
    assert not path.exists(), "nothing was logged"
    for step in (10, 20, 30):
        tracker.log("train", step, {"loss": 1.0})
        tracker.log("validation", step, {"loss": 2.0})
    tracker.rewind(20)
    assert places(path) == [(10, "train"), (10, "validation"), (20, "train"), (20, "validation")]
    tracker.log("train", 30, {"loss": 3.0})
    assert places(path)[-1] == (30, "train")
    assert len(path.read_text().splitlines()) == 5
    tracker.rewind(0)
    assert path.read_text() == "" and not tracker.has_row(10, "train")


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_was_cut_off_is_dropped(path, tracker, caplog, cut):
    """N15: a killed process may leave half a line; the next one does not append to it."""
    tracker.log("train", 10, {"loss": 1.0})
    tracker.log("train", 20, {"loss": 0.123456789})
    tracker.close()
    path.write_text(path.read_text()[:-cut])
    again = JsonlTracker(str(path), clock=lambda: 0)
    again.log("train", 30, {"loss": 2.0})
    again.close()
    expected = [(10, "train"), (20, "train"), (30, "train")]
    assert places(path) == (expected if cut == 1 else [expected[0], expected[2]])
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert ("metrics.jsonl:2: not a whole row, left out" in caplog.text) == (cut != 1)


def test_a_line_that_is_being_written_is_left_out_without_a_word(path, tracker, caplog):
    """N15: another process reads the metrics while they are logged; a whole line without its end counts."""
    tracker.log("train", 10, {"loss": 1.0})
    tracker.log("train", 20, {"loss": 0.5})
    whole = path.read_text()
    path.write_text(whole[:-5])
    assert [row["step"] for row in read_rows(str(path))] == [10]
    path.write_text(whole[:-1])
    assert [row["step"] for row in read_rows(str(path))] == [10, 20]
    assert not caplog.text


def test_the_same_step_and_split_is_there_once(path, tracker):
    """T10: the last step may be evaluated again after a crash."""
    tracker.log("validation", 10, {"loss": 1.0})
    tracker.log("train", 10, {"loss": 2.0})
    tracker.log("validation", 10, {"loss": 3.0})
    assert places(path) == [(10, "train"), (10, "validation")]
    assert read_rows(str(path))[1]["loss"] == 3.0


def test_a_row_is_found_among_rows_with_the_same_digits(path, tracker):
    for step, loss in ((1, 10.0), (10, 1.0), (11, 0.1), (101, 1.0)):
        tracker.log("train", step, {"loss": loss})
    tracker.log("validation", 10, {"loss": 1.0})
    restarted = JsonlTracker(path)
    assert restarted.has_row(10, "validation") and not restarted.has_row(11, "validation")
    assert [restarted.row(step, "train") for step in (1, 10, 11)] == [{"loss": 10.0}, {"loss": 1.0}, {"loss": 0.1}]
    last = restarted.last()
    assert restarted.holds(last) and not restarted.holds({**last, "step": 1})
    assert [row["split"] for row in read_rows(path, step=10)] == ["train", "validation"]


@pytest.mark.parametrize("name", ["step", "split", "time"])
def test_metrics_cannot_take_the_names_of_a_rows_own_fields(path, tracker, name):
    with pytest.raises(MetricError, match=f"a metric cannot be named '{name}': rows of metrics.jsonl have"):
        tracker.log("train", 1, {name: 1.0})
    assert not path.exists()


@pytest.mark.parametrize("harm", [b"\xff\xfe", b'{"step": "20", "split": "train", "time": 1.0}\n', b"[1]\n", b"7\n"])
def test_a_damaged_row_spoils_itself_alone(path, tracker, caplog, harm):
    """N15: bytes that are no text, or a row that is none."""
    tracker.log("train", 10, {"loss": 1.0})
    tracker.close()
    path.write_bytes(path.read_bytes() + harm)
    again = JsonlTracker(str(path), clock=lambda: 0)
    again.rewind(15)
    again.log("train", 20, {"loss": 2.0})
    again.close()
    assert places(path) == [(10, "train"), (20, "train")]
    assert "metrics.jsonl:2: not a whole row, left out" in caplog.text


def test_an_error_of_writing_names_the_file(monkeypatch, tmp_path):
    """N3: the system's own does not."""
    monkeypatch.setattr(files, "open_file", lambda path, mode: open("/dev/full", "w", encoding="utf-8"))  # noqa: SIM115 - closed by the tracker
    tracker = JsonlTracker(str(tmp_path / "metrics.jsonl"))
    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
        tracker.log("train", 1, {"loss": 1.0})


HARMS = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: path.write_text(""),
    "replaced": lambda path: path.rename(path.with_name("old")) and path.write_text(""),
}


@pytest.mark.parametrize("is_at_checkpoint", [False, True], ids=["next_row", "checkpoint"])
@pytest.mark.parametrize("harm", HARMS)
def test_rows_that_are_gone_while_a_run_writes_are_said_and_it_writes_on(path, tracker, caplog, harm, is_at_checkpoint):
    """N15: at the next row or the next checkpoint, which asks for the last row; once."""
    for step in (10, 20):
        tracker.log("train", step, {"loss": 1.0})
    HARMS[harm](path)
    if is_at_checkpoint:
        assert tracker.last() is None
        assert caplog.text
    assert tracker.row(20, "train") is None
    tracker.log("train", 30, {"loss": 3.0})
    tracker.log("validation", 20, {"loss": 2.0})
    assert places(path) == [(30, "train"), (20, "validation")]
    assert tracker.holds(tracker.last())
    assert tracker.row(30, "train") == {"loss": 3.0}
    (said,) = caplog.messages
    assert said == (
        f"{path} was removed, emptied or replaced while the run writes to it. The rows that are not there any more are "
        "lost; the next ones are written to it."
    )


def test_a_directory_that_was_moved_takes_its_rows_with_it(tmp_path, caplog):
    """N6: which the lock says; no file is written at the old place."""
    (tmp_path / "run").mkdir()
    tracker = JsonlTracker(str(tmp_path / "run" / "metrics.jsonl"))
    tracker.log("train", 10, {"loss": 1.0})
    (tmp_path / "run").rename(tmp_path / "new")
    tracker.log("train", 20, {"loss": 2.0})
    tracker.close()
    assert places(tmp_path / "new" / "metrics.jsonl") == [(10, "train"), (20, "train")]
    assert not (tmp_path / "run").exists() and not caplog.messages
