"""Whoever is struck, however, in whatever phase: nobody hangs, and the same command again ends with the same bits."""

import random
import signal
import tempfile
import time

from official_trainer.manifest import committed_steps
from tests.chaos.campaign import Tally
from tests.chaos.compare import differences
from tests.distributed.clusters import LocalCluster
from tests.distributed.workers import argv_of, phase_of

VICTIMS = {"chief": [0], "worker": [1], "all": [0, 1], "nobody": []}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
PHASES = ("build", "train", "evaluate", "save")
CASES = [(victim, number, phase) for phase in PHASES for number in SIGNALS for victim in ("chief", "worker", "all")]
SHORT = [("worker", signal.SIGKILL, "evaluate"), ("chief", signal.SIGKILL, "save")]


def pytest_generate_tests(metafunc):
    if "phase" in metafunc.fixturenames:
        is_full = metafunc.config.getoption("--chaos") == "full"
        cases = CASES if is_full else SHORT
        ids = [f"{victim}-{number.name}-{phase}" for victim, number, phase in cases]
        metafunc.parametrize(("victim", "number", "phase"), cases, ids=ids)


def strike(workspace, model_dir, victim, number, phase, chance):
    """Starts two workers and strikes in the phase; returns exit codes, what was said, and whether it struck in time."""
    folder = tempfile.mkdtemp(prefix="output-", dir=model_dir.parent)
    argv = argv_of(workspace, model_dir)
    with LocalCluster({"worker": 2}, argv=argv, cwd=workspace.folder, folder=folder) as started:
        started.start_all()
        started.wait_for(lambda: phase_of(model_dir) == phase or not started.is_alive("worker", 0))
        time.sleep(chance.uniform(0.0, 0.3))
        for index in VICTIMS[victim]:
            if started.is_alive("worker", index):
                started.signal("worker", index, number)
        if number == signal.SIGSTOP:
            others = [index for index in (0, 1) if index not in VICTIMS[victim]]
            for index in others:
                started.wait("worker", index)
            if not others:
                time.sleep(1.0)
            for index in VICTIMS[victim]:
                if started.is_alive("worker", index):
                    started.signal("worker", index, signal.SIGCONT)
        return started.wait_all(), started.outputs()


def test_strikes(workspace, unbroken, tmp_path, tallied, request, victim, number, phase):
    """N1, T16: exit codes say to start again, the newest checkpoint is never lost, and the run ends as if unbroken."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/{request.node.name}")
    model_dir, tally, start = tmp_path / "run", Tally(trials=1), time.monotonic()
    allowed = {0, 75, 143, -number}
    if phase == "build":
        allowed |= {-signal.SIGTERM}  # nothing handles it until TensorFlow is there
    codes, said = strike(workspace, model_dir, victim, number, phase, chance)
    assert set(codes.values()) <= allowed, (codes, said)
    tally.kills, tally.phases[phase] = 1, 1
    before = max(committed_steps(str(model_dir)), default=0)
    codes, said = strike(workspace, model_dir, "nobody", number, "done", chance)
    assert set(codes.values()) == {0}, (codes, said)
    if before:
        assert f"continuing from step {before}" in said or before == 48, said
    assert differences(model_dir, unbroken) == {}
    tally.seconds = time.monotonic() - start
    tallied(tally)
