"""Where the time of a run went, and how much of it was of use."""

import pytest

from official_trainer.reports import gathered, times
from tests.support.reports import kinds


def account(folder, now_seconds=kinds.NOW):
    (found,) = gathered.gather([str(folder)], now_seconds=now_seconds).runs
    return times.account(found, now_seconds=now_seconds)


def test_time_without_a_process_counts_and_lowers_goodput(tmp_path):
    """N22: from the first start to the end; what no process recorded is a part of its own."""
    kinds.write_run(tmp_path / "run")
    found = account(tmp_path / "run")
    assert found["parts"] == {"start": 10.0, "steps": 80.0, "evaluation": 5.0, "save": 5.0, "between": 7100.0}
    assert sum(found["parts"].values()) == 2 * kinds.HOUR
    assert found["goodput"] == pytest.approx(80 / 7200, abs=1e-4)


def test_repeated_steps_count_once(tmp_path):
    """N22: goodput has no steps that were repeated after a kill."""
    kinds.write_run(tmp_path / "run")
    total = {**kinds.TIME, "steps": 80, "restarts": 3}
    kinds.change(tmp_path / "run", time={"attempts": [kinds.TIME], "total": total}, started=None)
    found = account(tmp_path / "run")
    assert (found["goodput"], found["restarts"]) == (0.4, 3)
    assert "between" not in found["parts"]


def test_a_run_that_goes_on_is_counted_up_to_now(tmp_path):
    """N22: a running run has no end yet."""
    kinds.KINDS["running"](tmp_path / "run")
    kinds.change(tmp_path / "run", time={"attempts": [], "total": kinds.TIME})
    assert sum(account(tmp_path / "run")["parts"].values()) == 3 * kinds.HOUR


@pytest.mark.parametrize("kind", ["changed_record", "half_a_record", "of_a_much_earlier_version", "garden", "empty"])
def test_without_a_record_of_the_time_there_is_none(tmp_path, kind):
    """N22: a damaged, an old or a foreign run has no account, and is no error."""
    kinds.write_run(tmp_path / "good")
    kinds.KINDS[kind](tmp_path / "run")
    found = gathered.gather([str(tmp_path)], now_seconds=kinds.NOW).runs
    other = next(each for each in found if each.name == "run")
    assert times.account(other, now_seconds=kinds.NOW) is None
    assert other.run.recorded.examples_per_second is None
