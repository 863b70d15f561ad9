"""The job of `goodput.py` as an experiment of ours, `goodput`; a module for `--import`."""

from __future__ import annotations

import dataclasses
from typing import Any

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, ExportConfig, RuntimeConfig, TaskConfig, TrainerConfig
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoodputConfig(TaskConfig):
    """A classifier of generated examples."""


@register_task_cls(GoodputConfig)
class GoodputTask(Task):
    """Classifies, and notes each step."""

    def build_model(self) -> keras.Model:
        from benchmarks import goodput_job

        return goodput_job.build_model()

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        from benchmarks import goodput_job

        return inputs.from_arrays(goodput_job.examples(), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> dict[str, Any]:
        from benchmarks import goodput_job

        features, labels, ids = inputs
        with tf.control_dependencies([goodput_job.note(optimizer.iterations, ids)]):
            return super().train_step((tf.identity(features), labels), model, optimizer, metrics)


@register_config_factory("goodput")
def goodput() -> ExperimentConfig:
    """Steps that take at least 20 ms, to be killed."""
    constant = opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=1e-4))
    return ExperimentConfig(
        task=GoodputConfig(train_data=DataConfig(global_batch_size=64, is_training=True)),
        trainer=TrainerConfig(
            train_steps=10_000_000,
            steps_per_loop=50,
            summary_interval=500,
            checkpoint_interval=50,
            optimizer_config=opt.OptimizationConfig(optimizer=opt.OptimizerConfig(type="adam"), learning_rate=constant),
            export=ExportConfig(at_end=False),
        ),
        runtime=RuntimeConfig(seed=1),
    )
