"""Whoever is struck, however, in whatever phase: nobody hangs, and the same command again ends with the same bits."""

import contextlib
import dataclasses
import random
import signal
import time

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.cases import cases
from tests.support.chaos.compare import differences
from tests.support.chaos.runs import INTERVALS, Variant, digits
from tests.support.distributed.coordinated import LONG, Run
from tests.support.distributed.workers import TWO_WORKERS, argv_of, cluster, phase_of
from tests.support.processes.local_jobs import LAUNCHER, LocalJob

VICTIMS = {"chief": [0], "worker": [1], "all": [0, 1], "nobody": []}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
PHASES = ("build", "train", "evaluate", "save")
CASES = [
    (victim, number, phase, several)
    for phase in PHASES
    for number in SIGNALS
    for victim in ("chief", "worker", "all")
    for several in INTERVALS
    if several == "saves" or number == signal.SIGKILL
]


def strike(workspace, model_dir, victim, number, phase, chance, **options):
    """Starts two workers and strikes in the phase; returns exit codes, what was said, and whether it struck in time."""
    with cluster(workspace, model_dir, **options) as started:
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
        if phase == "build":  # TensorFlow waits for those that died after they met, until what started it ends it, too
            for index in (0, 1):
                with contextlib.suppress(AssertionError):
                    started.wait("worker", index, timeout_seconds=30)
                if started.is_alive("worker", index):
                    started.kill("worker", index)
        return started.wait_all(), started.outputs()


@pytest.mark.full  # test_multi_worker.py has a kill and a SIGTERM of a worker every time
@pytest.mark.parametrize(("victim", "number", "phase", "several"), CASES, ids=str)
def test_strikes(shared, workspace, tmp_path, request, victim, number, phase, several):
    """N1, T16: exit codes say to start again, the newest checkpoint is never lost, and the run ends as if unbroken."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/{request.node.name}")
    model_dir = tmp_path / "run"
    allowed = {0, 75, 143, -number}
    if phase == "build":
        # A signal ends a process that has nothing to save.
        allowed |= {130, -signal.SIGKILL}
    variant = dataclasses.replace(TWO_WORKERS, several=several)
    codes, said = strike(workspace, model_dir, victim, number, phase, chance, variant=variant)
    assert set(codes.values()) <= allowed, (codes, said)
    before = max(committed_steps(str(model_dir)), default=0)
    codes, said = strike(workspace, model_dir, "nobody", number, "done", chance, variant=variant)
    assert set(codes.values()) == {0}, (codes, said)
    if before:
        assert f"continuing from step {before}" in said or before == 48, said
    unbroken = shared.unbroken(digits(Variant("mirrored2", several=several)))  # which two workers equal, bit by bit
    lost = differences(model_dir, unbroken.model_dir)
    recorded = [line.partition(":")[0] for line in lost.pop("record")]
    assert (lost, recorded) == ({}, ["run.json devices", "run.json input"])  # which are those of two processes


# Under a coordinator: not the bits, but the number of steps.

ROLES_OF = {"chief": ["chief"], "worker": ["worker"], "ps": ["ps"], "all": ["chief", "worker", "ps"]}
COORDINATED = [
    (victim, number, phase) for phase in ("train", "evaluate", "save") for number in SIGNALS for victim in ROLES_OF
]


def strike_coordinated(run, victim, number, phase, chance):
    """Strikes the first process of a role, or of all, in the phase; returns when the chief has ended."""
    started = run.cluster
    started.wait_for(lambda: phase_of(run.model_dir) == phase or not started.is_alive("chief"))
    time.sleep(chance.uniform(0.0, 0.3))
    for role in ROLES_OF[victim]:
        if started.is_alive(role):
            started.signal(role, 0, number)
    if number == signal.SIGSTOP:
        time.sleep(chance.uniform(1.0, 12.0))  # shorter and longer than what TensorFlow's connections bear
        for role in ROLES_OF[victim]:
            if started.is_alive(role):
                started.signal(role, 0, signal.SIGCONT)
    return started.wait("chief")


@pytest.mark.full
@pytest.mark.parametrize(("role", "blow", "moment"), COORDINATED, ids=str)
def test_strikes_under_a_coordinator(tmp_path, request, role, blow, moment):
    """N1, T7: whoever is struck, the chief ends with a code to start again, or goes on; then the steps are exact."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/{request.node.name}")
    with Run(tmp_path, *LONG) as run:
        code = strike_coordinated(run, role, blow, moment, chance)
        assert code in {0, 75, 130, 143, -blow}, run.cluster.outputs()
    if code != 0:
        with Run(tmp_path, *LONG) as run:
            assert run.cluster.wait("chief") == 0, run.cluster.outputs()
    run.assert_done(600)


# Under `launch local --supervise`: any of its processes is killed, the launcher and the one that starts the others too.


def kill_in_phase(job, model_dir, victims, phase, chance):
    """Kills processes when the chief is in the phase; returns those that ran."""
    job.until(lambda: phase_of(model_dir) == phase)
    time.sleep(chance.uniform(0.0, 0.3))
    return [victim for victim in victims if job.kill(victim)]


def supervised_to_its_end(start, model_dir, victims, phase, chance):
    """Kills processes of a supervised job, and starts it again if one was the launcher.

    The job is done afterwards, and nothing of it is left.
    """
    with start(1) as job:
        killed = kill_in_phase(job, model_dir, victims, phase, chance)
        code = job.wait()
        assert job.left() == []
        assert code == (-signal.SIGKILL if LAUNCHER in killed else 0), job.output
    if code:
        with start(2) as job:
            assert job.wait() == 0, job.output


KILLED = {
    "the trainer": (1, [("worker 0",)]),
    "the supervisor": (1, [(LAUNCHER,)]),
    "both": (1, [(LAUNCHER, "worker 0")]),
    "a worker of two": (2, [("worker 1",), ("worker 0",)]),
}
"""By whom: the workers of a job, and which of its processes are killed at once, in turn."""
SUPERVISED = [(whom, number) for whom in KILLED for number in range(10)]


@pytest.mark.parametrize(
    ("whom", "number"),
    cases(SUPERVISED, ("both", 2), ("a worker of two", 1)),
    ids=str,
)
def test_a_supervised_job_ends_as_if_nothing_was_killed(shared, workspace, tmp_path, request, whom, number):
    """N1, N20: 40 kills, 10 of each; with the same bits; and nothing of a job is left when it has ended."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/{request.node.name}")
    model_dir, phase = tmp_path / "run", PHASES[number % len(PHASES)]
    workers, victims = KILLED[whom]
    argv = argv_of(workspace, model_dir)
    if workers == 1:
        argv = [*argv[:3], *(f"--set={word}" for word in Variant().sets(workspace))]
    words = [f"--workers={workers}", "--supervise", "--", *argv[1:]]
    unbroken = shared.unbroken(digits(Variant())).model_dir if workers == 1 else request.getfixturevalue("unbroken")

    def start(number):
        return LocalJob(words, cwd=workspace, folder=tmp_path / f"launcher-{number}")

    supervised_to_its_end(start, model_dir, victims[number // len(PHASES) % len(victims)], phase, chance)
    assert differences(model_dir, unbroken) == {}
