"""The loop in Python: `Loop(trainer)`, hooks that take a line each, and runs of so many steps, as GoMLX has them.

Owns: which step of a call is the last, the data of a call, what a hook is called with. Does not own: the loop itself
(`engine/loop.py`), when a hook is due (`config/when.py`), calling hooks and their errors (`actions/schedule.py`), or
what a run directory holds (`runs/train.py`).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import config as configuration
from official_trainer.actions.action import Action, LoopState, Run
from official_trainer.actions.schedule import Schedule
from official_trainer.config import TrainerConfig, When
from official_trainer.config.when import ExponentialWhen
from official_trainer.engine.events import DueSteps
from official_trainer.engine.train_iterator import Data, GivenData
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import in_hand
from official_trainer.program.running import run_in_directory, run_in_memory
from official_trainer.runs.job import Job, Prebuilt
from official_trainer.runs.mistakes import report
from official_trainer.tracking import flatten

Hook = Callable[[Any, Any], Any]
"""Called with the loop, and its dataset or metrics; returns None, requests of an action, or an error."""


class LoopError(UserError, ValueError):
    """A loop cannot run this trainer, or these data, in this way."""

    exit_code = ExitCode.CONFIG


class Loop:
    """Trains a `Trainer` in calls of so many steps, with hooks, on the loop that runs experiments.

    Without a run directory nothing is written, and signals are the caller's. With one each call continues from the
    newest checkpoint and saves the next ones, as `train.py` does. No call evaluates; hooks do.

    Hooks are actions: they are called at exactly their steps, by priority, and an error names the hook. A hook that has
    methods `state` and `restore` is saved with each checkpoint, as an action is.

    Attributes:
      trainer: what the loop trains.
      model_dir: the run directory; empty for none.
      dataset: of the last call; None for the task's training data.
      state: where the loop is: `step`, `start_step`, `end_step`, `epoch`, `shared`, and how long steps took.

    Example:
      >>> import numpy as np
      >>> from official_trainer import Loop, Task
      >>> from official_trainer.config import ExperimentConfig
      >>> from official_trainer.engine import Trainer
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.program import every_n_steps
      >>> class Line(Task):
      ...     def build_model(self):
      ...         return keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
      ...
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         return keras.losses.mean_squared_error(labels, model_outputs)
      >>> x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
      >>> dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x + 1)).batch(16).repeat()
      >>> config = ExperimentConfig()
      >>> task = Line(config.task)
      >>> trainer = Trainer(config, task, task.build_model(), keras.optimizers.SGD(0.3), evaluate=False)
      >>> loop = Loop(trainer)
      >>> every_n_steps(loop, 50, "watch", 0, lambda loop, metrics: print(loop.state.step, "smoothed_loss" in metrics))
      >>> metrics = loop.run_steps(dataset, 100)
      50 True
      100 True
      >>> metrics["batch_loss"] < 0.01
      True
    """

    def __init__(self, trainer: Any, *, model_dir: str = "") -> None:
        """Takes a trainer.

        Args:
          trainer: with an `ExperimentConfig` of `official_trainer.config`.
          model_dir: the run directory; empty for none.

        Raises:
          LoopError: the config is Model Garden's, the trainer is one of several processes, or the config has actions
            that need a run directory.
        """
        if not isinstance(trainer.config.trainer, TrainerConfig):
            raise LoopError(
                f"the trainer's config is a {type(trainer.config).__module__}.{type(trainer.config).__name__}; Loop "
                "needs an ExperimentConfig of official_trainer.config"
            )
        if not trainer.process_group.is_alone or trainer.context.workers is not None:
            raise LoopError(f"Loop trains in one process, and this run is on {trainer.context.devices}; use train.py")
        if trainer.config.trainer.actions and not model_dir:
            raise LoopError("trainer.actions of the config need a run directory; give Loop(trainer, model_dir=…)")
        self.trainer, self.model_dir = trainer, model_dir
        self.dataset: Any = None
        self.state = LoopState(step=trainer.context.step)
        self._run: Run | None = None
        self._hooks: list[Action] = []
        self._metrics_at: tuple[int, Mapping[str, float]] = -1, {}  # the step that they were read after, and they
        self._extra: Mapping[str, Any] = {}  # of the actions, in memory

    # Hooks.

    def on_start(self, name: str, priority: int, fn: Hook) -> None:
        """Calls `fn(loop, dataset)` at the beginning of each call.

        Args:
          name: of the hook, for messages.
          priority: the lowest is called first, negative ones too; of equal ones the first that was added.
          fn: the hook.
        """
        self._add(_StartHook(self, name, priority, fn))

    def on_step(self, name: str, priority: int, fn: Hook, *, when: When | None = None) -> None:
        """Calls `fn(loop, metrics)` after steps.

        Args:
          name: of the hook, for messages.
          priority: as for `on_start`.
          fn: the hook.
          when: after which steps; None for each.
        """
        self._add(_StepHook(self, name, priority, fn, when=when or When(every=1)))

    def on_end(self, name: str, priority: int, fn: Hook) -> None:
        """Calls `fn(loop, metrics)` at the end of each call, unless it fails.

        An `Action` in `trainer.actions` has an `on_end` that is told of failures.

        Args:
          name: of the hook, for messages.
          priority: as for `on_start`.
          fn: the hook.
        """
        self._add(_EndHook(self, name, priority, fn))

    def _add(self, hook: Action) -> None:
        # Hooks at the start, at steps and at the end often have one name; states are saved by the name of an action.
        names = {action.name for action in self._actions}
        if hook.name in names:
            candidates = (f"{hook.name}-{number}" for number in itertools.count(2))
            hook.name = next(name for name in candidates if name not in names)
        self._hooks.append(hook)

    # Calls.

    def run_steps(self, dataset: Any, steps: int) -> dict[str, float]:
        """Trains for so many steps more; returns the metrics of the last one.

        A second call with the same dataset continues in it.

        Args:
          dataset: a `tf.data.Dataset` of global batches; None for the training data of the task.
          steps: how many; nothing happens if it is 0 or less.

        Raises:
          LoopError: another dataset is given in a run directory.
          DataError: the data ended, and `trainer.on_data_end` is `error`; or it is no dataset.
          ActionError: a hook failed.
          NonFiniteError: the loss is not finite.
        """
        return self._call(dataset, _StepsOfCall(self, lambda start: start + steps)) if steps > 0 else {}

    def run_epochs(self, dataset: Any, epochs: int) -> dict[str, float]:
        """Trains until the data has ended so many times more; a pass that is under way counts as the first.

        Args:
          dataset: as for `run_steps`.
          epochs: how many; nothing happens if it is 0 or less.

        Raises:
          DataError: the data has no end.
        """
        return self._call(dataset, _EpochsOfCall(self, epochs)) if epochs > 0 else {}

    def run_to_global_step(self, dataset: Any, step: int) -> dict[str, float]:
        """Trains until `step`, if the loop is not there yet: of all calls the one for programs that are started again.

        Args:
          dataset: as for `run_steps`.
          step: the global step of the last update.
        """
        return self._call(dataset, _StepsOfCall(self, lambda start: step))

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of training since the last summary (`trainer.summary_interval`), with those of the last step."""
        run, step = self._run, self.trainer.context.step
        if run is not None and run.summary_step == step:
            return run.train_logs
        if self._metrics_at[0] != step:
            self._metrics_at = step, flatten(self.trainer.windows.results())
        return self._metrics_at[1]

    # How a call runs.

    def _call(self, dataset: Any, due: _StepsOfCall) -> dict[str, float]:
        trainer = self.trainer
        if dataset is not self.dataset:  # the first call in a run directory continues where its checkpoint was
            if self.model_dir and self._run is not None:
                raise LoopError(
                    f"dataset: {self.model_dir} continues in the dataset of the calls before; train on another one "
                    "without a run directory, or in another"
                )
            iterator = trainer.train_iterator
            data: Data = iterator.builder
            if dataset is not None:
                data = GivenData(in_hand.checked(dataset, "dataset"), "dataset", trainer.distribute_dataset)
            if not self.model_dir:
                self._begin_pass()
            iterator.use(data)
            self.dataset = dataset
        policy = "stop" if due.counts_epochs else trainer.config.trainer.on_data_end
        with report.noted(), trainer.strategy.scope(), trainer.train_iterator.on_end(policy):
            metrics = self._train(due)
        if due.counts_epochs and dataset is not None and self.state.stop_reason is None and not self.model_dir:
            self._begin_pass()
        return metrics

    def check_length(self) -> None:
        """Refuses hooks that depend on the end of a call over data of unknown length."""
        whens = [hook.when for hook in self._hooks if isinstance(hook, _StepHook)]
        whens += [part for when in whens for part in when.any or ()]
        if any(when.n_times or when.n_times_of_process for when in whens):
            raise LoopError(
                "n_times_during_loop needs the number of batches, which is unknown; give "
                "dataset.apply(tf.data.experimental.assert_cardinality(…)), or, for the data of the task, set "
                "input_context.examples_per_epoch in build_inputs"
            )

    def _begin_pass(self) -> None:
        """Has the next step take the first batch of the data."""
        if self.trainer.train_iterator.position.start_step(self.trainer.context.step):
            self.trainer.train_iterator.begin_next_epoch()

    @property
    def _actions(self) -> list[Action]:
        return [_Following(self), *self._hooks]

    def _train(self, due: _StepsOfCall) -> dict[str, float]:
        trainer = self.trainer
        if not self.model_dir:
            of_task = getattr(trainer.task, "build_actions", lambda trainer: ())(trainer)  # Model Garden's have none
            schedule = Schedule([*of_task, *trainer.actions, *self._actions])
            # This call makes no call of a step before it: there is no restart that would have to make up for one.
            called = {action.name: trainer.context.step for action in schedule.actions}
            try:
                return flatten(run_in_memory(trainer, due, schedule, {**self._extra, "called": called}))
            finally:
                self._extra = {**schedule.state(), "stopped": None}  # the next call goes on
        experiment = type(trainer.task).__name__
        job = Job(
            experiment=experiment,
            resolved=configuration.resolve(trainer.config, experiment=experiment),
            model_dir=self.model_dir,
            mode="train",
            quiet=True,
            argv=tuple(sys.argv),
            prebuilt=Prebuilt(trainer=trainer, due=due, actions=self._actions),
        )
        return run_in_directory(job)

    def follow(self, run: Run) -> None:
        """A call has begun; what hooks share goes on from the call before."""
        run.state.shared.update(self.state.shared)
        self._run, self.state = run, run.state


# Hooks as actions.


class _Following(Action):
    """Tells a loop that a call has begun, before its hooks."""

    name = "loop"
    priority = -sys.maxsize

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def on_start(self, run: Run) -> None:
        self._loop.follow(run)


class _Hook(Action):
    """A function of a program as an action."""

    def __init__(self, loop: Any, name: str, priority: int, fn: Hook) -> None:
        self._loop, self._fn = loop, fn
        self.name, self.priority = name, priority

    def _call(self, argument: Any) -> Any:
        answer = self._fn(self._loop, argument)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def state(self) -> Mapping[str, Any]:
        return self._fn.state() if hasattr(self._fn, "state") else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if hasattr(self._fn, "restore"):
            self._fn.restore(state)


class _StartHook(_Hook):
    """Is called with the dataset, when a call begins."""

    def on_start(self, run: Run) -> Any:
        return self._call(self._loop.dataset)


class _StepHook(_Hook):
    """Is called with the metrics, after steps."""

    def __init__(self, *args: Any, when: When) -> None:
        super().__init__(*args)
        self.when = when

    def on_step(self, run: Run) -> Any:
        return self._call(self._loop.metrics)


class _EndHook(_Hook):
    """Is called with the metrics, when a call has succeeded."""

    def on_end(self, run: Run, failure: BaseException | None) -> Any:
        return None if failure is not None else self._call(self._loop.metrics)


# The last step of a call.


class _StepsOfCall(DueSteps):
    """The last step of a call by its first; all else is due as the config says."""

    def __init__(self, loop: Loop, end: Callable[[int], int]) -> None:
        super().__init__(loop.trainer.config.trainer, "never")
        self._end = end

    @property
    def counts_epochs(self) -> bool:
        return False

    def planned_end(self, step: int, iterator: Any) -> int | None:
        return self._end(step)


class _EpochsOfCall(_StepsOfCall):
    """The last step of a call over passes from where it begins."""

    def __init__(self, loop: Loop, epochs: int) -> None:
        super().__init__(loop, lambda start: start)
        self._loop, self._epochs = loop, epochs
        self._last_epoch = 0  # after which the call ends, counted over all calls
        self._start = 0

    @property
    def counts_epochs(self) -> bool:
        return True

    def planned_end(self, step: int, iterator: Any) -> int | None:
        self._start = step
        self._last_epoch = int(iterator.position.epoch.numpy()) + self._epochs
        length = iterator.steps_per_epoch()
        if length is None:
            self._loop.check_length()
            return None
        return step + math.ceil(self._epochs * length - iterator.position.start_step(step) % length)

    def end_after(self, epochs_done: int, step: int, epoch_steps: int) -> int:
        if step == self._start:  # the data had ended with the last step of the call before
            self._last_epoch += 1
        return step + (self._last_epoch - epochs_done) * epoch_steps


# When a hook is due.


def every_n_steps(loop: Loop, n: int, name: str, priority: int, fn: Hook) -> None:
    """Calls `fn(loop, metrics)` at the multiples of `n`, counted from the beginning of training.

    Example:
      >>> from official_trainer.program import every_n_steps
      >>> def watch(loop):
      ...     every_n_steps(loop, 100, "watch", 0, lambda loop, metrics: print(loop.state.step, metrics["batch_loss"]))
    """
    loop.on_step(name, priority, fn, when=When(every=n))


def n_times_during_loop(loop: Loop, n: int, name: str, priority: int, fn: Hook) -> None:
    """Calls `fn(loop, metrics)` `n` times in each call, evenly, the last time at its last step.

    For `run_epochs` the dataset has to say its length.

    Example:
      >>> from official_trainer.program import n_times_during_loop
      >>> def evaluate_in(loop, dataset):
      ...     n_times_during_loop(loop, 5, "eval", 0, lambda loop, metrics: print(loop.trainer.evaluate_on(dataset)))
    """
    loop.on_step(name, priority, fn, when=When(n_times_of_process=n))


def periodic(loop: Loop, seconds: float, name: str, priority: int, fn: Hook, *, call_on_end: bool = False) -> None:
    """Calls `fn(loop, metrics)` when so many seconds have passed since it returned, or since the first step of a call.

    Example:
      >>> from official_trainer.actions import Save
      >>> from official_trainer.program import periodic
      >>> def save_in(loop):
      ...     periodic(loop, 600, "save", 100, lambda loop, metrics: Save(), call_on_end=True)
    """
    loop.on_step(name, priority, fn, when=When(every_seconds=seconds, call_on_end=call_on_end))


def exponential(
    loop: Loop, start: int, factor: float, name: str, priority: int, fn: Hook, *, call_on_end: bool = False
) -> None:
    """Calls `fn(loop, metrics)` at steps further and further apart: 100, 220, 364, … for 100 and 1.2.

    Example:
      >>> from official_trainer.program import exponential
      >>> def plot_in(loop, points):
      ...     exponential(loop, 100, 1.2, "plot", 0, lambda loop, metrics: points.append(metrics), call_on_end=True)
    """
    when = When(exponential=ExponentialWhen(start=start, factor=factor), call_on_end=call_on_end)
    loop.on_step(name, priority, fn, when=when)
