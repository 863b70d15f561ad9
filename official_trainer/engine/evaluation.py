"""Evaluation: traced steps over all validation data, each example counted once, with averaged weights in the model.

Owns: the parts of a validation set and the step on a batch of it, running all sets, the directions of their metrics,
and evaluations that leave no trace in the run. Does not own: which sets there are and Model Garden's override points
(`trainer.py`), when to evaluate (`loop.py`), keeping the best checkpoint (`checkpoints/best.py`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import orbit

from official_trainer.config import ConfigError, Problem
from official_trainer.distributed.collective import collective
from official_trainer.distributed.replicas import local_sum
from official_trainer.engine import windows
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.engine.events import WindowLength
from official_trainer.engine.inference import compute_if_busy, num_examples_of
from official_trainer.engine.step_context import StepContext, check_logs
from official_trainer.engine.traces import batch_signature
from official_trainer.engine.train_iterator import Data, GivenData
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.nearest import nearest
from official_trainer.tasks import contract, metrics
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.contract import ContractError, EndlessError, metrics_of
from official_trainer.tasks.numbers import Mean
from official_trainer.tracking import monitored
from official_trainer.user_code import definition_of, during

_logger = logging.getLogger(__name__)

_WINDOW = 100
"""The most batches of a traced loop, between two looks at whether to stop."""

_IS_BUSY = "replica had examples"
"""Key in the logs of a step: whether each replica had examples, where some may have none."""


class ValidationSet:
    """A validation set: examples, and what is measured on them.

    Size: its data, its metrics and what is known of both belong to one evaluation.

    Attributes:
      name: the key of its results; empty for the task's own set, whose results have no key of their own.
      task: has the `validation_step` and `aggregate_logs` that are called.
      model: what they are called with; the run's, or a part of it.
      builder: builds the data.
      is_built: whether the metrics are built.
      steps: batches of an evaluation, -1 for all; None for the number that the evaluation is called with.
      loss: mean over the examples of the last evaluation.
      metrics: the task's and the model's.
      dataset: the distributed data; None until it is built.
      loop_fn: the evaluation loop; None until it is created.
      num_examples: examples that were evaluated so far, one value for each replica.
    """

    def __init__(
        self,
        context: StepContext,
        task: Any,
        model: Any,
        builder: Data,
        *,
        name: str = "",
        steps: int | None = None,
    ) -> None:
        """Takes the parts of the set; `build_metrics` builds the metrics."""
        self._context = context
        self.dataset: Any = None
        self.loop_fn: Callable[[Any, int, Any], Any] | None = None
        self.name, self.task, self.model, self.builder, self.steps = name, task, model, builder, steps
        self.is_built = self._is_warned = self._is_warned_of_logs = self._builds = False
        self.loss = Mean("validation_loss", direction="min")
        self.metrics: list[Any] = []
        self.num_examples = tf.Variable(
            tf.constant(0, tf.int64),
            trainable=False,
            name="examples",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def build_metrics(self) -> None:
        """Builds the metrics; called under the strategy's scope.

        Raises:
          ValueError: two metrics share a name.
        """
        name = self.name
        compiled = self._context.options.as_fit
        of_model = kerases.of(self.model).metrics(self.model, compiled=compiled)
        self.metrics[:] = [*metrics_of(self.task, self.model, training=False), *of_model]
        self.is_built = True
        with during(method="build_metrics"):
            metrics.check_names(self.measures, f"evaluation ({name})" if name else "evaluation")

    @property
    def measures(self) -> list[Any]:
        """The metrics and the loss."""
        return [*self.metrics, self.loss]

    @property
    def folds(self) -> bool:
        """Whether its task folds the logs of its steps."""
        # Beyond the base class, ours or Model Garden's, which declares it.
        owner = next(cls for cls in type(self.task).__mro__ if "aggregate_logs" in vars(cls))
        return owner.__name__ != "Task"

    @property
    def has_data(self) -> bool:
        """Whether there is data to evaluate."""
        return self.dataset is not None or self.builder.params is not None

    def build_data(self, num_steps: int) -> None:
        """Builds the data, if there is none yet, for an evaluation of so many batches; -1 for all.

        Raises:
          EndlessError: all batches are to be evaluated, and there is no end of them.
        """
        if self.dataset is None:
            self.dataset, self._builds = self.builder.build(), True
        plain = self.dataset if isinstance(self.dataset, tf.data.Dataset) else self.builder.of_pipeline
        if num_steps < 0 and contract.length_of(plain) == math.inf:
            builder = self.builder
            section, _, is_named = builder.section.partition(".task_config.")
            flag = f", set {builder.section}.is_training=false" if getattr(builder.params, "is_training", False) else ""
            with during(task=self.task, method="build_inputs"):
                raise EndlessError(
                    f"{builder.section or builder.source} has no end, so that an evaluation of all its batches would "
                    f"never end either: leave out repeat() where {builder.source} builds validation data "
                    f"(params.is_training is false){flag}, or set "
                    f"{f'{section}.eval_steps' if is_named else 'trainer.validation_steps'} to a number of batches"
                )

    def forget_data(self) -> None:
        """Has the data built again by the next evaluation, unless the caller has given them."""
        self.dataset = None if self._builds else self.dataset

    def run(self, inputs: Any) -> dict[str, Any]:
        """Evaluates a batch in cross-replica context, traced; returns logs, each a tuple with a value per replica."""
        step_of_task = convert(self.task.validation_step)
        step = functools.partial(self.run_on_replica, step_of_task=step_of_task)
        outputs = self._context.strategy.run(step, args=(inputs,))
        return {
            name: tf.nest.map_structure(self._context.strategy.experimental_local_results, value)
            for name, value in outputs.items()
        }

    @do_not_convert
    def run_on_replica(self, inputs: Any, step_of_task: Callable[..., Any]) -> dict[str, Any]:
        """Evaluates a replica's batch; called in replica context, traced."""
        num_examples = num_examples_of(inputs)
        self.num_examples.assign_add(tf.cast(num_examples, tf.int64))
        self._context.streams.begin_step(-self.num_examples)  # for layers that draw in evaluations too

        def evaluate() -> dict[str, Any]:
            notes = during(task=self.task, method="validation_step", batch=lambda: batch_signature(inputs))
            with self._context.streams.named("validation", self.num_examples), self._context.whole_losses(), notes:
                logs = step_of_task(inputs, model=self.model, metrics=self.metrics)
                check_logs(self.task, "validation_step", logs)
                self._warn_of_logs(logs)
                outputs = {name: _tensors(self.task, name, value) for name, value in logs.items()}
            if self.task.loss in logs:
                loss = tf.reduce_mean(tf.cast(logs[self.task.loss], tf.float32))
                self.loss.update_state(loss, sample_weight=tf.cast(num_examples, tf.float32))
            return outputs

        if self._context.options.as_fit or self._context.strategy.num_replicas_in_sync == 1:
            return evaluate()
        # The last batch may leave a replica without examples, and a mean over nothing is not a number.
        return {**compute_if_busy(num_examples, evaluate), _IS_BUSY: num_examples > 0}

    def _warn_of_logs(self, logs: Mapping[str, Any]) -> None:
        """Warns once of logs of the user's step that nothing takes; called in its trace."""
        recorded = {self.task.loss, *(metric.name for metric in self.metrics)}
        lost = [repr(name) for name in logs if name not in recorded]
        if self.folds or self._is_warned_of_logs or not lost or definition_of(self.task, "validation_step") is None:
            return
        self._is_warned_of_logs = True
        _logger.warning(
            "%s.validation_step returns %s, which no aggregate_logs takes: its value is lost. Add a metric in "
            "build_metrics, or define aggregate_logs",
            *(type(self.task).__name__, ", ".join(lost)),
        )

    def results(self, aggregated_logs: Any, global_step: tf.Variable) -> dict[str, Any]:
        """Returns the results of an evaluation; called eagerly."""
        with self.evaluated(global_step):
            with during(method="build_metrics"):
                results = [metrics.results_of(metric) for metric in self.metrics]
                logs = {name: value for of_metric in results for name, value in of_metric.items()}
            if self.loss.count.numpy() > 0:
                logs[self.loss.name] = self.loss.result()
            if aggregated_logs is not None:
                with during(method="reduce_aggregated_logs"):
                    logs.update(
                        metrics.read(self.task.reduce_aggregated_logs(aggregated_logs, global_step=global_step))
                    )
        return logs

    def evaluated(self, global_step: tf.Variable) -> during:
        """Returns a context that notes on errors that this set was evaluated."""
        return during(lambda: self.phase(int(global_step.numpy())), task=self.task)

    def phase(self, step: int) -> str:
        """Returns what is done while this set is evaluated at a step, in words."""
        data = self.builder.section.removeprefix("task.") if self.builder.section else self.builder.source
        return f"evaluating {data} at step {step}"

    def warn_of_loss(self, step: int) -> None:
        """Warns once of a loss that is not finite, after an evaluation at a step."""
        loss = float(self.loss.result())
        if math.isfinite(loss) or self._is_warned:
            return
        self._is_warned = True
        _logger.warning(
            "%s: %s is %g. official-trainer check names what is not finite in the first batch; "
            "tf.debugging.enable_check_numerics(), with runtime.run_eagerly=true, names the operation",
            *(self.phase(step), self.loss.name, loss),
        )


def _tensors(task: Any, name: str, value: Any) -> Any:
    """Returns one of the logs of a step as tensors."""
    try:
        return tf.nest.map_structure(tf.convert_to_tensor, value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{type(task).__name__}.validation_step returns {name!r}, of {type(value).__name__}, which is no tensor: "
            "logs are tensors, also nested, each of which aggregate_logs gets"
        ) from error


class MonitoredMetricError(UserError, LookupError):
    """A setting needs a metric that evaluations do not produce."""

    exit_code = ExitCode.CONFIG


class Evaluation:
    """Evaluates the validation sets of a trainer.

    The results do not depend on the batch size or the number of replicas: a last, smaller batch is evaluated as it is,
    and the loss is weighted by examples.

    Attributes:
      own_set: the task's own validation set.
      current_set: the one that is evaluated now, or was last.
      exporter: keeps the best checkpoint; None for none.
    """

    def __init__(
        self,
        context: StepContext,
        trainer: Any,
        sets: Sequence[ValidationSet],
        state: CheckpointState,
        exporter: Any,
        *,
        counts_examples: bool,
    ) -> None:
        """Takes what an evaluation needs.

        Args:
          context: what the parts of a trainer share.
          trainer: Model Garden's override points: `eval_begin`, `eval_step`, `eval_reduce`, `eval_end`,
            `create_eval_loop_fn`, and `weights_averaged`.
          sets: the task's own set, which is left out if it has no data, and those that have names.
          state: is synchronized before an evaluation, and may be preserved.
          exporter: has `maybe_export_checkpoint(checkpoint, logs, global_step)` and `best_ckpt_logs`, or is None.
          counts_examples: whether the trainer's step is that of the sets, and no subclass's, which may count none.
        """
        self.process_group = context.process_group
        self.own_set, *self._named_sets = sets
        self.current_set, self.exporter, self._counts_examples = self.own_set, exporter, counts_examples
        self._context, self._trainer, self._state = context, trainer, state
        self._named_states: dict[str, Any] = {}
        metrics.check_names([*self.own_set.measures, *self._named_sets], "evaluation")

    @property
    def sets(self) -> list[ValidationSet]:
        """All sets that have data, in the order in which they are evaluated."""
        return [*self._named_sets, *([self.own_set] if self.own_set.has_data else [])]

    @property
    def num_examples(self) -> int:
        """How many examples of the current set this process has evaluated."""
        return int(local_sum(self.current_set.num_examples))

    def run(self, num_steps: int, *, own_steps: bool = True) -> dict[str, Any]:
        """Evaluates all sets and returns `eval_end`'s logs; called by all processes. See `Trainer.evaluate`.

        Args:
          num_steps: batches; -1 for all.
          own_steps: whether a set with a number of steps of its own has as many.
        """
        self._state.synchronize()
        trainer = self._trainer
        with trainer.weights_averaged(), self._state.preserved(only_shared=True):
            state = trainer.eval_begin()
            for named in self._named_sets:
                steps = num_steps if named.steps is None or not own_steps else named.steps
                self._named_states[named.name] = self._run_set(named, steps, None)
            if self.own_set.has_data:
                state = self._run_set(self.own_set, num_steps, state)
            self._context.traces.check("eval", functions=len(self.sets))
            with self.process_group.reading(self._metric_variables):
                return trainer.eval_end(state) if state is not None else trainer.eval_end()

    @collective
    def build_data(self, num_steps: int) -> None:
        """Builds the data of all sets before training, for evaluations of so many batches; -1 for all.

        Always before those of training, also in a process that begins with an evaluation: `build_inputs` may draw from
        a generator of the user's, which begins anew with each process.

        Raises:
          EndlessError: a set that is to be evaluated to its end has none.
        """
        for validation_set in self.sets:
            steps = num_steps if validation_set.steps is None else validation_set.steps
            with validation_set.builder.errors_explained():
                validation_set.build_data(steps)

    def _run_set(self, validation_set: ValidationSet, num_steps: int, state: Any) -> Any:
        """Returns the folded logs of one set, whose metrics hold the rest."""
        trainer, self.current_set = self._trainer, validation_set
        validation_set.num_examples.assign(0)
        kerases.reset_recurrent(validation_set.model)
        with validation_set.evaluated(self._context.global_step), validation_set.builder.errors_explained():
            if validation_set.loop_fn is None:
                validation_set.loop_fn = trainer.create_eval_loop_fn(has_state=state is not None)
            validation_set.build_data(num_steps)
            iterator = tf.nest.map_structure(iter, validation_set.dataset)
            with during(batch=lambda: batch_signature(iterator)):
                state = validation_set.loop_fn(iterator, num_steps, state)
        if self._counts_examples and sum(self.process_group.exchange(self.num_examples)) == 0:
            of_name = f" of {validation_set.name!r}" if validation_set.name else ""
            raise DataError(
                f"{validation_set.builder.source}: the validation data{of_name} holds no example; check input_path, "
                "and global_batch_size if drop_remainder is set"
            )
        return state

    def run_without_effects(self, num_steps: int, *, own_steps: bool = True) -> dict[str, Any]:
        """Evaluates like `run`, but the run's best checkpoint and all its values stay as they are.

        Args:
          num_steps: batches; -1 for all.
          own_steps: whether a set with a number of steps of its own has as many.
        """
        is_alone, variables = self.process_group.is_alone, self._context.model_variables
        return self._evaluate_weights(num_steps, own_steps, None if is_alone else [v.numpy() for v in variables])

    @collective
    def _evaluate_weights(self, num_steps: int, own_steps: bool, weights: Sequence[Any] | None) -> dict[str, Any]:
        """Evaluates the chief's weights, which may differ from those that all processes train."""
        with self.keeping_best(None), self._state.preserved():
            for variable, value in zip(self._context.model_variables, weights or (), strict=weights is not None):
                variable.assign(value)
            return self.run(num_steps, own_steps=own_steps)

    def run_on(self, data: GivenData) -> dict[str, Any]:
        """Evaluates data of the caller in place of the task's own set, and no other; it leaves no trace in the run."""
        before, named = self.own_set, self._named_sets
        if not before.is_built:
            with self._context.strategy.scope():
                before.build_metrics()
        given = copy.copy(before)  # the metrics are the same objects, so its loop serves both
        given.dataset, given.builder = data.dataset, data
        self.own_set, self._named_sets = given, []
        try:
            return self.run_without_effects(-1)
        finally:
            before.loop_fn = given.loop_fn
            self.own_set = self.current_set = before
            self._named_sets = named

    @contextlib.contextmanager
    def keeping_best(self, exporter: Any) -> Iterator[None]:
        """For a `with` block, evaluations offer their weights to `exporter` alone; None for nothing."""
        before, self.exporter = self.exporter, exporter
        try:
            yield
        finally:
            self.exporter = before

    def check_monitored(self, wanted: Mapping[str, str]) -> None:
        """Refuses metrics that evaluations do not produce, and a best checkpoint that would be the worst.

        Names that only the task knows are found by evaluating one batch, which changes nothing.

        Args:
          wanted: names of metrics, each with the setting that needs it.

        Raises:
          MonitoredMetricError: lists what evaluations do produce.
          ConfigError: `trainer.best_checkpoint_metric_comp` contradicts what is declared of its metric.
        """
        self._check_best(wanted)
        prefixes = [(f"{one.name}|" if one.name else "", one) for one in self.sets]
        if not wanted.keys() - {prefix + metric.name for prefix, one in prefixes for metric in one.measures}:
            return
        logs = monitored.numbers(self.run_without_effects(1, own_steps=False))
        for name, wanted_by in wanted.items():
            if monitored.find_value(logs, name, self.rule_of(name) or "max") is None:
                produced = monitored.names(logs)
                plain = name.removeprefix("val_")  # as Keras's callbacks name it
                near = nearest(plain, produced) or [other for other in sorted(produced) if plain in other]
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise MonitoredMetricError(
                    f"{wanted_by}: evaluation does not produce {name!r}; it produces "
                    f"{', '.join(sorted(produced))}{hint}"
                )

    def _check_best(self, wanted: Mapping[str, str]) -> None:
        """Refuses a `best_checkpoint_metric_comp` that contradicts the direction of its metric, if that is known."""
        settings = self._trainer.config.trainer
        name, chosen = settings.best_checkpoint_eval_metric, settings.best_checkpoint_metric_comp
        if name not in wanted:
            return
        direction = self._declared_direction(name)
        right = chosen if direction is None or callable(direction) else monitored.COMPARISONS[direction]
        if right != chosen:
            what = f"is {chosen!r}, which would keep the worst checkpoint as the best: a {right} {name!r} is better"
            fix = f"set trainer.best_checkpoint_metric_comp={right}"
            raise ConfigError([Problem(what, "trainer.best_checkpoint_metric_comp", fix=fix)])

    def metric_direction(self, name: str) -> monitored.Direction:
        """Returns whether a higher (`max`) or a lower (`min`) value of an evaluation's metric is better.

        It is never guessed from the name: the task declares it (`metric_directions`), or the metric does, or its class
        is known. The engine's own losses are better when they are lower.

        Raises:
          MetricDirectionError: it is not declared, or as neither `max` nor `min`.
        """
        sets = self.sets
        owner = next(
            (validation_set for validation_set in self._named_sets if name.startswith(f"{validation_set.name}|")), None
        )
        inner = name if owner is None else name.removeprefix(f"{owner.name}|")
        owner = owner or next((validation_set for validation_set in sets if not validation_set.name), None)
        if owner is None:
            names = ", ".join(validation_set.name for validation_set in sets)
            raise metrics.MetricDirectionError(
                f"it is unknown whether a higher or a lower {name!r} is better: it belongs to no validation set; there "
                f"are {names}, whose metrics are called {sets[0].name}|{name}"
            )
        return metrics.direction_of(owner.task, owner.measures, inner, name)

    def rule_of(self, name: str) -> monitored.Rule | None:
        """Returns the rule that the task declares for the numbers inside `name`; None if it declares none."""
        direction = self._declared_direction(name)
        return direction if callable(direction) else None

    def _declared_direction(self, name: str) -> monitored.Direction | None:
        """Returns the direction of a metric; None if none is declared, as for most metrics of Model Garden."""
        try:
            return self.metric_direction(name)
        except metrics.MetricDirectionError:
            return None

    def chosen_direction(
        self, name: str, mode: Literal["auto", "min", "max"], **limits: float | None
    ) -> monitored.Direction:
        """Returns the direction of a metric that a section monitors.

        Args:
          name: of the metric.
          mode: `max`, `min`, or `auto` for what `metric_direction` returns.
          **limits: fields of the section with which one number is compared; None for those that are not set.

        Raises:
          MetricDirectionError: `mode` is `auto`, and nothing is declared.
          ConfigError: a rule is declared, and mode or a limit is set, which are for one number.
        """
        if self.rule_of(name) is not None:
            numbers = {"mode": None if mode == "auto" else mode, **limits}
            if given := [f"{field}={value}" for field, value in numbers.items() if value is not None]:
                what = f"is for one number, and the task declares a rule for the numbers inside {name!r}"
                raise ConfigError([Problem(f"{', '.join(given)} {what}", "trainer.actions", fix="leave it out")])
        return self.metric_direction(name) if mode == "auto" else mode

    # What Model Garden's override points do by default.

    def create_loop(self, options: orbit.StandardEvaluatorOptions, *, folds: bool) -> Callable[[Any, int, Any], Any]:
        """Returns `loop(iterator, num_steps, state) -> state`; `folds` is whether steps return logs to fold."""
        trainer, traces = self._trainer, self._context.traces
        if options.use_tf_while_loop and not folds:  # a fold runs on the host, after each step
            run = windows.stepping_loop(trainer.eval_step, traces, "eval", traced_step=True, traced_loop=True)

            length = WindowLength()

            def traced(iterator: Any, num_steps: int, state: Any) -> Any:
                done = 0
                with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                    while num_steps < 0 or done < num_steps:
                        # Processes that evaluate together have parts of the same size.
                        most = min(_WINDOW, length.max_steps) if self.process_group.is_alone else _WINDOW
                        size = min(num_steps - done, most) if num_steps >= 0 else most
                        start = time.monotonic()
                        run(iterator, tf.constant(size, tf.int32))
                        length.add(size, time.monotonic() - start)
                        done += size
                        self.process_group.check_stop()
                return state

            return traced
        step = tf.function(traces.watched("eval", trainer.eval_step)) if options.use_tf_function else trainer.eval_step

        def eager(iterator: Any, num_steps: int, state: Any) -> Any:
            done = 0
            in_batch = during(lambda: f"{self.current_set.phase(self._context.step)}, in batch {done + 1}")
            while num_steps < 0 or done < num_steps:
                try:
                    with in_batch:
                        outputs = step(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):  # of the data; an error of the fold is a bug
                    break
                try:
                    state = self._reduce(state, outputs)
                except StopIteration as error:  # which would look like the end of the data on its way up
                    name = type(self.current_set.task).__name__
                    what = f"{name}.aggregate_logs raised StopIteration: `next` of an iterator that has ended"
                    raise ContractError(what) from error
                done += 1
                self.process_group.check_stop()
            return state

        return eager

    def _reduce(self, state: Any, outputs: Any) -> Any:
        """Passes a step's logs to `eval_reduce`, with the values of all replicas that had examples."""
        if not self.process_group.is_alone and self.current_set.folds:
            on_host = functools.partial(tf.nest.map_structure, lambda v: v.numpy() if isinstance(v, tf.Tensor) else v)
            here = {name: on_host(value) for name, value in outputs.items()}
            outputs = _joined(self.process_group.exchange(here))
        return self._trainer.eval_reduce(state, _drop_idle_replicas(outputs))

    def reset(self) -> None:
        """Resets the metrics of all sets."""
        self._named_states = {}
        with self.process_group.reading(self._metric_variables):  # TensorFlow's assignments read, too
            for validation_set in self.sets:
                for metric in validation_set.measures:
                    metrics.reset(metric)

    @property
    def _metric_variables(self) -> list[tf.Variable]:
        return metrics.variables_of([metric for one in self.sets for metric in one.measures])

    def results(self, aggregated_logs: Any) -> dict[str, Any]:
        """Returns the results of all sets, and the best value so far as `best_<metric>`."""
        global_step = self._context.global_step
        logs = self.own_set.results(aggregated_logs, global_step)
        for named in self._named_sets:
            logs[named.name] = named.results(self._named_states.get(named.name), global_step)
        for validation_set in self.sets:
            validation_set.warn_of_loss(self._context.step)
        if self.exporter is None:
            return logs
        with self.process_group.chief_only():
            self.exporter.maybe_export_checkpoint(self._trainer.checkpoint, logs, self._context.step)
        name = self._trainer.config.trainer.best_checkpoint_eval_metric
        best = monitored.find_metric(self.exporter.best_ckpt_logs or {}, name)
        return logs if best is None else {**logs, f"best_{name}": best}


def _drop_idle_replicas(outputs: Any) -> Any:
    """Returns step logs with only the values of replicas that had examples."""
    if not isinstance(outputs, Mapping) or _IS_BUSY not in outputs:
        return outputs
    busy = [bool(b) for b in outputs[_IS_BUSY]]

    def keep(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: keep(part) for name, part in value.items()}
        if isinstance(value, tuple | list) and any(isinstance(part, Mapping | tuple | list) for part in value):
            return type(value)(map(keep, value))  # the task's own; that of the replicas is the innermost
        if isinstance(value, tuple) and len(value) == len(busy):
            return tuple(v for v, b in zip(value, busy, strict=True) if b)
        return value

    return {name: keep(value) for name, value in outputs.items() if name != _IS_BUSY}


def _joined(values: Sequence[Any]) -> Any:
    """Returns step logs of all processes as those of one: the values of replicas one after the other."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _joined([value[key] for value in values]) for key in first}
    if not isinstance(first, tuple | list):
        return first  # of the host, not of its replicas
    if any(isinstance(part, Mapping | tuple | list) for part in first):
        return type(first)(_joined(list(items)) for items in zip(*values, strict=True))
    return tuple(part for value in values for part in value)
