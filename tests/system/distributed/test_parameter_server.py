"""Training under a coordinator, with real processes and real kills."""

import json
import os
import signal

import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.distributed.coordinated import LONG, ROLES, WORKSPACE, Run
from tests.support.forked import run_command

EVERYTHING = (
    "trainer.optimizer_config.optimizer.type=adamw",
    "trainer.optimizer_config.optimizer.adamw.gradient_clip_norm=0.5",
    "trainer.optimizer_config.learning_rate={type: cosine, cosine: {initial_learning_rate: 0.01, decay_steps: 200}}",
    "trainer.optimizer_config.warmup={type: linear, linear: {warmup_steps: 10}}",
    "trainer.optimizer_config.ema={average_decay: 0.9}",
    "runtime.mixed_precision_dtype=bfloat16",
    "trainer.actions=[{type: publish_intermediates, when: {any: [{at_steps: [1]}, {every: 60}]}}]",
    "trainer.actions+=[replica_integrity]",
)


def test_workers_share_every_window_and_the_result_is_that_of_any_run(tmp_path):
    """T7, N32: two workers, two parameter servers: exact steps, each example as planned, both always at work."""
    sets = ("trainer.train_steps=120", "trainer.validation_interval=60", "trainer.export.at_end=true", *EVERYTHING)
    with Run(tmp_path, *sets, roles={"chief": 1, "worker": 2, "ps": 2}) as run:
        assert run.wait_all() == {0}, run.cluster.outputs()
        run.assert_done(120)
        assert run.steps_so_far() == 120 - 3  # three were published from, apart
        larger = [window for window in run.windows() if window["window"] >= 8]
        assert larger
        for window in larger:
            assert sum(window["steps"]) == window["window"]
            assert min(window["steps"]) > 0
        assert run.seen(120).sum() == 120 * 8
        assert set(run.rows("validation")) == {60, 120}
        assert {row["examples"] for row in run.rows("validation").values()} == {96.0}
        assert {row["share"] for row in run.rows("train").values()} == {1.0}  # what each step returned
        assert "worker w of W" in run.record()["order_of_examples"]
        assert "on 2 workers and 2 ps" in run.cluster.out("chief")
        assert (run.model_dir / "export" / "120").is_dir()

    evaluated = run_command(["eval", *run.words(*run.sets)], cwd=WORKSPACE, folder=tmp_path)
    assert evaluated.code == 0, evaluated.err
    row = run.rows("validation")[120]
    for name in ("accuracy", "validation_loss", "examples"):
        assert f"{name} {row[name]:.4g}" in evaluated.out
    alone = [word for word in run.sets if "rendezvous" not in word]
    alone += ["runtime.distribution_strategy=off", "trainer.train_steps=132"]
    on_one_device = run_command(["train", *run.words(*alone), "--allow_config_change"], cwd=WORKSPACE, folder=tmp_path)
    assert on_one_device.code == 0, on_one_device.err
    assert run.seen(132).sum() == 132 * 8


@pytest.mark.full
def test_an_action_changes_variables_on_parameter_servers(tmp_path):
    """B12: weights and averages; the last checkpoint has what was handed back."""
    sets = ("task.fill=true", "trainer.optimizer_config.ema={average_decay: 0.9}")
    with Run(tmp_path, *sets) as run:
        assert run.wait_all() == {0}, run.cluster.outputs()
        reader = tf.train.load_checkpoint(f"{run.model_dir}/ckpt-60")
        of_kernels = {key for key in reader.get_variable_to_shape_map() if "/kernel/" in key}
        filled = {key for key in of_kernels if "ema_base_optimizer" not in key}  # Adam's slots are not
        assert len(filled) == 4
        assert all((reader.get_tensor(key) == 0.25).all() for key in filled)


@pytest.mark.full
def test_an_evaluator_beside_evaluates_every_checkpoint_whatever_its_mode_says(tmp_path):
    """T7: a process of the role evaluator follows the run, on its own devices, and gets what the chief gets."""
    with Run(tmp_path, "trainer.checkpoint_interval=30", roles={**ROLES, "evaluator": 1}) as run:
        assert run.wait_all() == {0}, run.cluster.outputs()
        beside, inline = run.rows("validation", "continuous_eval"), run.rows("validation")
        assert set(beside) == set(inline) == {30, 60}
        for step in beside:
            for name in ("accuracy", "validation_loss", "examples"):
                assert beside[step][name] == pytest.approx(inline[step][name], abs=1e-6)


def test_a_run_outlives_a_stop_a_worker_that_died_and_a_parameter_server(tmp_path):
    """T7: SIGTERM of the chief; SIGKILL of a worker, which comes back; SIGKILL of a server; the same command again."""
    with Run(tmp_path, *LONG, spins=8) as run:
        # A stop: all of them end with 143; the steps that workers were at are saved, and the rerun is exact.
        run.wait_for_step(100)
        run.cluster.signal("chief")
        assert run.wait_all() == {143}, run.cluster.outputs()
        assert "which is saved" in run.cluster.err("chief")
        stopped = run.record()["last_checkpoint_step"]
        assert run.seen(stopped).sum() == stopped * 8
        run.cluster.start_all()
        run.wait_for_step(run.steps_so_far() + 50)
        assert f"continuing from step {stopped}" in run.cluster.out("chief")

        # A worker that dies costs no step and adds none; the same process started again takes part again.
        run.cluster.kill("worker", 1)
        run.wait_for_step(run.steps_so_far() + 50)
        before = len(run.windows())
        run.cluster.start("worker", 1)
        run.cluster.wait_for(lambda: any(window["steps"][1] > 0 for window in run.windows()[before:]))
        assert run.windows()[before - 1]["steps"][1] == 0
        said, address = run.cluster.err("chief"), run.cluster.addresses["worker"][1]
        assert f"warning: lost worker 1 ({address}): the others take over its steps; it may come back\n" in said
        assert "\nworker 1 is back\n" in said

        # The variables were on the server alone: exit code 75 with its name; the last checkpoint brings them back.
        run.cluster.kill("ps")
        assert run.cluster.wait("chief") == 75
        assert f"lost ps 0 ({run.cluster.addresses['ps'][0]})" in run.cluster.err("chief")
        assert run.record()["status"] == "failed"
        saved = max(committed_steps(str(run.model_dir)))
        # The step in which the worker died may have been half done, and was done once more.
        assert saved * 8 <= run.seen(saved).sum() <= (saved + 1) * 8
        run.cluster.start("ps")
        run.cluster.start("chief")
        assert run.wait_all() == {0}, run.cluster.outputs()
        run.assert_done(600)
        assert f"continuing from step {saved}" in run.cluster.out("chief")
        assert run.seen(600).sum() - run.seen(saved).sum() == (600 - saved) * 8


@pytest.mark.full
def test_workers_and_servers_of_one_core_each_train(tmp_path):
    """T7: TensorFlow alone hangs there: with one thread for ops, the one that waits for a variable keeps it."""
    with Run(tmp_path, first=keep_to_one_core_unless_chief) as run:
        assert run.wait_all() == {0}, run.cluster.outputs()
        run.assert_done(60)


def keep_to_one_core_unless_chief():
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.full
def test_without_any_worker_the_chief_gives_up_in_time(tmp_path):
    """T7: with all workers gone the chief waits for runtime.rendezvous_timeout_seconds and names them."""
    with Run(tmp_path, *LONG, "runtime.rendezvous_timeout_seconds=6") as run:
        run.wait_for_step(100)
        for index in range(2):
            run.cluster.kill("worker", index)
        assert run.cluster.wait("chief") == 75
        for index, address in enumerate(run.cluster.addresses["worker"]):
            assert f"worker {index} ({address})" in run.cluster.err("chief")
        run.cluster.kill("ps")


def test_who_does_not_come_is_named(tmp_path):
    """T7: a cluster that is not complete in time ends with 75 everywhere; the chief says who was missing."""
    run = Run(tmp_path, "runtime.rendezvous_timeout_seconds=2")
    with run.cluster as cluster:
        for name in (("chief", 0), ("worker", 0), ("ps", 0)):
            cluster.start(*name)
        assert run.wait_all() == {75}, cluster.outputs()
        assert f"worker 1 ({cluster.addresses['worker'][1]}) did not answer within 2 seconds" in cluster.err("chief")
        assert "the chief" in cluster.err("ps")


@pytest.mark.full
def test_a_worker_that_hangs_is_said_before_the_watchdog_ends_the_run(tmp_path):
    """T7: SIGSTOP of a worker: no other worker can take its closure; the chief says that it waits, and exits with 5."""
    # TensorFlow sends each new function to all workers, and a save makes one: it would hang first.
    with Run(tmp_path, *LONG, "trainer.checkpoint_interval=600", "runtime.stall_floor_seconds=8") as run:
        run.wait_for_step(100)
        run.cluster.signal("worker", 1, signal.SIGSTOP)
        assert run.cluster.wait("chief", timeout_seconds=100) == 5
        assert "no worker has finished a step for 5 seconds, though all of them answer" in run.cluster.err("chief")


@pytest.mark.full
def test_data_that_ends_is_repeated_or_refused(tmp_path):
    """T7: a finite pipeline that knows nothing of workers: each of them reads its batches, again and again."""
    sets = ("task.source=stream", "trainer.on_data_end=repeat")
    with Run(tmp_path, *sets, spins=0) as run:
        assert run.wait_all() == {0}, run.cluster.outputs()
        assert run.seen(60).sum() == 60 * 8
        assert run.seen(60).min() > 0


def test_data_that_ends_and_is_not_repeated_says_so(tmp_path):
    """T7: at the end of a worker's data the run ends with the exit code of bad data, and says what to set."""
    with Run(tmp_path, "task.source=stream", spins=0) as run:
        assert run.cluster.wait("chief") == 3
        assert "the training data of a worker ended" in run.cluster.err("chief")
        assert "trainer.on_data_end=repeat" in run.cluster.err("chief")


REFUSED = (
    *("runtime.mixed_precision_dtype=float16", "runtime.run_eagerly=true", "trainer.train_tf_while_loop=false"),
    *("trainer.train_tf_function=false", "trainer.on_data_end=stop", "trainer.recovery_data=skip_batch"),
)


def test_what_cannot_be_had_is_refused_before_anybody_is_waited_for(tmp_path):
    """T7: what has no meaning for several workers is refused at once, all of it, by its place in the config."""
    run = Run(tmp_path, *REFUSED, "trainer.recovery_max_trials=1")
    with run.cluster as cluster:
        cluster.start("chief")
        assert cluster.wait("chief") == 2
        for word in REFUSED:
            assert word.partition("=")[0] in cluster.err("chief"), cluster.err("chief")


def test_without_a_cluster_it_says_how_to_get_one(tmp_path):
    """T16: the strategy without anybody to work with."""
    words = ["--set=runtime.distribution_strategy=parameter_server", f"--model_dir={tmp_path}/run"]
    done = run_command(["train", "--experiment=points", *words], cwd=WORKSPACE, folder=tmp_path)
    assert done.code == 2
    assert "TF_CONFIG" in done.err
