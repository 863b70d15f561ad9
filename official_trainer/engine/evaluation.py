"""Evaluation: traced steps over all validation data, each example counted once, with averaged weights in the model.

Owns: running all validation sets, and evaluations that leave no trace in the run. Does not own: a set and its step
(`validation_sets.py`), Model Garden's override points (`trainer.py`), when to evaluate (`loop.py`), keeping the best
checkpoint (`checkpoints/best.py`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orbit

from official_trainer.distributed.collective import collective
from official_trainer.distributed.replicas import local_sum
from official_trainer.engine import windows
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.engine.step_context import StepContext
from official_trainer.engine.validation_sets import IS_BUSY, MonitoredMetricError, ValidationSet
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.tasks import metrics
from official_trainer.tracking import monitored

_logger = logging.getLogger(__name__)


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
    def _sets(self) -> list[ValidationSet]:
        """All sets that have data, in the order in which they are evaluated."""
        return [*self._named_sets, *([self.own_set] if self.own_set.has_data else [])]

    @property
    def num_examples(self) -> int:
        """How many examples of the current set this process has evaluated; any thread may read it."""
        return int(local_sum(self.current_set.num_examples))

    def run(self, num_steps: int, *, own_steps: bool = True) -> dict[str, Any]:
        """Evaluates all sets and returns `eval_end`'s logs; called by all processes. See `Trainer.evaluate`.

        Args:
          num_steps: batches; -1 for all.
          own_steps: whether a set with a number of steps of its own has as many.
        """
        self._state.synchronize()
        trainer = self._trainer
        with trainer.weights_averaged(), self.process_group.stop.interruptible(self.rescue):
            state = trainer.eval_begin()
            for each in self._named_sets:
                steps = each.steps if own_steps and each.steps is not None else num_steps
                self._named_states[each.name] = self._run_set(each, steps, None)
            if self.own_set.has_data:
                state = self._run_set(self.own_set, num_steps, state)
            self._context.traces.check("eval", functions=len(self._sets))
            with self.process_group.reading(self._metric_variables):
                return trainer.eval_end(state) if state is not None else trainer.eval_end()

    def _run_set(self, each: ValidationSet, num_steps: int, state: Any) -> Any:
        """Returns the folded logs of one set, whose metrics hold the rest."""
        trainer, self.current_set = self._trainer, each
        each.num_examples.assign(0)
        with each.builder.errors_explained():
            if each.loop_fn is None:
                each.loop_fn = trainer.create_eval_loop_fn(has_state=state is not None)
            if each.dataset is None:
                each.dataset = each.builder.build()
            state = each.loop_fn(tf.nest.map_structure(iter, each.dataset), num_steps, state)
        if self._counts_examples and sum(self.process_group.exchange(self.num_examples)) == 0:
            raise DataError(
                f"{each.builder.source}: the validation data {f'of {each.name!r} ' if each.name else ''}holds no "
                "example; check input_path, and global_batch_size if drop_remainder is set"
            )
        return state

    def run_without_effects(self, num_steps: int, *, own_steps: bool = True) -> dict[str, Any]:
        """Evaluates like `run`, but the run's best checkpoint and all its values stay as they are.

        Args:
          num_steps: batches; -1 for all.
          own_steps: whether a set with a number of steps of its own has as many.
        """
        is_alone, variables = self.process_group.is_alone, self._context.model.variables
        return self._evaluate_weights(num_steps, own_steps, None if is_alone else [v.numpy() for v in variables])

    @collective
    def _evaluate_weights(self, num_steps: int, own_steps: bool, weights: Sequence[Any] | None) -> dict[str, Any]:
        """Evaluates the chief's weights, which may differ from those that all processes train."""
        with self.keeping_best(None), self._state.preserved():
            for variable, value in zip(self._context.model.variables, weights or (), strict=weights is not None):
                variable.assign(value)
            return self.run(num_steps, own_steps=own_steps)

    @contextlib.contextmanager
    def keeping_best(self, exporter: Any) -> Iterator[None]:
        """For a `with` block, evaluations offer their weights to `exporter` alone; None for nothing."""
        before, self.exporter = self.exporter, exporter
        try:
            yield
        finally:
            self.exporter = before

    def check_monitored(self, wanted: Mapping[str, str]) -> None:
        """Refuses metrics that evaluations do not produce.

        Names that only the task knows are found by evaluating one batch, which changes nothing.

        Args:
          wanted: names of metrics, each with the setting that needs it.

        Raises:
          MonitoredMetricError: lists what evaluations do produce.
        """
        if not wanted.keys() - {name for each in self._sets for name in each.metric_names()}:
            return
        logs = self.run_without_effects(1, own_steps=False)
        for name, wanted_by in wanted.items():
            if monitored.find_metric(logs, name) is None:
                raise MonitoredMetricError(name, wanted_by, monitored.names(logs))

    def metric_direction(self, name: str) -> monitored.Direction:
        """Returns whether a higher (`max`) or a lower (`min`) value of an evaluation's metric is better.

        It is never guessed from the name: the task declares it (`metric_directions`), or the metric does, or its class
        is known. The engine's own losses are better when they are lower.

        Raises:
          MetricDirectionError: it is not declared, or as neither `max` nor `min`.
        """
        sets = self._sets
        found = next((each for each in self._named_sets if name.startswith(f"{each.name}|")), None)
        inner = name if found is None else name.removeprefix(f"{found.name}|")
        found = found or next((each for each in sets if not each.name), None)
        if found is None:
            known = ", ".join(each.name for each in sets)
            raise metrics.MetricDirectionError(
                f"it is unknown whether a higher or a lower {name!r} is better: it belongs to no validation set; there "
                f"are {known}, whose metrics are called {sets[0].name}|{name}"
            )
        return found.direction(inner, name)

    def rescue(self) -> bool:
        """Has the training state saved while an evaluation hangs; in another thread, which then ends the process."""
        if self._context.average is not None:
            self._context.average.swap_out()
        self._state.restore_preserved()
        return self.process_group.stop.save_state(lambda: True)

    # What Model Garden's override points do by default.

    def create_loop(self, options: orbit.StandardEvaluatorOptions, *, folds: bool) -> Callable[[Any, int, Any], Any]:
        """Returns `loop(iterator, num_steps, state) -> state`; `folds` is whether steps return logs to fold."""
        watched = functools.partial(self._context.traces.watched, "eval")
        trainer = self._trainer
        if options.use_tf_while_loop and not folds:  # a fold runs on the host, after each step
            run = windows.stepping_loop(trainer.eval_step, traced_step=True, traced_loop=True, watched=watched)

            def traced(iterator: Any, num_steps: int, state: Any) -> Any:
                with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                    run(iterator, tf.constant(num_steps if num_steps >= 0 else tf.int32.max, tf.int32))
                return state

            return traced
        step = tf.function(watched(trainer.eval_step)) if options.use_tf_function else trainer.eval_step

        def eager(iterator: Any, num_steps: int, state: Any) -> Any:
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                done = 0
                while num_steps < 0 or done < num_steps:
                    state = self._reduce(state, step(iterator))
                    done += 1
                    self.process_group.check_stop()
            return state

        return eager

    def _reduce(self, state: Any, outputs: Any) -> Any:
        """Passes a step's logs to `eval_reduce`, with the values of all replicas that had examples."""
        if not self.process_group.is_alone and self.task_folds:
            own = {name: tf.nest.map_structure(_on_host, value) for name, value in outputs.items()}
            outputs = _joined(self.process_group.exchange(own))
        return self._trainer.eval_reduce(state, _drop_idle_replicas(outputs))

    @property
    def task_folds(self) -> bool:
        """Whether the task of the current set folds the logs of its steps."""
        # Beyond the base class, ours or Model Garden's, which declares it.
        owner = next(cls for cls in type(self.current_set.task).__mro__ if "aggregate_logs" in vars(cls))
        return owner.__name__ != "Task"

    def step_logs(self, inputs: Any, passthrough_logs: Mapping[str, Any]) -> dict[str, Any]:
        """Evaluates a batch of the current set, traced; returns its logs, and those that stayed on the host."""
        logs = self.current_set.run(inputs)
        if clash := sorted(set(logs) & set(passthrough_logs)):
            _logger.warning("next_eval_inputs and the model both log %s; the model's value is kept", ", ".join(clash))
        return {**passthrough_logs, **logs}

    def reset(self) -> None:
        """Resets the metrics of all sets."""
        self._named_states = {}
        with self.process_group.reading(self._metric_variables):  # TensorFlow's assignments read, too
            for each in self._sets:
                for metric in each.measures:
                    metric.reset_states()

    @property
    def _metric_variables(self) -> list[tf.Variable]:
        return metrics.variables_of([metric for each in self._sets for metric in each.measures])

    def results(self, aggregated_logs: Any) -> dict[str, Any]:
        """Returns the results of all sets, and the best value so far as `best_<metric>`."""
        global_step = self._context.global_step
        logs = self.own_set.results(aggregated_logs, global_step)
        for each in self._named_sets:
            logs[each.name] = each.results(self._named_states.get(each.name), global_step)
        return logs | self._export_best(logs)

    def _export_best(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Offers the evaluated weights to the exporter; returns the best value so far."""
        exporter, trainer = self.exporter, self._trainer
        if exporter is None:
            return {}
        with self.process_group.chief_only():
            exporter.maybe_export_checkpoint(trainer.checkpoint, logs, self._context.step)
        name = trainer.config.trainer.best_checkpoint_eval_metric
        best = monitored.find_metric(exporter.best_ckpt_logs or {}, name)
        return {} if best is None else {f"best_{name}": best}


def _drop_idle_replicas(outputs: Any) -> Any:
    """Returns step logs with only the values of replicas that had examples."""
    if not isinstance(outputs, Mapping) or IS_BUSY not in outputs:
        return outputs
    busy = [bool(b) for b in outputs[IS_BUSY]]

    def keep(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == len(busy):
            return tuple(v for v, b in zip(value, busy, strict=True) if b)
        return value

    return {name: keep(value) for name, value in outputs.items() if name != IS_BUSY}


def _on_host(value: Any) -> Any:
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _joined(values: Sequence[Any]) -> Any:
    """Returns step logs of all processes as those of one: the values of replicas one after the other."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _joined([value[key] for value in values]) for key in first}
    if not isinstance(first, tuple | list):
        return first  # of the host, not of its replicas
    if any(isinstance(part, Mapping | tuple | list) for part in first):
        return type(first)(_joined(list(parts)) for parts in zip(*values, strict=True))
    return tuple(part for value in values for part in value)
