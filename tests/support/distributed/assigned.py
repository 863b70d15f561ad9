"""`digits_assigned`: the collected chaos experiment with an action that changes weights, and what all processes gather.

Copied, beside the others, into the workspace of the runs on clusters.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
from experiments.chaos import digits_chaos
from experiments.collected import CollectedConfig, CollectedTask

from official_trainer import trees
from official_trainer.actions import Action, Assign, Result
from official_trainer.config import ExperimentConfig, When
from official_trainer.distributed.trees import AloneError
from official_trainer.lazy import tf
from official_trainer.tasks import registry


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignedConfig(CollectedConfig):
    """As the chaos experiment."""


@registry.register_task_cls(AssignedConfig)
class AssignedTask(CollectedTask):
    """Evaluations gather a tree from every process, and compare what all of them have."""

    def build_actions(self, trainer: Any) -> list[Any]:
        return [Prune()]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> dict[str, Any]:
        own = {"pid": os.getpid(), "values": (tf.constant([0.5], tf.bfloat16), np.array([np.nan, 2.0**60]), None, "ä")}
        found = trees.gather(own)
        assert os.getpid() in [each["pid"] for each in found], found
        for each in found:
            tensor, array, nothing, text = each["values"]
            assert (tensor.dtype, array.tobytes(), nothing, text) == (
                tf.bfloat16,
                own["values"][1].tobytes(),
                None,
                "ä",
            )
        trees.assert_replica_integrity({"examples": aggregated_logs["examples"]})
        if len(found) > 1:
            try:
                trees.assert_replica_integrity({"pids": [os.getpid()]})
            except trees.ReplicaIntegrityError as error:
                assert "replicas hold different values of pids/0: replicas 0, 1 differ" in str(error), error
            else:
                raise AssertionError("two processes with one number")
        logs = super().reduce_aggregated_logs(aggregated_logs, global_step)
        return {**logs, "processes": float(len({each["pid"] for each in found}))}


@registry.register_config_factory("digits_assigned")
def digits_assigned() -> ExperimentConfig:
    """The same steps as `digits_chaos`."""
    config = digits_chaos()
    fields = {field.name: getattr(config.task, field.name) for field in dataclasses.fields(CollectedConfig)}
    return config.replace(task=AssignedConfig(**fields))
