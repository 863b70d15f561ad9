"""`digits_collected`: the chaos experiment with an evaluation that also collects what every replica gives.

Copied, beside the others, into the workspace of the runs on clusters.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
from experiments.chaos import ChaosConfig, ChaosTask, digits_chaos

from official_trainer.config import ExperimentConfig
from official_trainer.lazy import tf
from official_trainer.tasks import registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectedConfig(ChaosConfig):
    """As the chaos experiment."""


@registry.register_task_cls(CollectedConfig)
class CollectedTask(ChaosTask):
    """Hands predictions and labels to the host, from every replica that had examples."""

    def build_model(self) -> Any:
        model = super().build_model()
        if os.environ.get("HARMED"):  # one process, whose weights are others from the start
            weight = model.trainable_variables[0].values[0]
            weight.assign(weight + 1.0)
        return model

    def train_step(self, batch: Any, model: Any, optimizer: Any, metrics: Any = None) -> dict[str, Any]:
        logs = super().train_step(batch, model, optimizer, metrics)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return {**logs, "replica": replica}

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> dict[str, Any]:
        logs = super().validation_step(inputs, model, metrics)
        images, labels = inputs
        return {**logs, "seen": {"labels": labels, "predicted": tf.argmax(model(images, training=False), axis=-1)}}

    def aggregate_logs(self, state: Any, step_logs: Any) -> Any:
        labels, predicted = (np.concatenate(step_logs["seen"][name]) for name in ("labels", "predicted"))
        state = state or {"examples": 0, "right": 0}
        return {
            "examples": state["examples"] + len(labels),
            "right": state["right"] + int((labels == predicted).sum()),
        }

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> dict[str, Any]:
        return {name: float(value) for name, value in aggregated_logs.items()}


@registry.register_config_factory("digits_collected")
def digits_collected() -> ExperimentConfig:
    """The same steps as `digits_chaos`."""
    config = digits_chaos()
    fields = {field.name: getattr(config.task, field.name) for field in dataclasses.fields(ChaosConfig)}
    return config.replace(task=CollectedConfig(**fields))
