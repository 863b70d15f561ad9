"""What training steps are recorded in: losses, metrics, the numbers that a step returns, the first bad step.

Owns: building them, their results and resets, and what a traced step adds. Does not own: the step (`train_steps.py`),
the numbers themselves (`tasks/numbers.py`, `tasks/metrics.py`), where they go (`loop.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from official_trainer.distributed.replicas import copies
from official_trainer.engine.recovery import LossBound
from official_trainer.engine.step_context import StepContext, check_logs
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import optimization
from official_trainer.tasks.contract import metrics_of
from official_trainer.tasks.metrics import check_names, never_updated, reset, results_of, variables_of
from official_trainer.tasks.numbers import LOSSES, ROW_FIELDS, Numbers, beside_loss, names_of
from official_trainer.user_code import during, is_defined_by_user

_logger = logging.getLogger(__name__)

NO_STEP = 2**63 - 1
"""Stands for no step where the first of several is looked for."""


class TrainMeasures:
    """What training steps are recorded in, from one summary to the next.

    Attributes:
      metrics: the task's and the model's.
      numbers: losses, and what the task's step returns beside its loss.
      good_steps: `global_step` before the first step since the last reset whose loss was not finite, or above
        `trainer.loss_upper_bound`; on each replica, `NO_STEP` for none.
    """

    def __init__(self, context: StepContext, *, trains: bool, bound: LossBound) -> None:
        """Builds what is measured: the loss, and the metrics of the task and the model if it trains.

        Args:
          context: what the parts of a trainer share.
          trains: whether it has metrics.
          bound: above which a loss is as bad as one that is not finite.

        Raises:
          ValueError: two metrics share a name.
        """
        self._context = context
        kept = context.options.as_fit
        of_model = kerases.of(context.model).metrics(context.model, compiled=kept)
        self.metrics: list[Any] = [*metrics_of(context.task, context.model, training=True), *of_model] if trains else []
        self._kept = of_model if kept else []
        self._shared = of_model if trains and not self._kept else []
        self.numbers, self._is_checked = Numbers(), False
        self._bound = bound
        self.good_steps = tf.Variable(
            tf.constant(NO_STEP, tf.int64),
            trainable=False,
            name="good_steps",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        with during(method="build_metrics"):
            check_names(self._measures, "training")

    @property
    def _measures(self) -> list[Any]:
        return [*self.metrics, self.numbers.training_loss]

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of all that is measured."""
        return [*self.fixed_variables, *variables_of(list(self.numbers.returned.values()))]

    @property
    def fixed_variables(self) -> list[tf.Variable]:
        """The same without those of what steps return, whose names are known when one is traced."""
        return [self.numbers.last_loss, self.numbers.average_loss, *variables_of(self._measures)]

    @property
    def shared_variables(self) -> list[tf.Variable]:
        """The variables of the model's own metrics, in which evaluations count, too; not of those that go on."""
        return variables_of(self._shared)

    def results(self) -> dict[str, Any]:
        """Returns the logs of a summary: metrics, means of what the steps have returned, losses, learning rates."""
        context = self._context
        phase = during(lambda: f"summarizing training at step {context.step}", task=context.task)
        self._warn_of_idle_parts()
        with phase, during(method="build_metrics"):
            logs = {name: value for metric in self._measures for name, value in results_of(metric).items()}
            logs |= self.numbers.results()
        rates = optimization.learning_rates(context.optimizer, context.global_step)
        for name, optimizer in context.other_optimizers.items():
            rates[f"{name}/learning_rate"] = optimization.learning_rate(optimizer, context.global_step)
        return {**logs, **self.numbers.losses(context.step), **rates}

    def _warn_of_idle_parts(self) -> None:
        """Warns once of what a step of the user's own leaves out: metrics, which would be shown as 0; the optimizer."""
        task, is_checked, self._is_checked = self._context.task, self._is_checked, True
        if is_checked or not is_defined_by_user(task, "train_step"):
            return
        if idle := never_updated(self.metrics):
            _logger.warning(
                "no step has updated %s: %s.train_step has to call self.process_metrics(metrics, labels, outputs)",
                " and ".join(idle),
                type(task).__name__,
            )
        optimizers = [self._context.optimizer, *self._context.other_optimizers.values()]
        if not any(int(tf.convert_to_tensor(getattr(optimizer, "iterations", 1))) for optimizer in optimizers):
            _logger.warning(
                "no step has used the optimizer: %s.train_step has to call optimizer.apply_gradients(zip(gradients, "
                "model.trainable_variables)), unless it changes the weights itself",
                type(task).__name__,
            )

    def reset(self) -> None:
        """Resets the metrics that do not go on."""
        for metric in [metric for metric in self._measures if metric not in self._kept]:
            reset(metric)  # reads, too: TensorFlow's assignments return the new values
        self.numbers.reset()
        self.forget_bad_step()

    def forget_bad_step(self) -> None:
        """Has no step count as the first whose loss was bad."""
        for of_replica in copies(self.good_steps):
            of_replica.assign(NO_STEP)

    def bad_step_here(self) -> int:
        """Returns the first step whose loss was bad on a replica of this process; `NO_STEP` for none."""
        good_steps = min(int(of_replica) for of_replica in copies(self.good_steps))
        return good_steps if good_steps == NO_STEP else good_steps + 1

    # In a traced step.

    def record(self, logs: Mapping[str, Any]) -> tf.Tensor:
        """Records the numbers that a step returns beside its loss; returns the loss, scalar float32."""
        context = self._context
        check_logs(context.task, "train_step", logs, needed=context.task.loss)
        names = [*ROW_FIELDS, *LOSSES, *optimization.rate_names(context.optimizer)]
        taken = names_of(self._measures) | dict.fromkeys(names, "what every row of training has")
        self.numbers.add(context.task, beside_loss(context.task, logs, taken))
        loss = tf.cast(logs[context.task.loss], tf.float32)
        return loss if loss.shape.rank == 0 else tf.reduce_mean(loss)

    def take_loss(self, loss: tf.Tensor) -> None:
        """Adds the loss of a replica's step, and keeps the number of the first step whose loss is bad.

        Not the number with workers, whose steps end in any order. As few operations as possible: see `add_loss`.
        """
        self.numbers.add_loss(loss)
        if self._context.workers is None:
            step = tf.convert_to_tensor(self._context.global_step)
            good_steps = tf.where(self._bound.allows(loss, step + 1), tf.constant(NO_STEP, tf.int64), step)
            self.good_steps.assign(tf.minimum(self.good_steps, good_steps))
