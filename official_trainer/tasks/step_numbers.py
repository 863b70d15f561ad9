"""What a training step returns beside the loss: single numbers, reported as means over the steps of a summary.

Owns: which values of a step's logs are recorded, their sums over steps and replicas, and the names in a checkpoint.
Does not own: the step (`task.py`), calling it and when means are reported (`engine/train_steps.py`), other values from
inside a step (`publish.py`).

The names are known when the step is traced, which is after a checkpoint is restored. So the sums are one variable of a
fixed size, in which each name gets the next free place when it is first seen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.tasks.task import Task

_logger = logging.getLogger(__name__)

MAX_NUMBERS = 256
"""How many names a run can have."""


class StepLogsError(UserError, ValueError):
    """A training step returns a number that cannot be recorded under its name."""

    __init__ = Exception.__init__  # the only one that AutoGraph keeps when it adds the user's lines to the message


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
    found = {}
    for name, value in _leaves(logs, ""):
        if name == task.loss or (name in taken and not is_ours):
            continue
        if name in taken:
            raise StepLogsError(
                f"{type(task).__name__}.train_step returns {name!r}, which is the name of {taken[name]};\n"
                "  that is recorded without being returned. Leave it out, or give the number another name"
            )
        found[name] = value
    return found


def _leaves(logs: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


class StepNumbers:
    """The means of the numbers that training steps return, each over the steps that returned it, and over replicas.

    Attributes:
      sums: row 0 holds the sum of each number, row 1 how many were added; float32 `[2, MAX_NUMBERS]`.
      state: what a checkpoint holds of this.
    """

    def __init__(self) -> None:
        """Creates the variables, under the strategy in scope."""
        self.sums = tf.Variable(
            tf.zeros([2, MAX_NUMBERS]),
            trainable=False,
            name="step_numbers",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self._names: list[str] = []  # by their places; names are only added
        with futures.ThreadPoolExecutor(1) as outside:  # of the strategy in scope, which would mirror the text
            self._saved_names = outside.submit(_create_text).result()
        self._left_out: set[str] = set()
        self.state = tf.train.Checkpoint(sums=self.sums, names=self._saved_names)

    def encoded(self, task: Any, values: Mapping[str, Any]) -> tf.Tensor | None:
        """Returns the numbers of one step on one replica as what `add` takes; None if there are none. Traced.

        Args:
          task: whose step it is, for messages.
          values: by their names, as `beside_loss` returns them; what is not a single number is left out with a warning.

        Raises:
          StepLogsError: the run has more than `MAX_NUMBERS` names.
        """
        numbers = {}
        for name in sorted(values):
            if (number := _as_number(values[name])) is not None:
                numbers[name] = number
            elif name not in self._left_out:
                self._left_out.add(name)
                kind = f"a {type(values[name]).__name__}"
                if hasattr(values[name], "dtype"):
                    shape = getattr(values[name], "shape", None)
                    kind = f"{tf.as_dtype(values[name].dtype).name} of shape {shape}"
                _logger.warning(
                    "%s.train_step returns %r, %s, which is not recorded: only single numbers are. Reduce it, by "
                    "tf.reduce_mean for example, or use publish.histogram or publish.image inside the step",
                    *(type(task).__name__, name, kind),
                )
        if not numbers:
            return None
        places = [[self._place(task, name)] for name in numbers]
        values_and_counts = [tf.stack(list(numbers.values())), tf.ones([len(numbers)])]
        return tf.stack([tf.scatter_nd(places, updates, [MAX_NUMBERS]) for updates in values_and_counts])

    def add(self, encoded: tf.Tensor) -> None:
        """Takes the numbers of one step; called in replica context, traced."""
        self.sums.assign_add(encoded)

    def results(self) -> dict[str, Any]:
        """Returns the mean of each number that was added since the last reset, float32."""
        if not self._names:
            return {}
        values, counts = self.sums.numpy()
        return {name: values[n] / counts[n] for n, name in enumerate(self._names) if counts[n]}

    def reset(self) -> None:
        """Sets all sums to zero; names keep their places."""
        self.sums.assign(tf.zeros_like(self.sums))

    def after_restore(self) -> None:
        """Continues with the names of a restored checkpoint; called before a step is traced, or with known names."""
        saved = json.loads(self._saved_names.numpy())
        self._names += saved[len(self._names) :]  # a name never changes its place
        self._save_names()

    def _place(self, task: Any, name: str) -> int:
        if name not in self._names:
            if len(self._names) == MAX_NUMBERS:
                raise StepLogsError(
                    f"{type(task).__name__}.train_step returns {name!r}: that is more than the {MAX_NUMBERS} numbers "
                    "that a run can record of its steps. Return fewer, or use publish.histogram inside the step"
                )
            self._names.append(name)
            with tf.init_scope():
                self._save_names()
        return self._names.index(name)

    def _save_names(self) -> None:
        self._saved_names.assign(json.dumps(self._names))


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


def _create_text() -> tf.Variable:
    with tf.device("CPU:0"):
        return tf.Variable("[]", dtype=tf.string, trainable=False, name="step_number_names")


def names_of(metrics: Sequence[Any]) -> dict[str, str]:
    """Returns the flat names under which training metrics are recorded, each with what it is, in words."""
    found = {}
    for metric in metrics:
        for name, each in getattr(metric, "by_flat_name", {metric.name: metric}).items():
            found[name] = f"a training metric ({type(each).__name__})"
    return found
