"""The numbers that the engine measures by itself: losses, and what a training step returns beside its loss.

Owns: their variables, and which values of a step's logs are recorded. Does not own: metrics of a task or of a model
(`metrics.py`), the step (`task.py`), calling it and when numbers are reported (`engine/train_steps.py`), other values
from inside a step (`publish.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.tasks.task import Task
from official_trainer.tracking import leaves

_logger = logging.getLogger(__name__)

SMOOTHING_WEIGHT = 0.01
"""Weight of a new value in a moving average."""


class StepLogsError(UserError, ValueError):
    """A training step returns a number that cannot be recorded under its name."""

    __init__ = Exception.__init__  # the only one that AutoGraph keeps when it adds the user's lines to the message


LOSSES = ("batch_loss", "smoothed_loss")
"""Names of the last step's loss and of the moving average."""
ROW_FIELDS = ("step", "split", "time")
"""Names that the rows of trackers have for themselves."""


def beside_loss(task: Any, logs: Mapping[str, Any], taken: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the training step of a task returned beside its loss, by flat names, without what is taken.

    Args:
      task: whose step it is. Those of Model Garden also return the results of their metrics, which are left out.
      logs: what the step returned, possibly nested.
      taken: names that are recorded anyway, and what has each.

    Raises:
      StepLogsError: a step of ours returns a name that is taken.
    """
    is_ours = isinstance(task, Task)
    if not is_ours:  # what it returns for a metric may be several numbers, as by those of Model Garden's YOLO
        logs = {name: value for name, value in logs.items() if name not in taken}
    others = {}
    for path, value in leaves(logs):
        name = "/".join(path)
        if name == task.loss or (name in taken and not is_ours):
            continue
        if name in taken:
            raise StepLogsError(
                f"{type(task).__name__}.train_step returns {name!r}, which is the name of {taken[name]};\n"
                "  that is recorded without being returned. Leave it out, or give the number another name"
            )
        others[name] = value
    return others


class Mean(tf.Module):
    """The mean of a number over all values since the last reset, on all replicas; beside either Keras."""

    def __init__(self, name: str, direction: str | None = None) -> None:
        """Takes a name, and which values are better, `max` or `min`, if that is declared."""
        super().__init__(name=name)
        self.direction = direction
        on_read = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        self.total = tf.Variable(0.0, trainable=False, name="total", **on_read)
        self.count = tf.Variable(0.0, trainable=False, name="count", **on_read)

    @property
    def variables(self) -> list[tf.Variable]:
        """Total and count: checkpoints hold the values of replicas in this order."""
        return [self.total, self.count]

    def update_state(self, value: Any, sample_weight: Any = None) -> None:
        """Takes a value, or one for each example, float32; called in replica context, traced.

        Args:
          value: scalar, or `[batch, …]`.
          sample_weight: how many examples a value stands for; None for 1.
        """
        value = tf.cast(value, tf.float32)
        weight = tf.constant(1.0) if sample_weight is None else tf.cast(sample_weight, tf.float32)
        if value.shape.rank != 0:
            weight = tf.broadcast_to(weight, tf.shape(value))
        total = value if sample_weight is None else value * weight
        if value.shape.rank != 0:
            total, weight = tf.reduce_sum(total), tf.reduce_sum(weight)
        self.total.assign_add(total)
        with tf.control_dependencies([value]):  # a step whose data never came must not count
            self.count.assign_add(weight)

    def result(self) -> tf.Tensor:
        """Returns the mean, scalar float32; 0 without values."""
        return tf.math.divide_no_nan(self.total.read_value(), self.count.read_value())

    def reset_state(self) -> None:
        """Forgets all values."""
        self.total.assign(0.0)
        self.count.assign(0.0)

    reset_states = reset_state  # as trainers that override `train_loop_begin` call it


class Numbers(tf.Module):
    """The numbers of training steps by name: what the engine measures, and what the task's steps return.

    Each name that steps return has a `Mean`, made when it is first seen: while a step is traced, or before a checkpoint
    that holds it is restored.

    Attributes:
      training_loss: mean loss since the last reset.
      last_loss: loss of the last step, a mean over replicas.
      average_loss: the moving average of the losses of all steps, which starts at zero; a mean over replicas.
      returned: means of what steps return, each over the steps that returned it, and over replicas.
    """

    def __init__(self) -> None:
        """Makes the numbers of the loss, under the strategy in scope."""
        super().__init__(name="numbers")
        self.training_loss = Mean("training_loss")
        on_read = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.MEAN}
        self.last_loss = tf.Variable(0.0, trainable=False, name="batch_loss", **on_read)
        self.average_loss = tf.Variable(0.0, trainable=False, name="smoothed_loss", **on_read)
        self.returned: dict[str, Mean] = {}
        self._strategy = tf.distribute.get_strategy()
        self._left_out: set[str] = set()

    def add_loss(self, loss: tf.Tensor) -> None:
        """Takes one step's loss, scalar float32; called in replica context, traced.

        As few operations as possible: for a small model each is a hundredth of a step.
        """
        self.training_loss.update_state(loss)
        self.average_loss.assign_add(SMOOTHING_WEIGHT * (loss - self.average_loss))
        self.last_loss.assign(loss)

    def losses(self, num_steps: int) -> dict[str, float]:
        """Returns the last loss and the moving average by their names in `LOSSES`, after `num_steps` steps.

        The average starts at zero; dividing by the sum of the losses' weights corrects that (Kingma and Ba, 2014,
        section 3).
        """
        sum_of_weights = 1.0 - (1.0 - SMOOTHING_WEIGHT) ** num_steps
        values = float(self.last_loss.numpy()), float(self.average_loss.numpy()) / max(sum_of_weights, 1e-12)
        return dict(zip(LOSSES, values, strict=True))

    def make(self, names: Iterable[str]) -> None:
        """Makes the means of names that have none."""
        for name in names:
            if name not in self.returned:
                # In a thread of its own: outside of what is traced, and of the replica that traces it.
                with futures.ThreadPoolExecutor(1) as outside:
                    self.returned[name] = outside.submit(self._mean).result()

    def _mean(self) -> Mean:
        with self._strategy.scope():
            return Mean("returned")

    def add(self, task: Any, values: Mapping[str, Any]) -> None:
        """Takes what a step has returned beside its loss; called in replica context, traced.

        Args:
          task: whose step it is, for messages.
          values: by their names, as `beside_loss` returns them; what is not a single number is left out with a warning.
        """
        for name in sorted(values):
            if (number := _as_number(values[name])) is not None:
                self.make([name])
                self.returned[name].update_state(number)
            elif name not in self._left_out:
                self._left_out.add(name)
                what = f"a {type(values[name]).__name__}"
                if hasattr(values[name], "dtype"):
                    shape = getattr(values[name], "shape", None)
                    what = f"{tf.as_dtype(values[name].dtype).name} of shape {shape}"
                _logger.warning(
                    "%s.train_step returns %r, %s, which is not recorded: only single numbers are. Reduce it, by "
                    "tf.reduce_mean for example, or use publish.histogram or publish.image inside the step",
                    *(type(task).__name__, name, what),
                )

    def results(self) -> dict[str, Any]:
        """Returns the mean of each number that steps have returned since the last reset, float32."""
        return {name: mean.result() for name, mean in self.returned.items() if mean.count.numpy()}

    def reset(self) -> None:
        """Forgets what steps have returned."""
        for mean in self.returned.values():
            mean.reset_state()


def _as_number(value: Any) -> tf.Tensor | None:
    """Returns a single number as float32; None for anything else, of which no tensor is made."""
    if isinstance(value, list | tuple) or tf.TensorShape(getattr(value, "shape", ())).rank != 0:
        return None
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return None
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    return tf.cast(tensor, tf.float32) if is_number else None


def names_of(metrics: Sequence[Any]) -> dict[str, str]:
    """Returns the flat names under which training metrics are recorded, each with what it is, in words."""
    named: dict[str, Any] = {}
    for metric in metrics:
        named |= getattr(metric, "by_flat_name", {metric.name: metric})
    return {name: f"a training metric ({type(metric).__name__})" for name, metric in named.items()}
