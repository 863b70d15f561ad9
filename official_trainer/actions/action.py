"""Action: code that is called at chosen steps. The contract between actions and the loop.

Owns: the hooks of an action (`Action`), its view of the run (`Run`) and its requests (`Stop`, `Save`, `Rollback`,
`CallAt`, `Assign`, `Result`). Does not own: when and in which order actions are called, and what concerns one action
alone (`schedule.py`), executing the other requests (`engine/loop.py`), any action (`actions/`), or the arithmetic of
steps (`config/when.py`).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from official_trainer.actions.durations import StepDurations
from official_trainer.config import ActionConfig, When
from official_trainer.config.when import Span
from official_trainer.tracking import Tracker

KEEPERS = "keepers of checkpoints"
"""Key in `LoopState.shared` of the list of actions that keep checkpoints."""


@dataclasses.dataclass
class LoopState:
    """The position of a run.

    Attributes:
      step: global step.
      start_step: step at which this process started.
      end_step: step at which training ends; None until the first epoch of data of unknown size has ended.
      epoch: passes over the data so far; None until the first one of data of unknown size has ended.
      shared: values of any kind that actions, and the program that runs the loop, leave for each other; not saved.
      results: what actions have handed back last, by their names; saved in each checkpoint.
      step_seconds: duration of a step in each of the last windows.
      step_durations: how long all steps of this process took.
      stop_reason: why training ends before its last step, if an action has requested that.
    """

    step: int = 0
    start_step: int = 0
    end_step: int | None = None
    epoch: float | None = None
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    results: dict[str, Any] = dataclasses.field(default_factory=dict)
    step_seconds: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=100))
    step_durations: StepDurations = dataclasses.field(default_factory=StepDurations)
    stop_reason: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether training has reached its last step."""
        return self.end_step is not None and self.step >= self.end_step

    @property
    def span(self) -> Span:
        """The steps of this process, for `When`."""
        return Span(start_step=self.start_step, end_step=self.end_step)

    @property
    def median_step_seconds(self) -> float | None:
        """Median of `step_seconds`; None before the first window."""
        return statistics.median(self.step_seconds) if self.step_seconds else None


@dataclasses.dataclass(kw_only=True)
class Run:
    """An action's view of a run.

    Attributes:
      state: its position.
      trainer: has `model`, `optimizer`, `task`, `config`, `strategy`, `global_step`.
      model_dir: the run directory.
      tracker: records numbers and media.
      train_logs: the newest summary of training, flat.
      summary_step: the step of that summary.
      outputs: what the trainer returned for the newest summary or evaluation, nested, as tensors; the flat numbers if
        an earlier process computed it.
      saved_steps: waits until no checkpoint is being written, and returns the steps of the saved ones.
      is_dry_run: whether the verb `check` tries the start of a run, of which others are not to be told.

    Example:
      An action that adds a number to those of all trackers, and its test:

      >>> from official_trainer.actions import Action, Run
      >>> from official_trainer.actions.action import LoopState
      >>> from official_trainer.tracking import Tracker
      >>> class Speed(Action):
      ...     def on_step(self, run):
      ...         run.tracker.log("speed", run.step, {"step_seconds": run.state.median_step_seconds})
      >>> class Lines(Tracker):
      ...     def log(self, split, step, values):
      ...         print(split, step, values)
      >>> state = LoopState(step=300)
      >>> state.step_seconds.extend([0.5, 0.25, 0.5])
      >>> Speed().on_step(Run(state=state, trainer=None, model_dir="", tracker=Lines()))
      speed 300 {'step_seconds': 0.5}
    """

    state: LoopState
    trainer: Any
    model_dir: str
    tracker: Tracker
    train_logs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    summary_step: int | None = None
    outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    saved_steps: Callable[[], Sequence[int]] = lambda: ()
    is_dry_run: bool = False

    @property
    def step(self) -> int:
        """The global step."""
        return self.state.step

    @property
    def is_summarized(self) -> bool:
        """Whether the newest summary is that of this step."""
        return self.summary_step == self.step

    @property
    def model(self) -> Any:
        """The model; an action changes it by `Assign` only."""
        return self.trainer.model

    @property
    def variables(self) -> Mapping[str, Any]:
        """What `Assign` may change, by path: `model/dense/kernel`, `optimizer/…`; `average/…` if the run averages.

        With several workers, statistics that differ by replica (batch norm's) read as those of the chief's replicas.
        """
        by_path: Mapping[str, Any] = self.trainer.checkpoint_state.named_variables()
        return by_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop:
    """Requests that training ends at this step, as if it were the last one: saved, evaluated, exported.

    Attributes:
      reason: why, for the console and the record.

    Example:
      >>> from official_trainer.actions import Action, Stop
      >>> class StopWhenAccurate(Action):
      ...     def on_eval(self, run, logs):
      ...         if logs["accuracy"] > 0.99:
      ...             return Stop(reason="the accuracy is above 0.99")
      >>> StopWhenAccurate().on_eval(run=None, logs={"accuracy": 0.995})
      Stop(reason='the accuracy is above 0.99')
    """

    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """Requests a checkpoint of this step.

    Example:
      >>> from official_trainer.actions import Action, Save
      >>> from official_trainer.config import When
      >>> class SaveEarly(Action):
      ...     when = When(at_steps=(10, 100))
      ...
      ...     def on_step(self, run):
      ...         return Save()
      >>> SaveEarly().on_step(run=None)
      Save()
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollback:
    """Requests that the run goes back to an earlier checkpoint, as `trainer.recovery_…` configures, or fails.

    Attributes:
      reason: the problem of the current state.

    Example:
      >>> from official_trainer.actions import Action, Rollback
      >>> class StayAccurate(Action):
      ...     def on_eval(self, run, logs):
      ...         if logs["accuracy"] < 0.2:
      ...             return Rollback(reason=f"the accuracy has fallen to {logs['accuracy']}")
      >>> StayAccurate().on_eval(run=None, logs={"accuracy": 0.1})
      Rollback(reason='the accuracy has fallen to 0.1')
    """

    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallAt:
    """Requests a call of `on_step` at one more step, in this process.

    Attributes:
      step: a later step.

    Example:
      An action that begins something at the steps of `when`, and ends it five steps later:

      >>> from types import SimpleNamespace
      >>> from official_trainer.actions import Action, CallAt
      >>> from official_trainer.config import When
      >>> class Trace(Action):
      ...     when = When(every=1000)
      ...     is_on = False
      ...
      ...     def on_step(self, run):
      ...         self.is_on = not self.is_on
      ...         return CallAt(step=run.step + 5) if self.is_on else None
      >>> Trace().on_step(SimpleNamespace(step=1000))
      CallAt(step=1005)
    """

    step: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assign:
    """Hands back new values of variables, from `on_step` or `on_eval`: weights, batch-norm statistics, the optimizer's.

    All are checked before the first is assigned: each name exists, shape and dtype are those of the variable, and
    floats are finite. They are assigned on all replicas before the next action is called. The checkpoint and the
    evaluation of that step have them; what is handed back after an evaluation counts from the next step on, and after
    the last evaluation for the export alone.

    Attributes:
      values: arrays or tensors, by the paths of `Run.variables`; also nested, as `{"model": {"dense/bias": …}}`.

    Example:
      >>> import numpy as np
      >>> from types import SimpleNamespace
      >>> from official_trainer.actions import Action, Assign
      >>> from official_trainer.config import When
      >>> class Prune(Action):
      ...     '''Sets the smaller half of each kernel to zero, again and again.'''
      ...
      ...     when = When(every=100)
      ...
      ...     def on_step(self, run):
      ...         old = {path: v.numpy() for path, v in run.variables.items() if path.endswith("/kernel")}
      ...         return Assign(values={path: np.where(abs(v) < np.median(abs(v)), 0, v) for path, v in old.items()})
      >>> kernel = SimpleNamespace(numpy=lambda: np.array([1.0, -4.0, 2.0, 3.0], np.float32))
      >>> Prune().on_step(SimpleNamespace(variables={"model/dense/kernel": kernel})).values
      {'model/dense/kernel': array([ 0., -4.,  0.,  3.], dtype=float32)}
    """

    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Hands back a value, for later actions and for the program that runs the loop: `run.state.results[name]`.

    The newest result of each action is saved in every checkpoint, so that a run that continues has it again. Values
    that JSON does not support belong into `run.state.shared`, which is not saved.

    Attributes:
      value: numbers, text, lists, and dicts with text as keys.

    Example:
      >>> from official_trainer.actions import Action, Result
      >>> class LargestLoss(Action):
      ...     def on_step(self, run):
      ...         before = run.state.results.get(self.name, 0.0)
      ...         return Result(value=max(before, run.train_logs["training_loss"]))
      >>> from types import SimpleNamespace
      >>> run = SimpleNamespace(state=SimpleNamespace(results={}), train_logs={"training_loss": 2.5})
      >>> LargestLoss().on_step(run)
      Result(value=2.5)
    """

    value: Any


Request = Stop | Save | Rollback | CallAt | Assign | Result


class Action:
    """Code that is called at chosen steps. Subclasses override the hooks they need; the others are never called.

    A hook returns a request, several, or None. An action changes the run only by requests: it reads weights and
    optimizer, and assigns them by `Assign`.

    Attributes:
      name: unique among the actions of a run, for messages and checkpoints; unset means the class's name.
      priority: the lowest is called first; of equal ones the first in the list.
      when: when it is due: at these steps `on_step` is called, and `on_eval` after evaluations of these steps. By
        default with every summary of training and after every evaluation.
      on_error: the effect of an exception in a hook: `fail` ends the run, `warn` and `disable` continue it.

    Example:
      >>> from official_trainer.actions import Action, Stop
      >>> class Plateau(Action):
      ...     '''Ends training after three summaries without a lower loss, also over restarts.'''
      ...
      ...     def __init__(self):
      ...         self._lowest, self._waited = float("inf"), 0
      ...
      ...     def on_step(self, run):
      ...         loss = run.train_logs["smoothed_loss"]
      ...         self._waited = 0 if loss < self._lowest else self._waited + 1
      ...         self._lowest = min(loss, self._lowest)
      ...         return Stop(reason="the loss does not fall") if self._waited == 3 else None
      ...
      ...     def state(self):
      ...         return {"lowest": self._lowest, "waited": self._waited}
      ...
      ...     def restore(self, state):
      ...         self._lowest, self._waited = state.get("lowest", float("inf")), state.get("waited", 0)
      >>> plateau = Plateau()
      >>> plateau.restore({"lowest": 0.25, "waited": 2})
      >>> plateau.state()
      {'lowest': 0.25, 'waited': 2}
    """

    name: str = ""
    priority: int = 0
    when: When = When(any=(When(after_summary=True), When(after_eval=True)))
    on_error: Literal["fail", "warn", "disable"] = "fail"

    publishes: ClassVar[bool] = False
    """Whether the values that the model publishes inside a step are requested at the steps of `when`."""

    def take_section(self, section: ActionConfig) -> None:
        """Takes what every section of `trainer.actions` has; the schedule calls it with the one that built this."""
        self.name = section.name or section.type
        self.priority, self.on_error = section.priority, section.on_error
        if section.when is not None:
            self.when = section.when

    def monitored(self) -> tuple[str, ...]:
        """Returns the names of the evaluation's metrics that this needs; a run without them is refused at its start."""
        return ()

    def needed_checkpoints(self, planned: Sequence[int]) -> Sequence[int]:
        """Returns those of the run's checkpoints that `trainer.max_to_keep` must not delete yet.

        Called whenever checkpoints are deleted, also before `on_start`, in another thread: the result may only depend
        on `planned`.

        Args:
          planned: rising steps of the saved checkpoints, at multiples of `trainer.checkpoint_interval`.
        """
        return ()

    def on_start(self, run: Run) -> Any:
        """Called once per process, after the state is restored and before the first step.

        The verb `check` calls it too, with `run.is_dry_run` set: refuse here what cannot work, and tell nobody then.

        Args:
          run: the run.
        """

    def on_step(self, run: Run) -> Any:
        """Called when due, after the summary of that step and before its checkpoint."""

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> Any:
        """Called when due, after an evaluation; again after a restart, unless a later checkpoint includes the call.

        Args:
          run: the run.
          logs: the evaluation's results, flat: `{"accuracy": 0.9, "dev/accuracy": 0.8}`.
        """

    def on_trace(self, run: Run, trace: Any) -> Any:
        """Called after a function was traced, once the window or the evaluation has ended.

        Args:
          run: the run.
          trace: what was traced (`engine.traces.Trace`).
        """

    def on_stall(self, run: Run, reason: str) -> None:
        """Called in a thread of its own when the process hangs: it ends seconds later, and nothing else is called.

        Args:
          run: the run; its model and variables must not be used.
          reason: what hangs.
        """

    def on_end(self, run: Run, failure: BaseException | None) -> Any:
        """Called when the run ends, after everything is saved.

        Args:
          run: the run.
          failure: the exception that ended it; None for none.
        """

    def state(self) -> Mapping[str, Any]:
        """Returns the state that a restart needs, in types that JSON supports; it is saved in each checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`; `{}` for a run that begins, or is rolled back to its beginning."""


class Callback(Action):
    """A plain callable as an action, such as those in `orbit.actions`.

    After an evaluation (`on="eval"`), or with each summary of training (`on="train"`), it gets the results as a flat
    dictionary. Its return value is ignored.
    """

    def __init__(self, function: Callable[[Any], Any], *, on: Literal["eval", "train"] = "eval") -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self._on = on
        self.when = When(after_eval=True) if on == "eval" else When(after_summary=True)

    def on_step(self, run: Run) -> None:
        if self._on == "train":
            self._function(dict(run.train_logs))

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        if self._on == "eval":
            self._function(dict(logs))
