"""`run_experiment`: runs that are broken off, that change drivers, and that use strategies of the caller."""

import pytest
import tensorflow as tf
from official.core import train_lib, train_utils

from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from official_trainer.tasks.optimization import build_slots
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.garden.driver import (
    _untouched_process,  # noqa: F401
    call,
    logged_steps,
    params_of,
    their_run,
    trainer_of,
    weights_of,
)
from tests.support.garden.toy import GardenTask


def test_evaluates_checkpoints_of_the_run(tmp_path):
    """T10: eval the newest, continuous_eval each, with summaries and the best checkpoint."""
    params = params_of(best_checkpoint_eval_metric="accuracy", best_checkpoint_export_subdir="best_ckpt")
    call(tmp_path, "train", params=params)
    seen = []
    _, logs = call(tmp_path, "eval", params=params, run_post_eval=True, eval_actions=[seen.append])
    assert [float(each["accuracy"]) for each in seen] == [float(logs["accuracy"])]
    assert logged_steps(tmp_path / "validation", "accuracy") == [20]
    assert call(tmp_path, "eval", params=params, save_summary=False)[1] == {}
    assert logged_steps(tmp_path / "validation", "accuracy") == [20]
    assert not (tmp_path / "best_ckpt").exists()
    _, logs = call(tmp_path, "continuous_eval", params=params, run_post_eval=True, eval_actions=[seen.append])
    assert len(seen) == 3
    assert logs["best_accuracy"] >= logs["accuracy"]
    assert (tmp_path / "best_ckpt" / "info.json").exists()


@pytest.mark.parametrize("has_source", [True, False])
def test_eval_without_a_checkpoint_is_of_the_first_weights_as_there(tmp_path, caplog, has_source, monkeypatch):
    """T23: pre-trained ones, exactly as their driver evaluates them; without any, those that the seed gives."""
    monkeypatch.setattr(keras.src.backend, "_USE_GENERATOR_FOR_RNG", False)  # as in a program of its own
    source = tmp_path / "source"
    if has_source:
        call(source, "train")
    found = {}
    for name, run in (("ours", run_experiment), ("theirs", train_lib.run_experiment)):
        keras.backend.clear_session()
        keras.utils.set_random_seed(5)
        params = params_of()
        params.task.init_checkpoint = str(source) if has_source else ""
        task, strategy = GardenTask(params.task), tf.distribute.get_strategy()
        _, logs = run(strategy, task, "eval", params, str(tmp_path / name), run_post_eval=True)
        found[name] = float(logs["accuracy"])
    assert found["ours"] == found["theirs"]
    assert logged_steps(tmp_path / "ours" / "validation", "accuracy") == [0], "they evaluate twice for this result"
    said = f"those of task.init_checkpoint={source}" if has_source else "first weights, which no run has trained"
    assert f"{tmp_path / 'ours'} holds no checkpoint; the weights that are evaluated are {said}" in caplog.text
    assert committed_steps(str(tmp_path / "ours")) == ()


def test_eval_without_a_checkpoint_leaves_a_trainer_that_has_trained(tmp_path, caplog):
    """T23: its weights are the program's."""
    params = params_of()
    trainer = trainer_of(Trainer, params)
    trainer.train(tf.constant(3))
    expected = weights_of(trainer.model)
    model, logs = call(tmp_path, "eval", params=params, trainer=trainer, run_post_eval=True)
    toy.assert_bitwise_equal(weights_of(model), expected)
    assert "accuracy" in logs
    assert "holds no checkpoint; the weights that are evaluated are those that its program has trained for 3 steps" in (
        caplog.text
    )


def test_eval_where_all_checkpoints_are_damaged_is_refused(tmp_path):
    """N3: first weights would hide the damage."""
    call(tmp_path, "train")
    for path in tmp_path.glob("ckpt-*.index"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"ckpt-20 is damaged"):
        call(tmp_path, "eval")


def test_what_the_caller_writes_into_the_run_directory_stays(tmp_path):
    """Their train.py writes params.yaml before each call."""
    params = params_of()
    for _ in range(2):
        train_utils.serialize_config(params, str(tmp_path))
        theirs = (tmp_path / "params.yaml").read_bytes()
        call(tmp_path, params=params)
        assert (tmp_path / "params.yaml").read_bytes() == theirs
    assert not (tmp_path / "params.1.yaml").exists()
    assert committed_steps(str(tmp_path)) == (10, 20)


def test_averages_go_on_in_either_driver(tmp_path):
    """T22, N4: in a checkpoint ours lie where their EMA optimizer keeps its own, and the slots of the optimizer too."""
    params = params_of(train_steps=10)
    params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.5}}}})
    theirs = their_run(tmp_path, params)
    ours = trainer_of(Trainer, params)
    call(tmp_path, "train", params=params, trainer=ours)
    toy.assert_bitwise_equal(weights_of(ours.model), weights_of(theirs.model))
    toy.assert_bitwise_equal(averages_of(ours), [value.numpy() for value in theirs.optimizer._average_weights])
    toy.assert_bitwise_equal(slots_of(ours.optimizer), slots_of(theirs.optimizer._optimizer))

    params.override({"trainer": {"train_steps": 20}})
    ours = trainer_of(Trainer, params)
    call(tmp_path, "train", params=params, trainer=ours)
    back = their_run(tmp_path, params)
    build_slots(back.optimizer._optimizer, back.model.trainable_variables)  # which they do with the next step
    toy.assert_bitwise_equal(weights_of(back.model), weights_of(ours.model))
    toy.assert_bitwise_equal([value.numpy() for value in back.optimizer._average_weights], averages_of(ours))
    toy.assert_bitwise_equal(slots_of(back.optimizer._optimizer), slots_of(ours.optimizer))


def averages_of(trainer):
    return [value.numpy() for value in trainer.context.average.values]


def slots_of(optimizer):
    return [variable.numpy() for variable in optimizer.variables()]


def test_a_strategy_for_several_processes_serves_one_alone(tmp_path):
    call(tmp_path, strategy=tf.distribute.MultiWorkerMirroredStrategy())


def test_a_checkpoint_that_their_driver_deletes_while_it_is_evaluated_has_been_read(tmp_path, monkeypatch):
    """T22: it keeps none for an evaluator, and with `max_to_keep` 1 deletes it within seconds."""
    their_run(tmp_path, params_of(train_steps=10))
    load_weights = CheckpointState.load_weights

    def deleted(state, directory, step):
        load_weights(state, directory, step)
        for path in tmp_path.glob(f"ckpt-{step}.*"):
            path.unlink()

    monkeypatch.setattr(CheckpointState, "load_weights", deleted)
    call(tmp_path, "continuous_eval", params=params_of(train_steps=10))
    assert [row["step"] for row in read_rows(str(tmp_path / "continuous_eval" / "metrics.jsonl"))] == [5, 10]


def test_a_metric_with_several_results_is_recorded_once(tmp_path):
    """T5: a step returns them, too, in Model Garden's way; its YOLO has one such metric for each level."""
    from official.projects.yolo.tasks.task_utils import ListMetrics

    class Grouped(GardenTask):
        def build_metrics(self, training=True):
            return [ListMetrics(["mean", "most"], name="outputs")]

        def process_metrics(self, metrics, labels, model_outputs, **kwargs):
            metrics[0].update_state({"mean": tf.reduce_mean(model_outputs), "most": tf.reduce_max(model_outputs)})

    params = params_of()
    call(tmp_path, params=params, task=Grouped(params.task))
    rows = [row for row in read_rows(str(tmp_path / "metrics.jsonl")) if row["split"] in ("train", "validation")]
    assert len(rows) > 2
    assert all(row["outputs/mean"] < row["outputs/most"] for row in rows), rows


def test_datasets_of_the_caller(tmp_path):
    """T1: a trainer that was given its data needs none of the task's."""
    params = params_of()
    task = GardenTask(params.task)
    data = [
        task.build_inputs(each, tf.distribute.InputContext())
        for each in (params.task.train_data, params.task.validation_data)
    ]
    params.task.train_data = params.task.validation_data = None
    trainer = trainer_of(Trainer, params, train_dataset=data[0], validation_dataset=data[1])
    _, logs = call(tmp_path, params=params, trainer=trainer, run_post_eval=True)
    assert "validation_loss" in logs


def test_a_pruned_model_has_its_steps_counted(tmp_path, monkeypatch):
    """`task.pruning` adds their action, as their driver does."""
    from official.core import actions

    made = []

    class Pruning:
        def __init__(self, export_dir, model, optimizer):
            made.append([export_dir, model, optimizer, 0])

        def __call__(self, output):
            made[0][3] += 1

    monkeypatch.setattr(actions, "PruningAction", Pruning)
    params = params_of()
    params.task.pruning = True
    model, _ = call(tmp_path, "train", params=params)
    assert made[0][0] == str(tmp_path)
    assert made[0][1] is model
    assert made[0][3] == 4
