"""Two and three processes under MultiWorkerMirroredStrategy: the same numbers, stops, losses, and the way back."""

import json
import os
import pickle
import re
import signal
from pathlib import Path

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.chaos.compare import differences, id_lines
from tests.support.chaos.runs import Variant, digits
from tests.support.distributed.workers import argv_of, cluster, phase_of, run_to_end, steps_done
from tests.support.forked import run_command
from tests.support.runs import differences as differences_of_runs
from tests.support.runs import rows

MARK = "LOADED_MARK"


class Loadable:
    """Leaves a mark in the process that unpickles it."""

    def __reduce__(self):
        return _leave_mark, ()


def _leave_mark():
    with open(os.environ[MARK], "w"):
        pass


def send_pickles():
    """Makes each message of this process a pickle; called in a process before its command."""
    from official_trainer.distributed import multi_worker

    multi_worker.to_json = lambda value: pickle.dumps(Loadable(), protocol=0).decode()


NUM_HELD_OUT = 1438


def test_two_workers_train_as_two_replicas_of_one_process_do(shared, unbroken):
    """T16: the same examples, weights, evaluations and best checkpoint, bit by bit."""
    found = differences(unbroken, shared.unbroken(digits(Variant("mirrored2"))).model_dir)
    recorded = [line.partition(":")[0] for line in found.pop("record")]
    assert (found, recorded) == ({}, ["run.json devices", "run.json input"])  # which are those of two processes


@pytest.mark.full
def test_three_workers_train(workspace, tmp_path):
    """T16: with a kill on the way, which ends both others; what they go on to is what an unbroken run gives."""
    sets = ("task.train_data.global_batch_size=24", "trainer.train_steps=24")
    run_to_end(workspace, tmp_path / "unbroken", *sets, workers=3)
    with cluster(workspace, tmp_path / "run", *sets, workers=3) as started:
        started.start_all()
        started.wait_for(lambda: steps_done(tmp_path / "run") >= 14)
        started.kill("worker", 2)
        assert sorted(started.wait_all().values()) == [-signal.SIGKILL, 75, 75], started.outputs()
    run_to_end(workspace, tmp_path / "run", *sets, workers=3)
    assert differences(tmp_path / "run", tmp_path / "unbroken") == {}


@pytest.mark.parametrize("batch_size", [1436, pytest.param(64, marks=pytest.mark.full)])
def test_each_example_is_evaluated_once_wherever_it_is(workspace, tmp_path, batch_size):
    """N17, B3, N32: batches that leave a worker without examples, or with fewer; all that tasks collect."""
    sets = (
        "trainer.train_steps=2",
        f"task.validation_data.global_batch_size={batch_size}",
        "trainer.summary_interval=1",
    )
    run_to_end(workspace, tmp_path / "run", *sets, experiment="digits_collected")
    alone = run_command(
        [
            *argv_of(workspace, tmp_path / "run", *sets, experiment="digits_collected"),
            "--mode=eval",
            "--set=runtime.distribution_strategy=off",
            "--set=task.validation_data.global_batch_size=100",
        ],
        cwd=workspace,
        folder=tmp_path,
    )
    assert alone.code == 0, alone.err
    row = next(row for row in rows(tmp_path / "run") if row["split"] == "validation")
    assert row["examples"] == NUM_HELD_OUT
    replicas = [row["replica"] for row in rows(tmp_path / "run") if row["split"] == "train"]
    assert set(replicas) == {0.5}, "what the steps of both returned"
    assert row["right"] / row["examples"] == pytest.approx(row["accuracy"], abs=1e-6)
    for name in ("accuracy", "validation_loss"):
        assert f"{name} {row[name]:.4g}" in alone.out, (row, alone.out)


def test_a_pickle_that_a_worker_sends_is_not_loaded(workspace, tmp_path):
    """T16: the others end with 2, and say who has sent it."""
    model_dir, mark = tmp_path / "run", tmp_path / "mark"
    with cluster(workspace, model_dir) as started:
        started.first("worker", 1, send_pickles)
        started.start("worker", 0, env={MARK: str(mark)})
        started.start("worker", 1, env={MARK: str(mark)})
        assert started.wait("worker", 0) == 2, started.outputs()
        assert "what worker 1 has sent is no message of this version of official-trainer" in started.err("worker", 0)
    assert not mark.exists()


def test_workers_that_were_not_started_alike_are_refused(workspace, tmp_path):
    """N19: before anything is built, in every process, with a table of what differs."""
    model_dir = tmp_path / "run"
    with cluster(workspace, model_dir) as started:
        started.start("worker", 0)
        started.start("worker", 1, argv=argv_of(workspace, model_dir, "trainer.train_steps=47"))
        assert set(started.wait_all().values()) == {2}
        for index in (0, 1):
            said = started.err("worker", index)
            assert "the processes of this run do not agree; nothing was trained" in said
            assert re.search(
                r"worker 0 \(\S+, pid \d+\) +worker 1 \(\S+, pid \d+\)\n +trainer.train_steps +48 +47\n", said
            ), said


def test_a_worker_that_does_not_come_is_named(workspace, tmp_path):
    """T16: the wait for the others is bounded, and says who is missing."""
    with cluster(workspace, tmp_path / "run", "runtime.rendezvous_timeout_seconds=1") as started:
        started.start("worker", 0)
        assert started.wait("worker", 0) == 75, started.outputs()
        address = started.addresses["worker"][1]
        assert f"worker 1 ({address}) did not answer within 1 seconds" in started.err("worker", 0)


@pytest.mark.full
def test_weights_that_differ_between_workers_are_noticed(workspace, tmp_path):
    """B9: the error names the variable and the two replicas, and where they are."""
    actions = "trainer.actions=[{type: replica_integrity}]"
    with cluster(workspace, tmp_path / "run", actions, experiment="digits_collected") as started:
        started.start("worker", 0)
        started.start("worker", 1, env={"HARMED": "1"})
        codes, said = started.wait_all(), started.err("worker", 0)
    assert codes == {("worker", 0): 1, ("worker", 1): 75}, said
    assert "replicas hold different values of batch_normalization/gamma:0 at step 5: replicas 0 (/job:worker/" in said
    assert "task:1/" in said
    assert "differ by up to 1." in said


def break_off(workspace, model_dir, act, *, at_step=15, sets=()):
    """Runs until `at_step`, lets `act(cluster)` do its work, and returns all exit codes."""
    with cluster(workspace, model_dir, *sets) as started:
        started.start_all()
        started.wait_for(lambda: steps_done(model_dir) >= at_step)
        act(started)
        return started.wait_all(), started.outputs()


@pytest.mark.parametrize("index", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_run_goes_on_after_sigterm_and_sigkill_to_any_worker(workspace, unbroken, tmp_path, index):
    """T16: after SIGTERM all exit 143 at a step that is saved; after SIGKILL nobody hangs; it goes on bit by bit."""
    model_dir = tmp_path / "run"
    codes, said = break_off(workspace, model_dir, lambda c: c.signal("worker", index, signal.SIGTERM), at_step=8)
    assert set(codes.values()) == {143}, said
    saved = max(committed_steps(str(model_dir)))
    assert saved >= steps_done(model_dir) - 1, said
    codes, said = break_off(workspace, model_dir, lambda c: c.kill("worker", index), at_step=saved + 4)
    assert codes == {("worker", index): -signal.SIGKILL, ("worker", 1 - index): 75}, said
    assert f"error: lost worker {index} (127.0.0.1:" in said
    status = json.loads((model_dir / "workers" / "worker-1" / "status.json").read_text())
    assert status["phase"] == ("failed" if index == 0 else "train")
    run_to_end(workspace, model_dir)
    assert differences(model_dir, unbroken) == {}


@pytest.mark.full
def test_a_stopped_worker_ends_the_others_with_75(workspace, unbroken, tmp_path):
    """T16: a process that lives and does nothing is noticed too, and ends itself when it wakes up."""
    model_dir = tmp_path / "run"

    def act(started):
        started.signal("worker", 1, signal.SIGSTOP)
        assert started.wait("worker", 0) == 75, started.outputs()
        started.signal("worker", 1, signal.SIGCONT)

    codes, said = break_off(workspace, model_dir, act)
    assert set(codes.values()) == {75}, said
    run_to_end(workspace, model_dir)
    assert differences(model_dir, unbroken) == {}


def examples_of_steps(model_dir):
    """The numbers of the examples of each step, over all replicas, in order."""
    seen = {}
    for _, step, what in id_lines(model_dir):
        seen.setdefault(step, set()).update(map(int, what.split(" ")[2].split(",")))
    return {step: sorted(numbers) for step, numbers in seen.items()}


@pytest.mark.full
def test_another_number_of_workers_goes_on_with_the_same_examples(workspace, tmp_path):
    """N25: two workers, then three, then one process: each step has the examples that it would have had."""
    sets = (
        "task.train_data.global_batch_size=24",
        "trainer.train_steps=30",
        "trainer.export.at_end=false",
        "runtime.distribution_strategy=auto",
    )
    model_dir = tmp_path / "run"
    for workers, at_step in ((2, 8), (3, 18)):
        with cluster(workspace, model_dir, *sets, workers=workers) as started:
            started.start_all()
            started.wait_for(lambda at_step=at_step: steps_done(model_dir) >= at_step)
            started.signal("worker", 0, signal.SIGTERM)
            assert set(started.wait_all().values()) == {143}, started.outputs()
    for directory in (model_dir, tmp_path / "unbroken"):
        alone = run_command(argv_of(workspace, directory, *sets), cwd=workspace, folder=tmp_path)
        assert alone.code == 0, alone.err
    assert examples_of_steps(model_dir) == examples_of_steps(tmp_path / "unbroken")


@pytest.mark.full
def test_sigterm_in_an_evaluation_leaves_it_and_saves(workspace, tmp_path):
    """T16: nobody waits for the end of a long evaluation; it is done again after the restart."""
    model_dir = tmp_path / "run"
    sets = ("task.validation_data.global_batch_size=2", "trainer.train_steps=26", "trainer.export.at_end=false")
    with cluster(workspace, model_dir, *sets, experiment="digits_collected") as started:
        started.start_all()
        started.wait_for(lambda: phase_of(model_dir) == "evaluate")
        started.signal("worker", 1, signal.SIGTERM)
        codes = started.wait_all()
        assert set(codes.values()) == {143}, started.outputs()
    assert max(committed_steps(str(model_dir))) == 26
    assert not [row for row in rows(model_dir) if row["split"] == "validation"]


@pytest.mark.full
def test_a_step_leaves_no_thread_behind(workspace, tmp_path):
    """T16: with a timeout TensorFlow would start one for each sum of gradients, and thousands within seconds."""
    sets = ("trainer.train_steps=600", "trainer.validation_interval=600", "trainer.checkpoint_interval=600")
    with cluster(workspace, tmp_path / "run", *sets) as started:
        started.start_all()
        counts = []
        for step in (100, 500):
            started.wait_for(lambda step=step: steps_done(tmp_path / "run") >= step)
            counts.append(len(list(Path(f"/proc/{started.pid('worker', 0)}/task").iterdir())))
    assert counts[1] - counts[0] < 100


@pytest.mark.full
def test_gradients_can_be_summed_in_a_ring(workspace, tmp_path):
    """T16: `all_reduce_alg` reaches TensorFlow; two workers have one order of sums, so the numbers stay."""
    sets = ("trainer.train_steps=6", "trainer.validation_interval=6", "trainer.export.at_end=false")
    run_to_end(workspace, tmp_path / "auto", *sets)
    run_to_end(workspace, tmp_path / "ring", *sets, "runtime.all_reduce_alg=ring")
    assert differences_of_runs(tmp_path / "ring", tmp_path / "auto") == []


@pytest.mark.full
def test_micro_batches_of_two_workers_are_those_of_two_replicas(shared, workspace, tmp_path):
    """G14: one sum of gradients for each update, bit by bit what one process gives."""
    sets = ("trainer.gradient_accumulation_steps=2", "trainer.train_steps=8", "trainer.export.best=false")
    run_to_end(workspace, tmp_path / "run", *sets)
    of_replicas = shared.unbroken(digits(Variant("mirrored2"), *sets, name="accumulation"))
    assert differences(tmp_path / "run", of_replicas.model_dir) == {}
