"""Real workers of which one is slower; `tests/support/distributed/slow_workers.py` has all faults, and healthy runs."""

import pytest

from official_trainer.runs.health.slow_worker import SlowWorker
from tests.support.distributed.slow_workers import LIMIT_SECONDS, run


@pytest.mark.parametrize(
    ("phase", "slow"),
    [("compute", 1), *(pytest.param(*each, marks=pytest.mark.full) for each in [("input", 1), ("save", 0)])],
)
def test_the_slow_worker_is_named_in_time(phase, slow, tmp_path):
    """N49: in run.json, with its evidence; on stderr once."""
    found, seconds = run(tmp_path, workers=2, slow=slow, phase=phase)
    assert found is not None, "no worker was named"
    assert (found["worker"], found["phase"]) == (slow, phase)
    assert seconds <= LIMIT_SECONDS + 5, "its clock begins before the first window that counts"
    said = (tmp_path / "output/worker-0-1/err.txt").read_text()
    assert said.count(f"{SlowWorker(**found)}") == 1
