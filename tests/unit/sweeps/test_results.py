"""What reports read of a sweep, whatever state it is in."""

import sys

import pytest

from official_trainer import sweeps
from official_trainer.sweeps import results
from official_trainer.sweeps.settings import SweepError
from official_trainer.sweeps.study import LEAST_TRIALS
from tests.support.sweeps.written import RATE, trial, write_run, write_sweep


def test_a_summary_has_all_that_a_report_draws(tmp_path):
    """N21: every state, the values of each, and where its run is."""
    write_sweep(
        tmp_path,
        [
            trial(0.5),
            trial(0.3, state="PRUNED", reports={100: 0.3}),
            trial(state="FAIL", reason="a bug"),
            trial(0.7),
            trial(state="RUNNING"),
        ],
    )
    write_run(tmp_path, 3)
    summary = results.summary(str(tmp_path))
    assert (summary["metric"], summary["direction"]) == ("accuracy", "max")
    assert summary["counts"] == {"complete": 2, "pruned": 1, "failed": 1, "running": 1}
    assert summary["best"] == 3 and summary["importance"] is None
    drawn = {"task.model.type": "cnn", RATE: 0.001}
    assert summary["trials"][3] == {
        "number": 3,
        "state": "complete",
        "value": 0.7,
        "params": drawn,
        "run": "trials/3/run",
    }
    assert [trial["run"] for trial in summary["trials"]] == [None, None, None, "trials/3/run", None]
    assert [trial["value"] for trial in summary["trials"]] == [0.5, 0.3, None, 0.7, None]


def test_the_field_that_decides_has_the_largest_share(tmp_path):
    """N21: the shares add up to 1; with few trials there are none."""
    params = [{RATE: 10 ** (-4 + 3 * n / 16), "task.train_data.global_batch_size": 32 * (1 + n % 4)} for n in range(16)]
    write_sweep(tmp_path / "many", [trial(drawn[RATE], params=drawn) for drawn in params])
    shares = results.summary(str(tmp_path / "many"))["importance"]
    assert next(iter(shares)) == RATE and shares[RATE] > 0.5 and sum(shares.values()) == pytest.approx(1)
    write_sweep(tmp_path / "few", [trial(drawn[RATE], params=drawn) for drawn in params[: LEAST_TRIALS - 1]])
    assert results.summary(str(tmp_path / "few"))["importance"] is None


WHOLE = '{"sweep": {"objective": {}, "space": {}}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", r"sweep.json cannot be read \(.*\); put a good copy back"),
        ("[]", r"sweep.json cannot be read \("),
        ('{"sweep": 5}', r"sweep.json cannot be read \("),
        (WHOLE.replace('"space"', '"spice"'), r"sweep.json cannot be read \(ValueError: it lacks what a sweep has"),
        (WHOLE, r"study.log is not there, in which the trials of the sweep are; put a good copy back"),
        (None, r"holds no sweep \(there is no .*sweep.json\)"),
    ],
)
def test_a_damaged_sweep_is_an_error_with_its_path(text, why, tmp_path):
    """N21: one line, and no traceback."""
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    assert results.is_sweep(str(tmp_path)) == (text is not None)
    with pytest.raises(SweepError, match=why):
        results.summary(str(tmp_path))


def test_a_study_that_is_another_is_an_error(tmp_path):
    """N21: with the path of the journal."""
    write_sweep(tmp_path, [trial(0.5)])
    journal = tmp_path / "study.log"
    journal.write_text(journal.read_text().replace('"sweep"', '"other"'))
    with pytest.raises(SweepError, match=r"study.log has no study 'sweep'; put a good copy back"):
        results.summary(str(tmp_path))


def test_a_summary_says_that_it_needs_optuna(tmp_path, monkeypatch):
    """N21, N7: reports work where Optuna is not installed."""
    write_sweep(tmp_path, [trial(0.5)])
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("distributions", "study"):  # which have imported it
        monkeypatch.delitem(sys.modules, f"official_trainer.sweeps.{name}")
        monkeypatch.delattr(sweeps, name, raising=False)
    with pytest.raises(SweepError, match=r"is read with Optuna: pip install 'official-trainer\[sweep\]'"):
        results.summary(str(tmp_path))
