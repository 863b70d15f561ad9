"""Real workers of which one is slower; `tests/support/distributed/slow_workers.py` has all faults, and healthy runs."""

from official_trainer.runs.health.slow_worker import SlowWorker
from tests.support.distributed.slow_workers import run


def test_the_slow_worker_is_named(tmp_path):
    """N49: in run.json, with its evidence; on stderr once. So slow that other work on the machine counts less."""
    found, _ = run(tmp_path, workers=2, slow=1, phase="compute", slowed="compute:0.1", seconds=200)
    assert found is not None, "no worker was named"
    assert (found["worker"], found["phase"]) == (1, "compute")
    said = (tmp_path / "output/worker-0-1/err.txt").read_text()
    assert said.count(f"{SlowWorker(**found)}") == 1
