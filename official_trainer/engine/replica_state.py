"""The variables of a trainer on every replica: synchronizing, saving, keeping and comparing their values.

Owns: which variables these are, and when processes exchange their values. Does not own: how values are read and
assigned (`distributed/replicas.py`), or the rest of a checkpoint (`checkpoint_state.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer.distributed import replicas
from official_trainer.distributed.collective import collective
from official_trainer.distributed.replicas import ReplicaValues, ValueBackup, synchronize_replicas
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.train_steps import TrainMetrics
from official_trainer.lazy import tf


class ReplicaState:
    """The values of a trainer's variables on every replica.

    Attributes:
      saved: what a checkpoint holds of variables that differ by replica (batch-norm statistics, metrics).
    """

    def __init__(self, context: StepContext, metrics: TrainMetrics) -> None:
        """Takes the model and the metrics of training."""
        self._context, self._metrics = context, metrics
        self.process_group = context.process_group
        self.saved = ReplicaValues(self._variables, self.process_group.peers)
        self._backups: list[ValueBackup] = []
        self.process_group.register(self)

    @property
    def _variables(self) -> list[tf.Variable]:
        """The variables whose values may differ by replica, among others."""
        return [*self._context.model.variables, *self._metrics.variables]

    @collective
    def synchronize(self) -> None:
        """Gives all replicas their part of the common value where each has its own (batch-norm statistics, metrics).

        An evaluation, or a checkpoint, then has the values that a run on one replica would have.
        """
        variables = self._variables
        with self.process_group.reading(variables):
            synchronize_replicas(variables, self.process_group.peers)

    @collective
    def before_save(self) -> None:
        """Updates what is saved; called before values are read for a checkpoint.

        With other processes, replicas have common values from here to the next collective call, because only the chief
        reads what is written.
        """
        self.saved.collect()
        if not self.process_group.is_alone:
            self.process_group.undo_at_next_call(ValueBackup(self._variables).restore)
            self.synchronize()

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Restores the model's variables and the metrics of training after a `with` block, bit for bit.

        Also if the block fails. A state that is saved while an evaluation in the block hangs has these values too.
        """
        self._backups.append(ValueBackup(self._variables))
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
