"""Metrics the engine keeps without being asked: loss of the last step, its moving average, examples evaluated.

Owns: these variables and the rule that names differ. Does not own: a task's metrics, where numbers go (`tracking/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.lazy import tf

SMOOTHING_WEIGHT = 0.01
"""Weight of a new loss in the moving average."""


class LossTrace(tf.Module):
    """The last step's loss and the moving average of all losses, each a mean over replicas."""

    def __init__(self) -> None:
        super().__init__(name="loss_trace")
        on_read = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.MEAN}
        self.last = tf.Variable(0.0, trainable=False, name="batch_loss", **on_read)
        self.average = tf.Variable(0.0, trainable=False, name="smoothed_loss", **on_read)

    def update(self, loss: tf.Tensor) -> None:
        """Takes one step's loss, scalar float32; called in replica context, traced.

        As few operations as possible: for a small model each is a hundredth of a step.
        """
        self.average.assign_add(SMOOTHING_WEIGHT * (loss - self.average.read_value()))
        self.last.assign(loss)

    def results(self, num_steps: int) -> dict[str, float]:
        """Returns both by name, after `num_steps` updates.

        The average starts at zero; dividing by the weights that losses have had so far takes that out again
        (Kingma and Ba, 2014, section 3).
        """
        seen = 1.0 - (1.0 - SMOOTHING_WEIGHT) ** num_steps
        return {"batch_loss": float(self.last.numpy()), "smoothed_loss": float(self.average.numpy()) / max(seen, 1e-12)}


def example_counter() -> tf.Variable:
    """Returns a variable that each replica adds to and that reads as the sum over replicas, int64."""
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="examples",
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def check_names(metrics: Sequence[Any], split: str) -> None:
    """Refuses two metrics of one split with the same name: one would hide the other.

    Raises:
      ValueError: names the metric and the classes that use it.
    """
    seen: dict[str, Any] = {}
    for metric in metrics:
        if metric.name in seen:
            raise ValueError(
                f"two {split} metrics are named {metric.name!r} ({type(seen[metric.name]).__name__} and "
                f"{type(metric).__name__}); give one of them another name"
            )
        seen[metric.name] = metric


def find_metric(logs: Mapping[str, Any], name: str) -> float | None:
    """Returns the number under `name`, where `a|b` is `b` inside `a`; None if it is not there.

    In flat logs, as actions get them, `b` inside `a` is `a/b`.
    """
    found: Any = logs
    for key in [name] if name in logs else name.split("|"):
        if not isinstance(found, Mapping) or key not in found:
            return logs.get(name.replace("|", "/"))
        found = found[key]
    return None if isinstance(found, Mapping) else float(found)


def names(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of all numbers in nested logs, in the form that `find_metric` takes."""
    found = []
    for name, value in logs.items():
        found += [f"{name}|{inner}" for inner in names(value)] if isinstance(value, Mapping) else [name]
    return found
