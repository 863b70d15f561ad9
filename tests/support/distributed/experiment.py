"""`digits_collected`: the chaos experiment with an evaluation that also collects what every replica gives.

Copied, beside the others, into the workspace of the runs on clusters.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
from experiments.chaos import ChaosConfig, ChaosTask, digits_chaos

from official_trainer import trees
from official_trainer.actions import Action, Assign, Result
from official_trainer.config import ExperimentConfig, When
from official_trainer.distributed.trees import AloneError
from official_trainer.lazy import tf
from official_trainer.tasks import registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectedConfig(ChaosConfig):
    """As the chaos experiment.

    Attributes:
      gathers: whether evaluations gather a tree from every process, and an action changes weights.
    """

    gathers: bool = False


class Prune(Action):
    """Sets the smaller half of each kernel to zero and batch norm's means to a number, and tries to gather alone."""

    when = When(every=10)

    def on_step(self, run: Any) -> Any:
        model = {path: variable.numpy() for path, variable in run.variables.items() if path.startswith("model/")}
        kernels = {path: value for path, value in model.items() if value.ndim > 1}
        values = {path: np.where(abs(v) < np.median(abs(v)), np.float32(0), v) for path, v in kernels.items()}
        zeros = sum(int((value == 0).sum()) for value in values.values())
        values |= {path: np.full_like(value, 0.25) for path, value in model.items() if path.endswith("moving_mean")}
        try:
            said = f"{len(trees.gather(0))} process"
        except AloneError as error:
            said = str(error)
        return [Assign(values=values), Result(value={"said": said, "zeros": zeros})]


@registry.register_task_cls(CollectedConfig)
class CollectedTask(ChaosTask):
    """Hands predictions and labels to the host, from every replica that had examples."""

    def build_model(self) -> Any:
        model = super().build_model()
        if os.environ.get("HARMED"):  # one process, whose weights are others from the start
            weight = model.trainable_variables[0].values[0]
            weight.assign(weight + 1.0)
        return model

    def build_actions(self, trainer: Any) -> list[Any]:
        return [Prune()] if self.task_config.gathers else []

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
        logs = {name: float(value) for name, value in aggregated_logs.items()}
        return {**logs, "processes": float(num_processes(aggregated_logs))} if self.task_config.gathers else logs


def num_processes(logs: Any) -> int:
    """Returns how many processes there are, after comparing what all of them have."""
    pids = {process["pid"] for process in trees.gather({"pid": os.getpid()})}
    assert os.getpid() in pids, pids
    trees.assert_replica_integrity({"examples": logs["examples"]})
    if len(pids) > 1:
        try:
            trees.assert_replica_integrity({"pids": [os.getpid()]})
        except trees.ReplicaIntegrityError as error:
            assert "replicas hold different values of pids/0: replicas 0, 1 differ" in str(error), error
        else:
            raise AssertionError("two processes with one number")
    return len(pids)


@registry.register_config_factory("digits_collected")
def digits_collected() -> ExperimentConfig:
    """The same steps as `digits_chaos`."""
    config = digits_chaos()
    fields = {field.name: getattr(config.task, field.name) for field in dataclasses.fields(ChaosConfig)}
    return config.replace(task=CollectedConfig(**fields))
