"""Evaluation: traced steps over all data, each example counted once; the half of the Trainer that never updates.

Owns: Model Garden's evaluation contract (`evaluate`, `eval_begin`, `next_eval_inputs`, `eval_step`, `eval_reduce`,
`eval_end`), its metrics, and the swap of averaged weights around it. Does not own: when to evaluate (`loop.py`),
keeping the best checkpoint (`checkpoints/best.py`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orbit

from official_trainer.distributed.collective import ProcessGroup, collective
from official_trainer.distributed.replicas import ValueBackup, local_sum, synchronize_replicas
from official_trainer.engine import windows
from official_trainer.engine.inference import num_examples_of, unless_idle
from official_trainer.engine.traces import Traces
from official_trainer.engine.validation_sets import MonitoredMetricError, ValidationSet, direction_of, overrides
from official_trainer.inputs import DataError
from official_trainer.lazy import keras, tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import metrics
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.optimization import WeightAverage
from official_trainer.tasks.random_streams import RandomStreams
from official_trainer.tracking import monitored

_logger = logging.getLogger(__name__)


class Evaluator(orbit.StandardEvaluator):
    """Evaluates one task's model under the strategy in scope; a part of `Trainer`, not used alone.

    The results do not depend on the batch size or the number of replicas: a last, smaller batch is evaluated as it is,
    and the loss is weighted by examples.

    Attributes:
      spares_idle_replicas: whether a step is left out on replicas without examples; then it may not ask all replicas.
    """

    spares_idle_replicas = True

    stop: StopRequest
    process_group: ProcessGroup
    _strategy: tf.distribute.Strategy
    _config: Any
    _task: Any
    _model: keras.Model
    _global_step: tf.Variable
    _average: WeightAverage | None
    _streams: RandomStreams
    _checkpoint: tf.train.Checkpoint
    _checkpoint_exporter: Any
    _traces: Traces

    def _init_evaluation(self, own: ValidationSet, named: Sequence[ValidationSet], *, evaluate: bool) -> None:
        """Takes the sets: the task's own, which is left out if it has no data, and those that have names."""
        trainer = self._config.trainer
        self._own_set, self._named_sets, self._set = own, list(named), own
        for each in self._sets if evaluate else ():
            each.build_metrics()
        self._examples_evaluated = metrics.example_counter()
        self._held: list[ValueBackup] = []
        metrics.check_names([*own.measures, *named], "evaluation")
        orbit.StandardEvaluator.__init__(
            self,
            None,
            orbit.StandardEvaluatorOptions(
                use_tf_function=trainer.eval_tf_function, use_tf_while_loop=trainer.eval_tf_while_loop
            ),
        )

    @property
    def average(self) -> WeightAverage | None:
        """The moving average of the weights, if the run averages."""
        return self._average

    @property
    def validation_loss(self) -> keras.metrics.Metric:
        """Mean loss over the examples of the last evaluation of the task's own set."""
        return self._own_set.loss

    @property
    def validation_metrics(self) -> list[keras.metrics.Metric]:
        """The task's and the model's evaluation metrics."""
        return self._own_set.metrics

    @property
    def eval_dataset(self) -> Any:
        """The dataset of the task's own set; None until it is built, or given."""
        return self._own_set.dataset

    @eval_dataset.setter
    def eval_dataset(self, dataset: Any) -> None:
        self._own_set.dataset = dataset

    @property
    def _sets(self) -> list[ValidationSet]:
        """All sets there are, in the order in which they are evaluated."""
        return [*self._named_sets, *([self._own_set] if self._own_set.has_data else [])]

    @collective
    def evaluate(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        """Evaluates `num_steps` batches (-1: all), with averaged weights if there are any; returns `eval_end`'s logs.

        A validation set with a name may have a number of steps of its own, which then counts for it.

        Raises:
          DataError: the validation data holds no batch, or cannot be read.
          PreemptedError: the run was asked to stop; nothing came of the evaluation.
          RetraceError: batches have ever new shapes.
        """
        return self._evaluate_sets(int(num_steps), own_steps=True)

    def _evaluate_sets(self, num_steps: int, *, own_steps: bool) -> dict[str, Any]:
        self.synchronize()
        with self.weights_averaged(), self.stop.interruptible(self._rescue):
            state = self.eval_begin()
            for each in self._named_sets:
                steps = each.steps if own_steps and each.steps is not None else num_steps
                self._named_states[each.name] = self._evaluate_set(each, steps, None)
            if self._own_set.has_data:
                state = self._evaluate_set(self._own_set, num_steps, state)
            self._traces.check("eval", functions=len(self._sets))
            with self.process_group.reading(self._metric_variables()):
                return self.eval_end(state) if state is not None else self.eval_end()

    def _evaluate_set(self, each: ValidationSet, num_steps: int, state: Any) -> Any:
        """Returns the folded logs of one set, whose metrics hold the rest."""
        self._set = each
        self._examples_evaluated.assign(0)
        with each.builder.errors_explained():
            state = self._run_evaluation(num_steps, state)
        counts = type(self).eval_step is Evaluator.eval_step  # a subclass's own step may count nothing
        if counts and sum(self.process_group.exchange(int(local_sum(self._examples_evaluated)))) == 0:
            raise DataError(
                f"{each.builder.source}: the validation data {f'of {each.name!r} ' if each.name else ''}holds no "
                "example; check input_path, and global_batch_size if drop_remainder is set"
            )
        return state

    def evaluate_aside(self, num_steps: int, *, own_steps: bool = True) -> dict[str, Any]:
        """Evaluates like `evaluate`, but for somebody else than the run: its best checkpoint and its values stay.

        Args:
          num_steps: batches; -1 for all.
          own_steps: whether a set with a number of steps of its own has as many.
        """
        weights = None if self.process_group.is_alone else [variable.numpy() for variable in self._model.variables]
        return self._evaluate_aside(num_steps, own_steps, weights)

    @collective
    def _evaluate_aside(self, num_steps: int, own_steps: bool, weights: Sequence[Any] | None) -> dict[str, Any]:
        """Evaluates the chief's weights, which may be others than those that all are training."""
        exporter, self._checkpoint_exporter = self._checkpoint_exporter, None
        try:
            with self.given_back():
                for variable, value in zip(self._model.variables, weights or (), strict=weights is not None):
                    variable.assign(value)
                return self._evaluate_sets(num_steps, own_steps=own_steps)
        finally:
            self._checkpoint_exporter = exporter

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        """Gives the model's variables and the metrics of training their values back after a `with` block, bit for bit.

        Whatever happens in it. A state that is saved while an evaluation in the block hangs has these values too.
        """
        self._held.append(ValueBackup(self._kept_per_replica()))
        try:
            yield
        finally:
            self._held.pop().give_back()

    def check_monitored(self, wanted: Mapping[str, str]) -> None:
        """Refuses metrics that evaluations do not produce.

        Names that only the task knows are found out by evaluating one batch, which changes nothing.

        Args:
          wanted: names of metrics, each with who wants it.

        Raises:
          MonitoredMetricError: lists what evaluations do produce.
        """
        if not wanted.keys() - {name for each in self._sets for name in each.metric_names()}:
            return
        logs = self.evaluate_aside(1, own_steps=False)
        for name, wanted_by in wanted.items():
            if monitored.find_metric(logs, name) is None:
                raise MonitoredMetricError(name, wanted_by, monitored.names(logs))

    def metric_direction(self, name: str) -> monitored.Direction:
        """Returns whether a higher (`max`) or a lower (`min`) value of an evaluation's metric is better.

        See `validation_sets.direction_of`.
        """
        return direction_of(name, self._sets)

    @collective
    def synchronize(self) -> None:
        """Gives all replicas their part of what each of them keeps for itself (batch-norm statistics, metrics).

        Whoever evaluates or saves then sees what a run on one replica would have.
        """
        apart = self._kept_per_replica()
        with self.process_group.reading(apart):
            synchronize_replicas(apart, self.process_group.peers)

    def _kept_per_replica(self) -> Sequence[tf.Variable]:
        return self._model.variables

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the model holds its averaged weights, if the run averages."""
        return contextlib.nullcontext() if self._average is None else self._average.swapped_in()

    def _rescue(self) -> bool:
        """Has the training state saved while an evaluation hangs; in another thread, which then ends the process."""
        if self._average is not None:
            self._average.swap_out()
        if self._held:
            self._held[0].give_back()
        return self.stop.save_state(lambda: True)

    def _run_evaluation(self, num_steps: int, state: Any) -> Any:
        each = self._set
        if each.loop_fn is None:
            each.loop_fn = self.create_eval_loop_fn(has_state=state is not None)
        if each.dataset is None:
            each.dataset = each.builder.build()
        return each.loop_fn(tf.nest.map_structure(iter, each.dataset), num_steps, state)

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns `loop(iterator, num_steps, state) -> state`; -1 steps means until the iterator ends."""
        options = self._eval_options
        watched = functools.partial(self._traces.watched, "eval")
        folds = type(self).eval_reduce is not Evaluator.eval_reduce or overrides(self._set.task, "aggregate_logs")
        if options.use_tf_while_loop and not (has_state or folds):  # the host has its part in each step of a fold
            run = windows.stepping_loop(self.eval_step, traced_step=True, traced_loop=True, watched=watched)

            def traced(iterator: Any, num_steps: int, state: Any) -> Any:
                with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                    run(iterator, tf.constant(num_steps if num_steps >= 0 else tf.int32.max, tf.int32))
                return state

            return traced
        step = tf.function(watched(self.eval_step)) if options.use_tf_function else self.eval_step

        def eager(iterator: Any, num_steps: int, state: Any) -> Any:
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                done = 0
                while num_steps < 0 or done < num_steps:
                    state = self._reduce_outputs(state, step(iterator))
                    done += 1
                    self.process_group.look_up()
            return state

        return eager

    def _reduce_outputs(self, state: Any, outputs: Any) -> Any:
        """Hands a step's logs to `eval_reduce`, with the values of all replicas that had examples."""
        if not self.process_group.is_alone and overrides(self._set.task, "aggregate_logs"):
            own = {name: tf.nest.map_structure(_on_host, value) for name, value in outputs.items()}
            outputs = _joined(self.process_group.exchange(own))
        return self.eval_reduce(state, _drop_idle_replicas(outputs))

    def eval_begin(self) -> Any:
        """Resets the metrics; returns the first state of `eval_reduce`. Called eagerly."""
        self._named_states: dict[str, Any] = {}
        measures = [metric for each in self._sets for metric in each.measures]
        with self.process_group.reading(metrics.variables_of(measures)):  # TensorFlow's assignments read, too
            for metric in measures:
                metric.reset_states()
        return None

    def _metric_variables(self) -> list[tf.Variable]:
        return metrics.variables_of([metric for each in self._sets for metric in each.measures])

    @do_not_convert
    def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the inputs of the next evaluation step, and logs that stay on the host; traced."""
        return next(iterator), {}

    @do_not_convert
    def eval_step(self, iterator: Any) -> dict[str, Any]:
        """Evaluates one batch in cross-replica context, traced; returns logs, each a tuple with a value per replica."""
        inputs, passthrough_logs = convert(self.next_eval_inputs)(iterator)
        step = functools.partial(self._replica_eval_step, step_of_task=convert(self._set.task.validation_step))
        outputs = self._strategy.run(step, args=(inputs,))
        logs = {
            name: tf.nest.map_structure(self._strategy.experimental_local_results, value)
            for name, value in outputs.items()
        }
        if clash := sorted(set(logs) & set(passthrough_logs)):
            _logger.warning("next_eval_inputs and the model both log %s; the model's value is kept", ", ".join(clash))
        return {**passthrough_logs, **logs}

    @do_not_convert
    def _replica_eval_step(self, inputs: Any, step_of_task: Callable[..., Any]) -> dict[str, Any]:
        num_examples = num_examples_of(inputs)
        self._examples_evaluated.assign_add(tf.cast(num_examples, tf.int64))
        if self._strategy.num_replicas_in_sync == 1 or not self.spares_idle_replicas:
            return self._evaluate_batch(inputs, num_examples, step_of_task)
        # The last batch may leave a replica without examples, and a mean over nothing is not a number.
        evaluate = functools.partial(self._evaluate_batch, inputs, num_examples, step_of_task)
        return {**unless_idle(num_examples, evaluate), _IS_BUSY: num_examples > 0}

    def _evaluate_batch(self, inputs: Any, num_examples: tf.Tensor, step_of_task: Callable[..., Any]) -> dict[str, Any]:
        each = self._set
        with self._streams.named("validation", self._examples_evaluated):
            logs = step_of_task(inputs, model=each.model, metrics=each.metrics)
        if each.task.loss in logs:
            loss = tf.reduce_mean(tf.cast(logs[each.task.loss], tf.float32))
            each.loss.update_state(loss, sample_weight=tf.cast(num_examples, tf.float32))
        return tf.nest.map_structure(tf.convert_to_tensor, dict(logs))

    def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
        """Folds one step's logs into the state of the evaluation; called eagerly on the host."""
        return self._set.task.aggregate_logs(state, step_outputs)

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        """Returns the results of the evaluation; called eagerly, while averaged weights are still in the model."""
        logs = self._own_set.results(aggregated_logs, self._global_step)
        for each in self._named_sets:
            logs[each.name] = each.results(self._named_states.get(each.name), self._global_step)
        if self._checkpoint_exporter is not None:
            logs.update(self._export_best(logs))
        return logs

    def _export_best(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Offers the evaluated weights to the exporter; returns the best value so far as `best_<metric>`."""
        exporter = self._checkpoint_exporter
        with self.process_group.apart():
            exporter.maybe_export_checkpoint(self._checkpoint, logs, int(self._global_step.numpy()))
        name = self._config.trainer.best_checkpoint_eval_metric
        best = monitored.find_metric(exporter.best_ckpt_logs or {}, name)
        return {} if best is None else {f"best_{name}": best}


_IS_BUSY = "replica had examples"


def _drop_idle_replicas(outputs: Any) -> Any:
    """Returns step logs with only the values of replicas that had examples."""
    if not isinstance(outputs, Mapping) or _IS_BUSY not in outputs:
        return outputs
    busy = [bool(b) for b in outputs[_IS_BUSY]]

    def keep(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == len(busy):
            return tuple(v for v, b in zip(value, busy, strict=True) if b)
        return value

    return {name: keep(value) for name, value in outputs.items() if name != _IS_BUSY}


def _on_host(value: Any) -> Any:
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _joined(outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns step logs of all processes as those of one: the values of replicas one after the other."""
    return {name: _joined_value([each[name] for each in outputs]) for name in outputs[0]}


def _joined_value(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _joined_value([value[key] for value in values]) for key in first}
    if not isinstance(first, tuple | list):
        return first  # of the host, not of its replicas
    if any(isinstance(part, Mapping | tuple | list) for part in first):
        return type(first)(_joined_value(list(parts)) for parts in zip(*values, strict=True))
    return tuple(part for value in values for part in value)
