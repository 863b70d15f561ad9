"""The job of `goodput.py` for Model Garden's driver: `python -m benchmarks.goodput_garden MODEL_DIR CHECKPOINT_STEPS`.

Started again, it goes on from its newest checkpoint, as that driver does. Of Model Garden only its core is imported.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import tensorflow as tf
import tf_keras
from official.common import distribute_utils
from official.core import base_task, task_factory, train_lib
from official.core import config_definitions as cfg
from official.modeling import optimization

from benchmarks import goodput_job


@dataclasses.dataclass
class GoodputConfig(cfg.TaskConfig):
    """A classifier of generated examples."""

    train_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=True, global_batch_size=goodput_job.BATCH)
    )


@task_factory.register_task_cls(GoodputConfig)
class GoodputTask(base_task.Task):
    """Classifies, and notes each step."""

    def build_model(self) -> Any:
        return goodput_job.build_model()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return goodput_job.pipeline()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(losses)

    def build_metrics(self, training: bool = True) -> list[Any]:
        return [tf_keras.metrics.SparseCategoricalAccuracy("accuracy")]

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        features, labels, ids = inputs
        with tf.control_dependencies([goodput_job.note(optimizer.iterations, ids)]):
            return super().train_step((tf.identity(features), labels), model, optimizer, metrics)


def experiment(checkpoint_steps: int) -> cfg.ExperimentConfig:
    """Returns the config, with the interval of checkpoints."""
    constant = {"type": "constant", "constant": {"learning_rate": 1e-4}}
    sections = {"optimizer": {"type": "adam"}, "learning_rate": constant}
    return cfg.ExperimentConfig(
        task=GoodputConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=goodput_job.LAST_STEP,
            steps_per_loop=goodput_job.SAVE_STEPS,
            summary_interval=goodput_job.SUMMARY_STEPS,
            checkpoint_interval=checkpoint_steps,
            optimizer_config=optimization.OptimizationConfig(sections),
        ),
    )


def main(model_dir: str, checkpoint_steps: int) -> None:
    """Trains as Model Garden's `train.py` files do."""
    params = experiment(checkpoint_steps)
    strategy = distribute_utils.get_distribution_strategy(distribution_strategy="off")
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=model_dir)
    train_lib.run_experiment(
        distribution_strategy=strategy, task=task, mode="train", params=params, model_dir=model_dir
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
