"""The state of a trainer: what a checkpoint holds of it, continuing from one, and its values on every replica.

Owns: the contents of a checkpoint, restoring them; synchronizing, keeping and comparing values over replicas, and when
processes exchange them; the optimizer's settings where the config overrules a checkpoint. Does not own: files
(`checkpoints/store.py`), when anything is saved (`loop.py`), how values of replicas are read and assigned
(`distributed/replicas.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer.checkpoints import manifest, restore
from official_trainer.checkpoints.matching import RestoreReport
from official_trainer.distributed import replicas
from official_trainer.distributed.collective import collective
from official_trainer.engine import consistency
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.train_iterator import TrainIterator
from official_trainer.engine.train_steps import TrainStep
from official_trainer.lazy import tf
from official_trainer.tasks import optimization


class CheckpointState:
    """The state of a trainer that checkpoints hold.

    Of variables that differ by replica (batch-norm statistics, metrics) a checkpoint also holds every value.

    Attributes:
      checkpoint: Model Garden's checkpoint (global_step, model, optimizer), with `training` for the rest of the state.
    """

    def __init__(self, context: StepContext, step: TrainStep, train_iterator: TrainIterator) -> None:
        """Takes the parts of the state."""
        self.process_group = context.process_group
        self._context, self._step, self._train_iterator = context, step, train_iterator
        self._of_replicas = replicas.ReplicaValues(self._variables, self.process_group.peers)
        self._backups: list[replicas.ValueBackup] = []
        self._configured = [(value, value.numpy()) for value in optimization.hyperparameters(context.optimizer)]
        self._rate_scale: optimization.RateScale | None = None
        self._scale = 1.0
        items = dict(getattr(context.model, "checkpoint_items", {}))
        if context.optimizer is not None:
            items["optimizer"] = context.optimizer
        if context.average is not None:
            items["average"] = context.average.state
        training = tf.train.Checkpoint(
            loss=step.loss, loss_trace=step.trace, position=train_iterator.position, metrics=list(step.metrics)
        )
        if self._of_replicas.state is not None:
            training.replicas = self._of_replicas.state
        self.checkpoint = tf.train.Checkpoint(
            global_step=context.global_step, model=context.model, training=training, **items
        )

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

    def after_restore(self, report: RestoreReport) -> None:
        """Continues from a restored checkpoint: its data position, and the value of each replica if it has as many."""
        lacking = [*report.missing, *(mismatch.live for mismatch in report.wrong_shape)]
        self._continue(any(spec.key.startswith(restore.REPLICA_VALUES) for spec in lacking))

    @collective
    def _continue(self, lacks_replica_values: bool) -> None:
        self._train_iterator.reset()
        if not lacks_replica_values:
            self._of_replicas.restore()

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

    @property
    def _variables(self) -> list[tf.Variable]:
        """The variables whose values may differ by replica, among others."""
        return [*self._context.model.variables, *self._step.variables]

    @collective
    def synchronize(self) -> None:
        """Gives all replicas their part of the common value where each has its own (batch-norm statistics, metrics).

        An evaluation, or a checkpoint, then has the values that a run on one replica would have.
        """
        variables = self._variables
        with self.process_group.reading(variables):
            replicas.synchronize_replicas(variables, self.process_group.peers)

    @collective
    def before_save(self) -> None:
        """Updates what is saved; called before values are read for a checkpoint.

        With other processes, replicas have common values from here to the next collective call, because only the chief
        reads what is written.
        """
        self._of_replicas.collect()
        if not self.process_group.is_alone:
            self.process_group.undo_at_next_call(replicas.ValueBackup(self._variables).restore)
            self.synchronize()

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Restores the model's variables and the metrics of training after a `with` block, bit for bit.

        Also if the block fails. A state that is saved while an evaluation in the block hangs has these values too.
        """
        self._backups.append(replicas.ValueBackup(self._variables))
        try:
            yield
        finally:
            self._backups.pop().restore()

    def restore_preserved(self) -> None:
        """Restores the values from before the outermost `preserved` block, if any is entered; from any thread."""
        if self._backups:
            self._backups[0].restore()

    def mirrored_variables(self) -> Sequence[tf.Variable]:
        """Returns the variables that have a copy on every replica, which are to be alike."""
        optimizer, average = self._context.optimizer, self._context.average
        of_optimizer: Any = [] if optimizer is None else optimizer.variables
        of_average = [] if average is None else average.values
        kept = [*self._context.model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]
        return replicas.mirrored([*kept, *of_average, self._context.global_step], self.process_group.peers)

    @collective
    def checksums_of_replicas(self) -> list[list[str]]:
        """Returns, for each of `mirrored_variables`, a checksum of its value on every replica."""
        return replicas.checksums(self.mirrored_variables(), self.process_group.peers)

    @collective
    def values_of_replicas(self, number: int) -> list[tuple[str, Any]]:
        """Returns device and value, on every replica, of one of `mirrored_variables`."""
        return replicas.values(self.mirrored_variables()[number], self.process_group.peers)
