"""Whole runs in one process: what each mode does, what a run leaves behind, and that a broken run loses nothing."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.checkpoints.directory import CheckpointDirectory
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.runs import build, train
from official_trainer.runs.job import Job, check_ready
from official_trainer.runs.observer import RunObserver
from official_trainer.runs.training_process import TrainingProcess
from official_trainer.tasks import Task, registry
from official_trainer.tracking.jsonl import JsonlTracker, read_rows
from official_trainer.tracking.tensorboard import TensorBoardTracker
from tests.support import jobs, toy
from tests.support.cases import cases
from tests.support.runs import assert_same_checkpoint, rows, values
from tests.support.shuffled_runs import ShuffledTask, do, resolve


def steps_of(model_dir, split):
    return [row["step"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == split]


KERNEL = "model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"


def record(model_dir, name="run.json"):
    return json.loads(files.read_text(f"{model_dir}/{name}"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 80 steps to its end, which tests only read."""
    model_dir = str(tmp_path_factory.mktemp("finished") / "run")
    return model_dir, do(model_dir)


def test_a_run_leaves_everything_behind(finished):
    """N15, T18, T19: params, checkpoints with manifests, best, events, rows, record, status, export."""
    model_dir, metrics = finished
    assert committed_steps(model_dir) == (20, 40, 60, 80)
    assert steps_of(model_dir, "train") == [20, 40, 60, 80]
    assert steps_of(model_dir, "validation") == [40, 80]
    for name in ("train", "validation"):
        assert any(".tfevents." in file for file in files.list_dir(f"{model_dir}/{name}"))
    described = record(model_dir)
    assert described["experiment"] == "toy_run"
    assert described["status"] == "done"
    assert described["steps"] == {"start": 0, "current": 80, "end": 80}
    assert described["final_metrics"] == metrics
    assert described["best"]["metric"] == "accuracy"
    assert described["devices"]
    status = record(model_dir, "status.json")
    assert (status["phase"], status["step"], status["last_checkpoint_step"], status["exit_code"]) == ("done", 80, 80, 0)
    assert committed_steps(f"{model_dir}/best") == (described["best"]["step"],)


def test_params_reload_to_the_same_config(finished):
    """N8: params.yaml is the config that ran."""
    model_dir, _ = finished
    again = configuration.resolve(
        registry.get_config("toy_run"), experiment="toy_run", config_files=[f"{model_dir}/params.yaml"]
    )
    assert again.config == resolve().config


def served_loss(export_dir):
    """Returns the loss of what an export computes on the data of evaluations."""
    serve = tf.saved_model.load(export_dir).signatures["serving_default"]
    logits = serve(features=tf.constant(toy.FEATURES))["logits"].numpy()
    return keras.losses.sparse_categorical_crossentropy(toy.LABELS, logits, from_logits=True).numpy().mean()


def test_the_export_gives_the_evaluated_numbers(finished):
    """T19, T13: the SavedModel holds the averaged weights that the last evaluation used."""
    model_dir, metrics = finished
    np.testing.assert_allclose(served_loss(f"{model_dir}/export/80"), metrics["validation_loss"], rtol=1e-5)
    about = json.loads(files.read_text(f"{model_dir}/export/80/export.json"))
    assert about["step"] == 80
    assert about["versions"] == json.loads(files.read_text(f"{model_dir}/run.json"))["versions"]


def test_an_export_that_was_cut_off_is_made_again(finished, tmp_path):
    """T19: also when nothing else is left to do; with the numbers it stands for."""
    model_dir = str(tmp_path / "copy")
    shutil.copytree(finished[0], model_dir)
    path = f"{model_dir}/export/80/export.json"
    before = json.loads(files.read_text(path))
    files.rename(f"{model_dir}/export/80", f"{model_dir}/export/80.writing")
    do(model_dir)
    assert json.loads(files.read_text(path)) == before
    assert files.list_dir(f"{model_dir}/export") == ["80"]


def test_running_again_changes_nothing_and_returns_the_result(finished):
    """T10: every mode returns its metrics, also when there is nothing left to do."""
    model_dir, metrics = finished
    rows = files.read_text(f"{model_dir}/metrics.jsonl")
    assert do(model_dir) == pytest.approx(metrics)
    assert files.read_text(f"{model_dir}/metrics.jsonl") == rows
    assert record(model_dir)["restarts"] == 1


def test_a_run_that_stops_at_steps_equals_one_in_one(finished, model_dir):
    """N1, N15: `--until_step`, where nothing is due and where all is: every bit, the rows and the export are the same.

    With shuffling, dropout and averaging, whatever `steps_per_loop`. N16, N51: the time of all processes is added up,
    and its rows are there once.
    """
    for until_step in (33, 40):
        metrics = do(model_dir, until_step=until_step)
        assert committed_steps(model_dir)[-1] == until_step and not files.exists(f"{model_dir}/export")
        described = record(model_dir)
        assert (described["status"], described["steps"]["end"]) == ("done", 80)
        assert described["stopped_early"].startswith(f"stopped at step {until_step} of 80, by --until_step")
    assert described["final_metrics"] == metrics and "accuracy" in metrics
    assert do(model_dir, "trainer.steps_per_loop=7") == finished[1]
    assert record(model_dir)["stopped_early"] is None
    assert_same_checkpoint(finished[0], model_dir, 80)
    assert rows(model_dir) == rows(finished[0])
    assert files.list_dir(f"{model_dir}/export") == ["80"]
    time = record(model_dir)["time"]
    assert [attempt["steps"] for attempt in time["attempts"]] == [33, 7, 40]
    assert time["attempts"][:2] == described["time"]["attempts"]
    assert (time["total"]["restarts"], time["total"]["examples"]) == (2, 800)
    starts = [attempt["seconds"]["start"] for attempt in time["attempts"]]
    assert time["total"]["restart_seconds"] == pytest.approx(sum(starts[1:]))
    assert steps_of(model_dir, "time") == [20, 40, 60, 80]


def test_the_best_checkpoint_evaluates_to_its_record(finished):
    """T10, T11, T13: the latest and the best checkpoint hold averaged weights, which are averaged only once."""
    model_dir, metrics = finished
    latest = do(model_dir, mode="eval")
    for name in ("accuracy", "validation_loss"):
        assert latest[name] == pytest.approx(metrics[name], rel=1e-6)
    best = record(model_dir)["best"]
    assert do(model_dir, mode="eval", checkpoint="best")["accuracy"] == pytest.approx(best["value"])
    info = json.loads(files.read_text(f"{model_dir}/best/info.json"))
    assert info["best_ckpt_global_step"] == best["step"]
    assert info["accuracy"] == pytest.approx(best["value"])


def test_eval_without_a_checkpoint_is_an_error(model_dir):
    """T10: random weights are not evaluated."""
    with pytest.raises(
        CheckpointError,
        match=r"holds no checkpoint to eval; only the model.s first weights, which are random",
    ):
        do(model_dir, mode="eval")


def test_train_and_post_eval_evaluates_once_at_the_end(model_dir):
    """T10, G6: and returns the metrics; two epochs of 101 examples in batches of 10 end at step 21."""
    sets = ["trainer.train_steps=0", "trainer.train_epochs=2", "trainer.validation_interval=2"]
    assert "validation_loss" in do(model_dir, *sets, "trainer.export.at_end=false", mode="train_and_post_eval")
    assert steps_of(model_dir, "validation") == [21]
    assert record(model_dir)["steps"]["end"] == 21


def test_continuous_eval_evaluates_each_checkpoint_once(finished, tmp_path):
    """T10, N14, N11: all of a finished run, oldest first, by one evaluator; again, nothing is left to do.

    The run says where it ends; the evaluator's train_steps may differ. A second evaluator would evaluate the same
    checkpoints, and write to the same files.
    """
    model_dir = str(tmp_path / "copy")
    shutil.copytree(finished[0], model_dir)
    with (
        DirectoryLock(model_dir, name="continuous_eval"),
        pytest.raises(LockedError, match=r"is in use by pid \d+"),
    ):
        do(model_dir, mode="continuous_eval")
    metrics = do(model_dir, "trainer.train_steps=40", mode="continuous_eval")
    rows = read_rows(f"{model_dir}/continuous_eval/metrics.jsonl")
    assert [row["step"] for row in rows] == [20, 40, 60, 80]
    assert metrics["validation_loss"] == pytest.approx(finished[1]["validation_loss"], rel=1e-6)
    do(model_dir, mode="continuous_eval")
    assert read_rows(f"{model_dir}/continuous_eval/metrics.jsonl") == rows


def test_continuous_eval_goes_on_past_checkpoints_that_are_damaged_or_go(finished, tmp_path, monkeypatch, caplog):
    """N14: damaged, or deleted while it is read: the others are evaluated, the last one too."""
    model_dir = str(tmp_path / "copy")
    shutil.copytree(finished[0], model_dir)
    load_weights = CheckpointState.load_weights

    def harmed(state, directory, step):
        if step == 40:
            with open(f"{directory}/ckpt-40.data-00000-of-00001", "r+b") as file:
                file.write(b"\0" * files.size_bytes(file.name))
        elif step == 60:
            CheckpointDirectory(directory).delete(60)
        load_weights(state, directory, step)

    monkeypatch.setattr(CheckpointState, "load_weights", harmed)
    do(model_dir, mode="continuous_eval")
    assert [row["step"] for row in read_rows(f"{model_dir}/continuous_eval/metrics.jsonl")] == [20, 80]
    assert caplog.text.count("cannot be evaluated") == 2
    assert "checkpoint 40 cannot be evaluated: the data does not match its checksum at " in caplog.text
    assert "checkpoint 60 cannot be evaluated: ckpt-60.manifest.json is missing" in caplog.text
    assert not files.exists(f"{model_dir}/continuous_eval/lease.json")


@pytest.mark.parametrize("writer", cases([JsonlTracker, TensorBoardTracker, BestCheckpoint], TensorBoardTracker))
def test_an_evaluator_that_dies_in_the_middle_leaves_one_row_and_one_point_a_step(
    finished, model_dir, monkeypatch, writer
):
    """N14, T11: after its best checkpoint, after TensorBoard's points, or before both."""
    of_evaluations = shutil.ignore_patterns("best", "validation")
    shutil.copytree(finished[0], model_dir, ignore=of_evaluations)
    method = "maybe_export_checkpoint" if writer is BestCheckpoint else "log"
    call = getattr(writer, method)

    def die(self, *args):
        if 40 in args:
            if writer is BestCheckpoint:
                call(self, *args)
            raise KeyboardInterrupt
        return call(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(writer, method, die)
        with pytest.raises(KeyboardInterrupt):
            do(model_dir, mode="continuous_eval")
    assert files.exists(f"{model_dir}/continuous_eval/lease.json")
    do(model_dir, mode="continuous_eval")
    rows = read_rows(f"{model_dir}/continuous_eval/metrics.jsonl")
    assert [row["step"] for row in rows] == [20, 40, 60, 80]
    accumulator = EventAccumulator(f"{model_dir}/validation").Reload()
    for tag in ("accuracy", "loss"):
        assert sorted(event.step for event in accumulator.Tensors(tag)) == [20, 40, 60, 80]
    best = max(rows, key=lambda row: (row["accuracy"], -row["step"]))
    assert committed_steps(f"{model_dir}/best") == (best["step"],)
    assert json.loads(files.read_text(f"{model_dir}/best/info.json"))["best_ckpt_global_step"] == best["step"]
    assert not files.exists(f"{model_dir}/continuous_eval/lease.json")


TWENTY_STEPS = ("trainer.train_steps=20", "trainer.validation_interval=10", "trainer.export.at_end=false")


@pytest.fixture(scope="module")
def of_twenty_steps(tmp_path_factory):
    """A run of 20 steps in mode train, which evaluates never, though steps for it are set; tests copy it."""
    model_dir = str(tmp_path_factory.mktemp("of_twenty_steps") / "run")
    assert "training_loss" in do(model_dir, *TWENTY_STEPS, mode="train")
    assert steps_of(model_dir, "validation") == []
    return model_dir


def leave_lease(model_dir, done):
    """Writes the lease of an evaluator on another host, whose clock is wrong."""
    lease = {"host": "far", "pid": 7, "renewed": time.time() - 1000, "done": done}
    files.make_dirs(f"{model_dir}/continuous_eval")
    files.write_text_atomically(f"{model_dir}/continuous_eval/lease.json", json.dumps(lease))


KEEPS_ONE = ("trainer.max_to_keep=1", "trainer.export.at_end=false")


def test_an_evaluators_lease_keeps_checkpoints_until_it_has_evaluated_them(of_twenty_steps, tmp_path):
    """N14, C6: training has ended by then, so the evaluator deletes them if it knows how many the run keeps."""
    run_dirs = [str(tmp_path / name) for name in ("of the run", "others")]
    shutil.copytree(of_twenty_steps, run_dirs[0])
    leave_lease(run_dirs[0], done=[40])
    do(run_dirs[0], *KEEPS_ONE, mode="train")
    assert committed_steps(run_dirs[0]) == (20, 60, 80)
    shutil.copytree(*run_dirs)
    for run_dir, settings, steps in zip(run_dirs, (KEEPS_ONE, KEEPS_ONE[1:]), ((80,), (20, 60, 80)), strict=True):
        do(run_dir, *settings, mode="continuous_eval")
        assert committed_steps(run_dir) == steps


def test_the_end_of_training_deletes_what_an_evaluator_needed_at_the_last_save(of_twenty_steps, model_dir, monkeypatch):
    """N14, C6: the evaluator goes on during the export, and finds the run directory in use at its own end."""
    shutil.copytree(of_twenty_steps, model_dir)
    leave_lease(model_dir, done=[])
    monkeypatch.setattr(RunObserver, "on_end", lambda self, step, logs: leave_lease(model_dir, [20, 40, 60, 80]))
    do(model_dir, *KEEPS_ONE, mode="train")
    assert committed_steps(model_dir) == (80,)


def test_checkpoints_that_never_come_cannot_be_kept():
    """C6, N7: refused with the nearest interval that works."""
    message = (
        r"keep_checkpoint_every_n_steps: is 30, which is not a multiple of checkpoint_interval=20, .* for example 40"
    )
    with pytest.raises(configuration.ConfigError, match=message):
        resolve("trainer.keep_checkpoint_every_n_steps=30")


def test_what_killed_runs_left_is_collected(of_twenty_steps, model_dir):
    """C6: half-written files of the run directory do not pile up; files of others stay."""
    shutil.copytree(of_twenty_steps, model_dir)
    before = files.list_dir(model_dir)
    names = ("run.json", "status.json", "metrics.jsonl", "params.yaml", "checkpoint", "ckpt-20.manifest.json")
    for name in (f"{name}.tmp-{10_000_000 + pid}-0a1b2c3d" for name in names for pid in range(50)):
        files.write_text_atomically(f"{model_dir}/{name}", "", durable=False)
    files.write_text_atomically(f"{model_dir}/mine.tmp-1", "", durable=False)
    do(model_dir, *TWENTY_STEPS, mode="train")
    assert files.list_dir(model_dir) == sorted([*before, "mine.tmp-1"])


def test_others_may_be_there_before_the_trainer(tmp_path, monkeypatch):
    """T10, N7: an evaluator waits, leaves nothing, and gives up after the timeout; the directory is the trainer's.

    Another process may remove the empty one before it is locked, as the other workers of a cluster do, which only look
    whether they could make it.
    """
    prepare, removals, model_dir = train.prepare_model_dir, [], str(tmp_path / "run")

    def prepared_and_removed(model_dir, *args, **options):
        names = prepare(model_dir, *args, **options)
        if len(removals) < 2:
            removals.append(model_dir)
            os.rmdir(model_dir)
        return names

    assert do(model_dir, "trainer.continuous_eval_timeout=0", mode="continuous_eval") == {}
    monkeypatch.setattr(train, "prepare_model_dir", prepared_and_removed)
    do(model_dir, "trainer.train_steps=1", "trainer.export.at_end=false", mode="train")
    assert len(removals) == 2
    assert committed_steps(model_dir) == (1,)


def test_continuous_train_and_eval_fine_tunes_from_each_checkpoint(finished, model_dir, tmp_path):
    """T6, T10: a run for every checkpoint of init_checkpoint, each in a folder of its own, with its weights."""
    others = str(tmp_path / "others")
    shutil.copytree(finished[0], others, ignore=shutil.ignore_patterns("ckpt-20.*", "ckpt-40.*"))
    sets = [f"task.init_checkpoint={others}", "trainer.train_steps=1", "trainer.export.at_end=false",
            "trainer.optimizer_config.learning_rate.constant.learning_rate=1e-30"]  # fmt: skip
    metrics = do(model_dir, *sets, mode="continuous_train_and_eval")
    results = record(model_dir, "continuous_train_and_eval.json")
    assert list(results) == ["60", "80"]
    assert metrics == results["80"]
    for step in (60, 80):
        assert committed_steps(f"{model_dir}/from-{step}") == (1,)
        ours, theirs = values(f"{model_dir}/from-{step}", 1), values(others, step)
        np.testing.assert_array_equal(ours[KERNEL], theirs[KERNEL])


def test_another_models_checkpoint_is_refused(finished, tmp_path, monkeypatch):
    """N4: nothing is restored, nothing is overwritten."""
    model_dir = str(tmp_path / "copy")
    shutil.copytree(finished[0], model_dir)

    def wider(self):
        features = keras.Input((6,), name="features")
        return keras.Model(features, keras.layers.Dense(3, name="logits")(keras.layers.Dense(9)(features)))

    monkeypatch.setattr(ShuffledTask, "build_model", wider)
    params = files.read_text(f"{model_dir}/params.yaml")
    with pytest.raises(CheckpointError, match=r"checkpoint of another model; nothing was restored"):
        do(model_dir, "trainer.train_steps=100")
    assert files.read_text(f"{model_dir}/params.yaml") == params
    assert record(model_dir, "status.json")["exit_code"] == ExitCode.CONFIG
    assert record(model_dir)["status"] == "done"
    assert committed_steps(model_dir) == (20, 40, 60, 80)


@pytest.mark.parametrize("mode", cases(["train_and_eval", "continuous_eval"], "continuous_eval"))
def test_a_best_metric_that_is_nan_is_said_at_its_step_and_at_the_end(
    mode, of_twenty_steps, model_dir, monkeypatch, caplog
):
    """C6, T11: a run that keeps no best checkpoint does not end as if it had one."""

    class Nothing(keras.metrics.SparseCategoricalAccuracy):
        def result(self):
            return super().result() / 0.0 * 0.0

    if mode == "continuous_eval":
        shutil.copytree(of_twenty_steps, model_dir)
    monkeypatch.setattr(ShuffledTask, "build_metrics", lambda self, training=True: [Nothing("accuracy")])
    do(model_dir, *TWENTY_STEPS, mode=mode)
    assert not (files.exists(f"{model_dir}/best") and committed_steps(f"{model_dir}/best"))
    first = 20 if mode == "continuous_eval" else 10
    said = [message for message in caplog.messages if "NaN" in message]
    assert [message.partition(",")[0] for message in said] == [f"accuracy is NaN at step {first}"]


METRICS = r"does not produce 'acuracy'; it produces accuracy, validation_loss; did you mean"
REFUSED = {
    "a metric": ("trainer.best_checkpoint_eval_metric=acuracy", METRICS, None),
    "of an action": ("trainer.actions=[{type: early_stopping, monitor: acuracy}]", METRICS, []),
    "other weights": ("task.init_checkpoint=nowhere", "nowhere", [".nfs1"]),
    "devices": ("runtime.num_gpus=3", "runtime.num_gpus", []),
}


@pytest.mark.parametrize("what", cases([*REFUSED], "a metric", "other weights", "devices"))
def test_what_is_refused_before_the_first_step_leaves_a_directory_as_it_was(what, model_dir):
    """N15, N6, T11: not there, empty, or with what is no run; the next run there is no restart."""
    setting, message, names = REFUSED[what]
    if names is not None:
        os.makedirs(model_dir)
        for name in names:
            Path(model_dir, name).touch()
    with pytest.raises((UserError, LookupError), match=message):
        do(model_dir, setting)
    assert (os.listdir(model_dir) if os.path.exists(model_dir) else None) == names


def test_what_a_refused_start_finds_of_a_run_stays(finished, tmp_path):
    """N15: the record of the run, with the error of the start that was refused beside it."""
    model_dir = str(shutil.copytree(finished[0], tmp_path / "run"))
    before = record(model_dir), sorted(os.listdir(model_dir))
    with pytest.raises(LookupError):
        do(model_dir, "trainer.best_checkpoint_eval_metric=acuracy")
    assert (record(model_dir), sorted(os.listdir(model_dir))) == before
    assert "acuracy" in json.loads(Path(model_dir, "status.json").read_text())["error"]


@pytest.mark.parametrize(
    ("sets", "mode", "message"),
    [
        (["trainer.train_steps=0"], "train", r"trainer.train_steps: is 0, so there is nothing to train"),
        (["trainer.optimizer_config.optimizer.type=null"], "train", r"optimizer.type: is not set, and training needs"),
        (["trainer.optimizer_config.learning_rate.type=null"], "train", r"learning_rate.type: is not set, and train"),
        ([], "continuous_train_and_eval", r"task.init_checkpoint: is not set"),
    ],
)
def test_what_training_needs_is_asked_for_first(model_dir, sets, mode, message):
    """N7, T10: before TensorFlow builds anything."""
    with pytest.raises(configuration.ConfigError, match=message):
        do(model_dir, *sets, mode=mode)
    assert not files.exists(model_dir)


def test_a_batch_that_does_not_divide_over_the_replicas(model_dir):
    """N7: says which sizes would, and who set it."""
    message = r"--set: task.train_data.global_batch_size: 33 does not divide over 2 replicas; use 32 or 34"
    with pytest.raises(configuration.ConfigError, match=message):
        do(model_dir, "runtime.distribution_strategy=mirrored", "task.train_data.global_batch_size=33")


def test_export_on_demand(finished, tmp_path):
    """T19: any checkpoint can be exported later, with the averages and the results that it was evaluated with."""
    target = str(tmp_path / "exported")
    assert jobs.export("toy_run", resolve(), model_dir=finished[0], checkpoint="40", output_dir=target) == target
    exported = json.loads(files.read_text(f"{target}/export.json"))
    (row,) = (
        row for row in read_rows(f"{finished[0]}/metrics.jsonl") if (row["split"], row["step"]) == ("validation", 40)
    )
    assert exported["step"] == 40
    assert exported["metrics"] == {name: row[name] for name in ("accuracy", "validation_loss", "best_accuracy")}
    np.testing.assert_allclose(served_loss(target), row["validation_loss"], rtol=1e-5)


def test_check_tries_everything_and_leaves_nothing(model_dir):
    """N10: build, train, evaluate, save, restore, export; then the folder is gone again."""
    steps = list(jobs.check("toy_run", resolve(), mode="train_and_eval", model_dir=model_dir))
    assert [step.name for step in steps] == [
        "config", "model_dir", "build", "train", "evaluate", "monitored metric", "actions", "save", "restore",
        "export",
    ]  # fmt: skip
    assert all(step.error is None for step in steps)
    assert not files.exists(model_dir)


@pytest.mark.parametrize(
    ("sets", "name"),
    [
        (["trainer.train_steps=0"], "config"),
        (["task.train_data.global_batch_size=1000", "task.train_data.drop_remainder=true",
          "runtime.num_gpus=9"], "build"),
        (["trainer.best_checkpoint_eval_metric=nope"], "monitored metric"),
    ],
)  # fmt: skip
def test_check_names_the_step_that_fails(model_dir, sets, name):
    """N10: the failing step is the last, with its error."""
    steps = list(jobs.check("toy_run", resolve(*sets), mode="train_and_eval", model_dir=model_dir))
    assert steps[-1].name == name
    assert steps[-1].error.exit_code == ExitCode.CONFIG
    assert not files.exists(model_dir)


def test_after_step_changes_the_model_each_step():
    """G11: a weight constraint, traced with the step, after the optimizer."""

    class Clipped(toy.ToyTask):
        def after_step(self, model):
            for weight in model.trainable_variables:
                weight.assign(tf.clip_by_value(weight, -0.01, 0.01))

    trainer = toy.build(task_cls=Clipped, evaluate=False)
    trainer.train(2)
    assert np.abs(trainer.model.trainable_variables[0]).max() == np.float32(0.01)


def test_a_run_whose_checkpoints_were_all_taken_away_does_not_begin_again_unasked(finished, model_dir):
    """N3: never a silent step 0."""
    shutil.copytree(finished[0], model_dir)
    rows = read_rows(f"{model_dir}/metrics.jsonl")
    for name in files.list_dir(model_dir):
        if name.startswith("ckpt-"):
            files.remove(files.join(model_dir, name))
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"holds no checkpoint, but this run has saved one at step 80"):
            do(model_dir)
    assert read_rows(f"{model_dir}/metrics.jsonl") == rows


@pytest.mark.parametrize("event", cases(["window", "evaluation", "last_evaluation"], "window"))
def test_a_run_whose_directory_is_moved_ends_and_continues_at_the_new_place(finished, tmp_path, monkeypatch, event):
    """N1, N6: exit code 2, where it is now, no directory at the old place, and the same end."""
    old, new = tmp_path / "old", tmp_path / "new"

    def move(state_step):
        if state_step == {"window": 30, "evaluation": 40, "last_evaluation": 80}[event] and not new.exists():
            old.rename(new)

    if event == "window":
        on_window = RunObserver.on_window
        monkeypatch.setattr(
            RunObserver, "on_window", lambda self, state, *args: (move(state.step), on_window(self, state, *args))
        )
    else:
        enter = TrainingProcess.enter
        monkeypatch.setattr(
            TrainingProcess,
            "enter",
            lambda self, phase, step=None: (move(step) if phase == "evaluate" else None, enter(self, phase, step)),
        )
    with pytest.raises(LockedError, match=rf"--model_dir={old} was moved while .* now at {new}") as caught:
        do(str(old), "trainer.export.at_end=false")
    assert caught.value.exit_code == ExitCode.CONFIG
    # What a save that was under way has written there is no checkpoint.
    assert not (old / "run.json").exists()
    assert not committed_steps(str(old))
    assert record(new)["status"] == "running"  # as after a kill
    assert do(str(new), "trainer.export.at_end=false") == finished[1]
    assert rows(new) == rows(finished[0])
    assert_same_checkpoint(str(new), finished[0], 80)


def _cut(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))


@pytest.mark.parametrize("change", cases([_cut, Path.unlink], _cut))
def test_what_is_gone_of_a_run_is_said_at_its_next_start(finished, tmp_path, caplog, change):
    """N6, N15, T19: rows that are not the run's, once for a checkpoint; a best checkpoint, once."""
    run_dir = tmp_path / "run"
    shutil.copytree(finished[0], run_dir)
    shutil.rmtree(run_dir / "best")
    warning = (
        rf"{run_dir}/metrics\.jsonl does not hold the row of time at step 80, which this run wrote before its "
        r"checkpoint of step 80: the file was emptied, cut, or replaced by that of another run\. The run goes on"
    )
    named = rf"{run_dir}/run\.json names a best checkpoint \(accuracy \S+ at step \d+\), but {run_dir}/best holds none"

    def said(*sets):
        caplog.clear()
        do(str(run_dir), "trainer.export.at_end=false", *sets)
        return [len(re.findall(text, caplog.text)) for text in (warning, named)]

    assert said() == [0, 1]
    assert record(run_dir)["best"] is None
    change(run_dir / "metrics.jsonl")
    assert said("trainer.train_steps=100") == [1, 0]
    assert record(run_dir)["best"]["step"] == 100
    assert said("trainer.train_steps=100") == [0, 0]


def test_a_newest_checkpoint_without_its_manifest_is_not_passed_over_silently(finished, tmp_path):
    """N3, N6, T10: an older one is evaluated when it is named, never without a word."""
    run_dir = tmp_path / "run"
    shutil.copytree(finished[0], run_dir)
    (run_dir / "ckpt-80.manifest.json").unlink()
    message = r"ckpt-80 is damaged: ckpt-80\.manifest\.json .*; name another with --checkpoint: 20, 40, 60$"
    with pytest.raises(CheckpointError, match=message):
        do(str(run_dir), mode="eval")
    assert do(str(run_dir), mode="eval", checkpoint="60")


# Where only the model tells its Keras.


class OfEither(Task):
    """Its module says nothing of its Keras."""

    def build_model(self):
        keras = __import__(self.task_config.init_checkpoint)
        return keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])


@registry.register_config_factory("of_either", task_cls=OfEither)
def of_either():
    return configuration.ExperimentConfig(task=configuration.TaskConfig(init_checkpoint="keras"))


def job_of(keras):
    sets = [f"task.init_checkpoint={keras}", "runtime.distribution_strategy=parameter_server"]
    resolved = configuration.resolve(registry.get_config("of_either"), experiment="of_either", sets=sets)
    return Job(experiment="of_either", resolved=resolved, model_dir="d", mode="eval")


def test_a_strategy_that_the_model_lacks_is_refused_before_a_step():
    """N37: where `import keras` is not in the experiment's module; an evaluation does without the strategy."""
    check_ready(job_of("keras"))
    with pytest.raises(configuration.ConfigError) as refused:
        build.build(job_of("keras"))
    (problem,) = refused.value.problems
    assert "parameter_server is for models of tf_keras, and this experiment's is of Keras 3; use" in problem.message
    assert build.build(job_of("tf_keras")).model.count_params() == 2
