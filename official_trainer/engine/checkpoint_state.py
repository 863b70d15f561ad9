"""The state of a trainer: what a checkpoint holds of it, continuing from one, and its values on every replica.

Owns: the contents of a checkpoint, restoring them; synchronizing, keeping and comparing values over replicas, and when
processes exchange them; assigning what actions hand back; the optimizer's settings where the config overrules a
checkpoint. Does not own: files (`checkpoints/store.py`), when anything is saved (`loop.py`), how values of replicas are
read and compared (`distributed/replicas.py`), when an action hands values back (`actions/schedule.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.checkpoints import garden, manifest, restore
from official_trainer.checkpoints.matching import AVERAGE, RestoreReport
from official_trainer.distributed import replicas
from official_trainer.distributed.collective import collective
from official_trainer.engine import consistency
from official_trainer.engine.measures import TrainMeasures
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.train_iterator import TrainData
from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.nearest import nearest
from official_trainer.shown import first_few
from official_trainer.tasks import attached, optimization, variables, vocabularies
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.metrics import variables_of

_logger = logging.getLogger(__name__)

_MAX_SHOWN = 5


class AssignError(UserError, ValueError):
    """New values of variables do not fit."""


class CheckpointState:
    """The state of a trainer that checkpoints hold.

    Of variables that differ by replica (batch-norm statistics, metrics) a checkpoint also holds every value.

    Size: what is saved, restored and compared is listed in one place, so that nothing is left out of one of them.

    Attributes:
      checkpoint: Model Garden's checkpoint (global_step, model, optimizer), with `training` for the rest of the state.
    """

    def __init__(
        self,
        context: StepContext,
        measures: TrainMeasures,
        train_iterator: TrainData,
        validation_sets: Sequence[Any],
    ) -> None:
        """Takes the parts of the state, and the validation sets, whose metrics are no part of it."""
        self.process_group = context.process_group
        self._context, self._measures, self._train_iterator = context, measures, train_iterator
        self._validation_sets = validation_sets
        self._configured = [
            (value, value.numpy()) for value in kerases.of(context.optimizer).settings(context.optimizer)
        ]
        self._of_code = [
            (f"{name}/{setting.name.rpartition('/')[2].partition(':')[0]}", setting, setting.numpy())
            for name, optimizer in context.other_optimizers.items()
            for setting in kerases.of(optimizer).settings(optimizer)
        ]
        self._rate_scale: optimization.RateScale | None = None
        self._scale = 1.0
        self._initial: dict[str, Any] = {}  # of what a checkpoint lacked, to which a run may go back again
        model = vocabularies.in_checkpoint(context.model)
        of_model = getattr(context.model, "checkpoint_items", {})
        items = {name: vocabularies.in_checkpoint(item) for name, item in of_model.items()}
        if context.optimizer is not None:
            items["optimizer"] = kerases.of(context.optimizer).trackable_optimizer(context.optimizer, context.model)
        if context.average is not None:
            items |= context.average.items
        held = [*_values_in(tf.train.Checkpoint(model=model, **items)), *self._kept, *measures.variables]
        self._find_attached(held)
        if state := {**self._attached, **self._vocabularies}:
            items["state"] = kerases.tree_of(state)
        training = tf.train.Checkpoint(
            numbers=measures.numbers,
            position=train_iterator.position,
            metrics=[
                kerases.of(metric, *getattr(metric, "metrics", ())).trackable(metric) for metric in measures.metrics
            ],
        )
        fixed = [*context.model_variables, *measures.fixed_variables, *self._attached_variables]
        beside = [value for value in self._attached.values() if any(value is state for state in self._states)]
        self._of_replicas = replicas.ReplicaValues(fixed, self.process_group.peers, set_by_replicas=beside)
        if self._of_replicas.state is not None:
            training.replicas = self._of_replicas.state
        self._numbers_of_replicas: dict[str, replicas.ReplicaValues] = {}
        training.numbers_of_replicas = {}
        self._saved_numbers = training.numbers_of_replicas  # TensorFlow's own dictionary
        self.checkpoint = tf.train.Checkpoint(global_step=context.global_step, model=model, training=training, **items)
        kept = [*held, *self._attached.values(), context.global_step, *context.streams.states]
        kept += [measures.good_steps]
        context.changed_state.keep(kept, lambda: _created_since(self.checkpoint))

    def _find_attached(self, held: Sequence[Any]) -> None:
        """Finds what is attached to task and model beside `held`, and of it what an evaluation may change."""
        beside = self._context.attached
        for metric in self._measures.metrics:  # Model Garden has some that are no metrics of Keras, and hold those
            beside.add(f"metrics/{metric.name}", metric)
        of_evaluations = variables_of([measure for one in self._validation_sets for measure in one.measures])
        unsaved = beside.matching(attached.unsaved_state(self._context.task))
        needless = {id(value) for value in [*of_evaluations, *unsaved]}
        left_out = needless | {id(value) for value in held}
        self._attached = {path: value for path, value in beside.all_values().items() if id(value) not in left_out}
        self._states = [state for state in beside.states if id(state) not in needless]
        self._vocabularies = {  # of layers that the task keeps for its data
            f"{path}/vocabularies/{name}/entries": vocabulary
            for path, layer in beside.layers.items()
            if not path.startswith("model")
            for name, vocabulary in vocabularies.of(layer).items()
        }

    @collective
    def read_checkpoint(self, prefix: str, step: int, **allowed: Any) -> RestoreReport:
        """Restores everything that a checkpoint of this trainer holds; see `restore.read_exactly` for the arguments."""
        consistency.check(self.process_group.peers, lambda: consistency.of_checkpoint(prefix, step))
        numbers = self._measures.numbers
        numbers.make(restore.saved_names(prefix, "training/numbers/returned"))
        numbers.reset()  # a checkpoint need not have all names
        for of_replicas in self._values_of_numbers():
            of_replicas.collect()
        self._measures.forget_bad_step()
        return restore.read_exactly(self.checkpoint, prefix, step, initial=self._initial, **allowed)

    def _averages_in(self, prefix: str) -> Mapping[str, Any]:
        """Returns the part of the state that holds averages, by its name in a checkpoint; nothing if that has none."""
        average = self._context.average
        if average is None or garden.is_best(prefix):  # whose weights are the averages, and averages the weights
            return {}
        keys = restore.saved_keys(prefix)
        return average.items if any(key.startswith("average/") or AVERAGE in key for key in keys) else {}

    @collective
    def load_weights(self, directory: str, step: int) -> None:
        """Restores the step, the weights, the averages and what is attached to task and model, but for optimizers.

        The weights of a best checkpoint are averages already, so the averages start from them.
        """
        context, prefix = self._context, manifest.find(directory, step)
        items = {"global_step": context.global_step, "model": self.checkpoint.model}
        of_optimizers = tuple(f"{path}/" for path in context.attached.optimizers)
        beside = {path: value for path, value in self._attached.items() if not path.startswith(of_optimizers)}
        beside |= self._vocabularies
        if beside and not garden.wrote(prefix):
            items["state"] = kerases.tree_of(beside)
        averages = self._averages_in(prefix)
        restore.read_items(prefix, {**items, **averages}, allow_extra=("optimizer/*", "state/*"))
        kerases.reset_recurrent(context.model)  # which training left where its data were
        if context.average is not None and not averages:
            context.average.reset()

    def after_restore(self, report: RestoreReport) -> None:
        """Continues from a restored checkpoint: its data position, and the value of each replica if it has as many."""
        for name, setting, value in self._of_code:
            if (restored := setting.numpy()) != value:
                _logger.warning("%s is %g, as in the checkpoint; the code sets %g", name, restored, value)
        lacking = [*report.missing, *(mismatch.live for mismatch in report.wrong_shape)]
        self._continue(any(spec.key.startswith(restore.REPLICA_VALUES) for spec in lacking))

    @collective
    def _continue(self, lacks_replica_values: bool) -> None:
        self._train_iterator.reset()
        if self._vocabularies:
            for validation_set in self._validation_sets:
                validation_set.forget_data()  # it was built with those of the code
        if not lacks_replica_values:
            for of_replicas in (self._of_replicas, *self._values_of_numbers()):
                of_replicas.restore()

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
        return [*self._context.model_variables, *self._measures.variables, *self._attached_variables]

    @property
    def _attached_variables(self) -> list[tf.Variable]:
        return [value for value in self._attached.values() if isinstance(value, tf.Variable)]

    def _values_of_numbers(self) -> list[replicas.ReplicaValues]:
        """Returns the replicas' values of what steps have returned so far, which checkpoints hold from here on."""
        for name, mean in self._measures.numbers.returned.items():
            if name not in self._numbers_of_replicas:
                of_replicas = replicas.ReplicaValues(mean.variables, self.process_group.peers)
                self._numbers_of_replicas[name] = of_replicas
                if of_replicas.state is not None:
                    self._saved_numbers[name] = of_replicas.state
        return list(self._numbers_of_replicas.values())

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
        for of_replicas in (self._of_replicas, *self._values_of_numbers()):
            of_replicas.collect()
        if not self.process_group.is_alone:
            self.process_group.undo_at_next_call(replicas.ValueBackup(self._variables).restore)
            self.synchronize()

    def non_finite_weights(self) -> list[str]:
        """Returns the names of trainable weights that hold a value that is not finite; none if that is not checked."""
        model = self._context.model
        trainable = kerases.of(model).variables(model, trainable=True) if self._context.options.measures_loss else ()
        floating = [weight for weight in trainable if weight.dtype.is_floating]
        # A sum of squares takes a third of the time; where it is not finite, it may only be too large.
        suspects = [weight for weight in floating if not tf.math.is_finite(tf.nn.l2_loss(weight))]
        return [weight.name for weight in suspects if not tf.reduce_all(tf.math.is_finite(weight))]

    @contextlib.contextmanager
    def preserved(self, *, only_shared: bool = False) -> Iterator[None]:
        """Restores the model's variables and the metrics of training after a `with` block, bit for bit.

        Also if the block fails.

        Args:
          only_shared: for an evaluation of the run, only what training and evaluations both change: metrics of the
            model, states of recurrent layers, counters.
        """
        variables = [*self._measures.shared_variables, *self._states] if only_shared else self._variables
        backup = replicas.ValueBackup(variables)
        try:
            yield
        finally:
            backup.restore()

    def saved_copies(self) -> dict[str, tf.Variable]:
        """Returns the variables that checkpoints hold, on every replica of this process, by their paths."""
        return {
            f"{path} {number}": copy
            for path, variable in kerases.of(None).values(self.checkpoint).items()
            for number, copy in enumerate(replicas.copies(variable))
        }

    def mirrored_variables(self) -> Sequence[tf.Variable]:
        """Returns the variables that have a copy on every replica, which are to be alike."""
        return replicas.mirrored([*self._kept, self._context.global_step], self.process_group.peers)

    @property
    def _kept(self) -> list[tf.Variable]:
        """The variables of the model, the optimizer and the averages."""
        optimizer, average = self._context.optimizer, self._context.average
        of_optimizer = [] if optimizer is None else kerases.of(optimizer).variables(optimizer)
        of_average = [] if average is None else average.values
        return [*self._context.model_variables, *of_optimizer, *of_average]

    def assert_replica_integrity(self, absolute_tolerance: float = 0.0, relative_tolerance: float = 0.0) -> None:
        """Compares what all replicas hold of the model, the optimizer and the averages.

        Raises:
          ReplicaIntegrityError: a value differs by more than the sum of both tolerances.
        """
        if (difference := self._find_difference(absolute_tolerance, relative_tolerance)) is not None:
            name, said = difference
            raise replicas.ReplicaIntegrityError(
                f"replicas hold different values of {name} at step {self._context.step}: {said}. The checkpoints "
                "before this step hold one value for all replicas, and the same command continues from the last of "
                "them. If it happens again at this step, a variable is updated in a way of its own; if at another, "
                "suspect the device."
            )

    @collective
    def _find_difference(self, absolute_tolerance: float, relative_tolerance: float) -> tuple[str, str] | None:
        tolerance = replicas.Tolerance(absolute=absolute_tolerance, relative=relative_tolerance)
        named = [(variable.name, variable) for variable in self.mirrored_variables()]
        return replicas.find_difference(named, tolerance, self.process_group.peers)

    # Values that actions hand back.

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns what an action may change, by path: `model/…`, `optimizer/…` and, if the run averages, `average/…`.

        The optimizer's settings are not among them: every process takes them from the config.
        """
        context = self._context
        settings = {id(variable) for variable, _ in self._configured}
        optimizer = [] if context.optimizer is None else context.optimizer
        named = variables.flatten({"model": context.model, "optimizer": optimizer})
        if context.average is not None:
            paths = {id(variable): path.removeprefix("model/") for path, variable in named.items()}
            named |= {f"average/{paths[id(weight)]}": value for weight, value in context.average.pairs}
        return {path: variable for path, variable in named.items() if id(variable) not in settings}

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assigns new values on all replicas: all of them, or none.

        Args:
          values: arrays or tensors by path, as `named_variables` has them; also nested, `{"model": {"dense/bias": …}}`.

        Raises:
          AssignError: a name is unknown, a shape or a dtype is another, or a value is not finite. Nothing was assigned.
        """
        named = self.named_variables()
        arrays = {path: np.asarray(value) for path, value in variables.flatten(values).items()}
        problems = {path: _assign_problem(path, array, named) for path, array in arrays.items()}
        if refused := list(filter(None, problems.values())):
            more = f"; and {len(refused) - _MAX_SHOWN} more" if len(refused) > _MAX_SHOWN else ""
            said = "; ".join(refused[:_MAX_SHOWN])
            raise AssignError(f"new values are refused, and nothing is changed: {said}{more}")
        numbers = {id(variable): number for number, variable in enumerate(self._kept)}
        for path, value in arrays.items():
            self._assign(numbers[id(named[path])], value)

    @collective
    def _assign(self, number: int, value: Any) -> None:
        """Assigns one value: each is a message of its own, which every process receives from every other."""
        self._kept[number].assign(value)


def _assign_problem(path: str, array: np.ndarray, named: Mapping[str, tf.Variable]) -> str:
    """Returns what is wrong with a new value of a variable; empty if nothing is."""
    if path not in named:
        near = nearest(path, named)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {first_few(list(named))}"
        return f"{path!r} is no variable that an action may change; {hint}"
    variable = named[path]
    given, expected = f"{array.dtype.name} {list(array.shape)}", f"{variable.dtype.name} {list(variable.shape)}"
    if given != expected:
        return f"{path!r} is {given}; expected {expected}"
    if not (variable.dtype.is_floating or variable.dtype.is_complex):
        return ""
    finite = np.isfinite(array.astype(np.float32) if variable.dtype == tf.bfloat16 else array)
    count = int(array.size - finite.sum())
    return f"{path!r} has {count} values that are not finite, of {array.size}; expected finite ones" if count else ""


def _values_in(checkpoint: tf.train.Checkpoint) -> list[Any]:
    """Returns the variables and tables that a checkpoint holds."""
    inside = tf.train.TrackableView(checkpoint).descendants()
    return [value for value in inside if isinstance(value, tf.Variable) or attached.is_table(value)]


def _created_since(checkpoint: tf.train.Checkpoint) -> list[Any]:
    """Returns the variables and tables that a checkpoint holds by now, with the slots of legacy optimizers."""
    inside = tf.train.TrackableView(checkpoint).descendants()
    optimizers = [optimizer for optimizer in inside if hasattr(optimizer, "get_slot_names")]
    slots = [slot for optimizer in optimizers for slot in kerases.of(optimizer).variables(optimizer)]
    return [*_values_in(checkpoint), *slots]
