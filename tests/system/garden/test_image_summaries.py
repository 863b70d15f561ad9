"""Images that tasks of Model Garden return, as its segmentation and detection tasks do."""

import tensorflow as tf

from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from tests.support import toy
from tests.support.garden.driver import _untouched_process, logged_steps, params_of  # noqa: F401
from tests.support.garden.toy import GardenTask
from tests.support.tracking.readers import READERS

IMAGES = "image/validation_outputs/"


class Drawing(GardenTask):
    """Collects the last batch of all replicas, and draws a picture of each of its examples."""

    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "visualization": (inputs[0], {"logits": model(inputs[0])})}

    def aggregate_logs(self, state=None, step_outputs=None):
        features, outputs = step_outputs["visualization"]
        return {"image": tf.concat(features, axis=0), "logits": tf.concat(outputs["logits"], axis=0)}

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        assert len(aggregated_logs["image"]) == len(aggregated_logs["logits"])
        pictures = tf.cast(tf.zeros([len(aggregated_logs["image"]), 4, 6, 3]), tf.uint8)
        return {f"{IMAGES}{n}": each[None] for n, each in enumerate(pictures)}


def params(batch):
    found = params_of(best_checkpoint_eval_metric="accuracy", best_checkpoint_export_subdir="best_ckpt")
    found.override({"task": {"validation_data": {"global_batch_size": batch}}})
    return found


def test_images_of_a_task_reach_tensorboard(tmp_path):
    """T24: beside its numbers and a best checkpoint; of 101 examples 37 are in the last batch of both replicas."""
    keras.backend.clear_session()
    config = params(64)
    run_experiment(toy.strategy_of("mirrored2"), Drawing(config.task), "train_and_eval", config, str(tmp_path))
    found = [(tag.rpartition("/")[2], step) for tag, step, _ in READERS["tensorboard"](tmp_path) if IMAGES in tag]
    assert sorted(found) == sorted((str(number), step) for number in range(37) for step in (10, 20))
    assert logged_steps(tmp_path / "validation", "accuracy") == [10, 20]


def test_managers_of_the_caller_write_in_place_of_ours(tmp_path):
    """T18, T24: each for its split, images in Model Garden's form; training has what `train_loop_end` returns."""

    class Writing(Trainer):
        def train_loop_end(self):
            return {**super().train_loop_end(), "note": tf.constant("*so*"), "image/seen": tf.zeros([1, 4, 6, 3])}

    from official.vision.utils import summary_manager  # here, as it takes seconds in each process of pytest

    config = params(20)
    with tf.distribute.get_strategy().scope():
        task = Drawing(config.task)
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        trainer = Writing(config, task, task.build_model(), optimizer)
    manager = summary_manager.ImageScalarSummaryManager(
        str(tmp_path / "mine"), tf.summary.scalar, tf.summary.image, global_step=trainer.global_step
    )
    run = tmp_path / "run"
    run_experiment(None, task, "train_and_eval", config, str(run), trainer=trainer, eval_summary_manager=manager)
    for name in ("note", "image/seen", "loss"):
        assert logged_steps(run / "train", name) == [5, 10, 15, 20], name
    for name in (f"{IMAGES}0", "accuracy"):
        assert logged_steps(tmp_path / "mine", name) == [10, 20], name
    ours = {name for name, _, _ in READERS["tensorboard"](run)}
    assert not [name for name in ours if name.startswith("validation/") and "_hparams_" not in name]
