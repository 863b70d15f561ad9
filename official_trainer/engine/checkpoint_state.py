"""What a checkpoint holds, and continuing from one: weights, optimizer, data position, metrics, learning rate.

Owns: the contents of a checkpoint, restoring them, and the optimizer's settings where the config overrules a
checkpoint. Does not own: files (`checkpoints/store.py`), when anything is saved (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from official_trainer.checkpoints import manifest, restore
from official_trainer.checkpoints.matching import RestoreReport
from official_trainer.distributed.collective import collective
from official_trainer.engine import consistency
from official_trainer.engine.replica_state import ReplicaState
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.train_iterator import TrainIterator
from official_trainer.engine.train_steps import TrainMetrics
from official_trainer.lazy import tf
from official_trainer.tasks import optimization


class CheckpointState:
    """The state of a trainer that checkpoints hold.

    Attributes:
      checkpoint: Model Garden's checkpoint (global_step, model, optimizer), with `training` for the rest of the state.
    """

    def __init__(
        self, context: StepContext, metrics: TrainMetrics, train_iterator: TrainIterator, replica_state: ReplicaState
    ) -> None:
        """Takes the parts of the state."""
        self.process_group = context.process_group
        self._context, self._train_iterator, self._replica_values = context, train_iterator, replica_state.saved
        items = dict(getattr(context.model, "checkpoint_items", {}))
        if context.optimizer is not None:
            items["optimizer"] = context.optimizer
        if context.average is not None:
            items["average"] = context.average.state
        training = tf.train.Checkpoint(
            loss=metrics.loss,
            loss_trace=metrics.trace,
            position=train_iterator.position,
            metrics=list(metrics.metrics),
        )
        if replica_state.saved.state is not None:
            training.replicas = replica_state.saved.state
        self.checkpoint = tf.train.Checkpoint(
            global_step=context.global_step, model=context.model, training=training, **items
        )
        self.process_group.register(self)

    @collective
    def read_checkpoint(self, prefix: str, step: int, allow_mismatch: Sequence[str] = ()) -> RestoreReport:
        """Restores everything that a checkpoint of this trainer holds; see `restore.read_exactly`."""
        consistency.check(self.process_group.peers, lambda: consistency.of_checkpoint(prefix, step))
        return restore.read_exactly(self.checkpoint, prefix, step, allow_mismatch)

    @collective
    def load_weights(self, directory: str, step: int) -> None:
        """Restores the step, the weights and the averages of a checkpoint.

        The weights of a best checkpoint are averages already, so the averages start from them.
        """
        context, saved = self._context, manifest.read(directory, step).variables
        items = {"global_step": context.global_step, "model": context.model}
        if context.average is not None and any(key.startswith("average/") for key in saved):
            items["average"] = context.average.state
        restore.read_items(manifest.prefix(directory, step), items)
        if context.average is not None and "average" not in items:
            context.average.reset()

    @collective
    def after_restore(self, report: RestoreReport) -> None:
        """Continues from a restored checkpoint: its data position, and the value of each replica if it has as many."""
        self._train_iterator.reset()
        lacking = [*report.missing, *(mismatch.live for mismatch in report.wrong_shape)]
        if not any(spec.key.startswith(restore.REPLICA_VALUES) for spec in lacking):
            self._replica_values.restore()


class OptimizerSettings:
    """The optimizer's settings that the config has, and the scale of its learning rate."""

    def __init__(self, context: StepContext, *, is_scaled: bool) -> None:
        """Takes the optimizer.

        Args:
          context: has the optimizer.
          is_scaled: whether a recovery may scale the learning rate, which has to be prepared before a step is traced.
        """
        self.process_group = context.process_group
        self._context = context
        self._configured = [(value, value.numpy()) for value in optimization.hyperparameters(context.optimizer)]
        self._rate_scale: optimization.RateScale | None = None
        self._scale = 1.0
        self.process_group.register(self)
        if context.optimizer is not None and is_scaled:
            self.scale_learning_rate(1.0)

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate of the next update, a scalar float32."""
        return optimization.learning_rate(self._context.optimizer, self._context.global_step)

    @collective
    def use_configured_optimizer(self) -> None:
        """Sets the optimizer's hyperparameters to those of the config, in place of a checkpoint's."""
        for variable, value in self._configured:
            variable.assign(value)
        if self._rate_scale is not None:
            self._rate_scale.set(self._scale)

    @collective
    def scale_learning_rate(self, scale: float) -> None:
        """Makes the learning rate `scale` times what is configured, from the next step on.

        Raises:
          FixedRateError: the optimizer's cannot be scaled.
        """
        if self._rate_scale is None:
            with self._context.strategy.scope():
                self._rate_scale = optimization.RateScale(self._context.optimizer)
        self._scale = scale
        self._rate_scale.set(scale)
