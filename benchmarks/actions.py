"""What a training step pays for actions: stretches of one run with all of them on, beside stretches with none.

Owns: the actions of the run, and what of its time counts: windows of steps and what actions do at steps. What they do
after evaluations and at the end (export, average, save) is work that somebody asked for. Does not own: the tables
(`report.py`).

The run has the step of `digits_mlp`, which is small, in windows of 500. Actions are switched on and off within it: two
graphs of one step differ by more than what is measured here. Every action has its own trigger, or one that a run
of hours would have. The first stretches, which trace, do not count.

Run as a process of its own (`python -m benchmarks.actions FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from benchmarks import processes
from benchmarks.report import Comparison, Target

NONE = "no action"
ALL = "all actions"
STRETCH_STEPS = 20_000
WARM_STRETCHES = 2

ACTIONS = """[
  {type: early_stopping, monitor: accuracy, patience: 1000},
  {type: checkpoint, monitor: accuracy, max_to_keep: 2},
  {type: average_checkpoints},
  {type: export_saved_model, when: at_end},
  {type: learning_rate, when: {every: 1000}},
  {type: profile},
  {type: publish_environment},
  {type: publish_intermediates, when: {every: 20000}},
  {type: replica_integrity},
  {type: command, argv: ['true', '{step}']},
]"""


def is_on(stretch: int) -> bool:
    """Whether a stretch of the run has its actions: off, on, on, off, …, so that neither always comes first."""
    return stretch % 4 in (1, 2)


class Switched:
    """A schedule of actions whose calls at steps are left out in some stretches; keeps what each stretch took."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule
        self._step: Callable[[], int] = lambda: 0
        self.seconds: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)

    def start(self, run: Any) -> Sequence[Any]:
        """Begins, as the schedule does."""
        self._step = lambda: run.state.step
        return self._schedule.start(run)

    def step(self, **happened: bool) -> Sequence[Any]:
        """Calls what is due, in a stretch that has actions."""
        stretch = _stretch_of(self._step())
        start = time.perf_counter()
        requests = self._schedule.step(**happened) if is_on(stretch) else []
        self.took(stretch, time.perf_counter() - start)
        self._schedule._asked_step = self._step()  # what was left out is not made up for
        return requests

    def next_step(self, after: int, until: int) -> int | None:
        """Returns where a window has to end: at the end of a stretch too, so that each step belongs to one."""
        end = (after // STRETCH_STEPS + 1) * STRETCH_STEPS
        due = self._schedule.next_step(after, until) if is_on(_stretch_of(after + 1)) else None
        return min((step for step in (due, end) if step is not None and step <= until), default=None)

    def next_published_step(self, after: int, until: int) -> int | None:
        """Returns the step of which something is published, in a stretch that has actions."""
        return self._schedule.next_published_step(after, until) if is_on(_stretch_of(after + 1)) else None

    def took(self, stretch: int, seconds: float) -> None:
        """Counts time for a stretch."""
        self.seconds[stretch] = self.seconds.get(stretch, 0.0) + seconds

    def timed(self, run_window: Callable[..., None]) -> Callable[..., None]:
        """Returns the method that runs a window, with its time counted."""

        def run(loop: Any, due_step: int) -> None:
            stretch, start = _stretch_of(loop.state.step + 1), time.perf_counter()
            run_window(loop, due_step)
            self.took(stretch, time.perf_counter() - start)

        return run


def _stretch_of(step: int) -> int:
    """Returns in which stretch a step lies, counted from 0."""
    return (step - 1) // STRETCH_STEPS


# Measuring.


def measure_all(num_rounds: int) -> dict[str, list[float]]:
    """Returns microseconds per step by variant, round by round: neighbouring stretches of one run."""
    from official_trainer import config as configuration
    from official_trainer.engine.loop import Loop
    from official_trainer.runs import run, train
    from official_trainer.runs.build import schedule_of
    from official_trainer.tasks import registry

    switches: list[Switched] = []

    def switched(*arguments: Any) -> Switched:
        switches.append(Switched(schedule_of(*arguments)))
        return switches[-1]

    def run_window(loop: Loop, due_step: int) -> None:
        switches[-1].timed(original)(loop, due_step)

    num_stretches = WARM_STRETCHES + 2 * num_rounds
    names = ("train_steps", "validation_interval", "checkpoint_interval")
    sets = [f"trainer.{name}={num_stretches * STRETCH_STEPS}" for name in names]
    sets += ["trainer.steps_per_loop=500", "trainer.summary_interval=1000", f"trainer.actions={ACTIONS}"]
    config = registry.get_config("digits_mlp", processes.ROOT)
    resolved = configuration.resolve(config, experiment="digits_mlp", sets=sets)
    original = Loop.run_window
    with (
        mock.patch.object(train, "schedule_of", switched),
        mock.patch.object(Loop, "run_window", run_window),
        tempfile.TemporaryDirectory() as model_dir,
    ):
        run.run("digits_mlp", resolved, mode="train_and_eval", model_dir=model_dir, quiet=True)
    return _by_variant(switches[-1].seconds, num_stretches)


def _by_variant(seconds: dict[int, float], num_stretches: int) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {NONE: [], ALL: []}
    for stretch in range(WARM_STRETCHES, num_stretches):
        results[ALL if is_on(stretch) else NONE].append(seconds[stretch] / STRETCH_STEPS * 1e6)
    return results


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    return [
        Comparison(
            title="a step of digits_mlp with actions",
            unit="µs/step",
            digits=1,
            ratio_digits=3,
            quartiles=True,
            values=processes.results_of("benchmarks.actions", num_rounds),
            baseline=NONE,
            targets=[Target(name=ALL, against=NONE, at_most=1.02)],
        )
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
