"""What a training step pays for actions: a run with all of them on beside one with none.

Owns: the actions of the run, and what of its time counts: windows of steps and what actions do at steps. What they do
after evaluations and at the end (export, average, save) is work that somebody asked for. Does not own: the tables
(`report.py`).

The run has the step of `digits_mlp`, which is small, in windows of 500; its first steps, which trace, do not count.
Every action has its own trigger, or one that a run of hours would have. Runs take turns; each is a run of its own,
because actions change how windows are cut.

Run as a process of its own (`python -m benchmarks.actions FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.lazy import keras

NONE = "no action"
ALL = "all actions"
NUM_STEPS = 60_000
WARM_STEPS = 6_000

ACTIONS = """[
  {type: early_stopping, monitor: accuracy, patience: 1000},
  {type: checkpoint, monitor: accuracy, max_to_keep: 2},
  {type: average_checkpoints},
  {type: export_saved_model, when: at_end},
  {type: divergence},
  {type: learning_rate, when: {every: 1000}},
  {type: profile},
  {type: publish_environment},
  {type: publish_intermediates, when: {every: 5000}},
  {type: replica_integrity},
  {type: command, argv: ['true', '{step}']},
]"""


def microseconds_per_step(actions: str) -> dict[str, float]:
    """Trains and returns what a step took, with what actions did at steps, after the first ones."""
    from official_trainer import config as configuration
    from official_trainer import registry, run
    from official_trainer.loop import Loop
    from official_trainer.schedule import Schedule

    spent = _Spent()
    keras.backend.clear_session()
    intervals = [
        f"trainer.{name}={NUM_STEPS}" for name in ("train_steps", "validation_interval", "checkpoint_interval")
    ]
    sets = [*intervals, "trainer.steps_per_loop=500", "trainer.summary_interval=1000", f"trainer.actions={actions}"]
    config = registry.get_config("digits_mlp", processes.ROOT)
    resolved = configuration.resolve(config, experiment="digits_mlp", sets=sets)
    window, step = Loop._run_window, Schedule.step
    Loop._run_window, Schedule.step = spent.counted(window), spent.counted(step)  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as model_dir:
            run.run("digits_mlp", resolved, mode="train_and_eval", model_dir=model_dir, quiet=True)
    finally:
        Loop._run_window, Schedule.step = window, step  # type: ignore[method-assign]
    return {"microseconds": spent.seconds / (NUM_STEPS - WARM_STEPS) * 1e6}


class _Spent:
    """Seconds spent in some functions, once the loop has passed its first steps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_warm = False

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(owner: Any, *arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(owner, *arguments, **options)
            finally:
                if self._is_warm:
                    self.seconds += time.perf_counter() - start
                state = getattr(owner, "state", None)
                self._is_warm = self._is_warm or getattr(state, "step", 0) >= WARM_STEPS

        return call


# Measuring.


def measure_all(num_rounds: int) -> dict[str, list[float]]:
    """Returns microseconds per step by variant, round by round."""
    variants = {
        NONE: functools.partial(microseconds_per_step, "[]"),
        ALL: functools.partial(microseconds_per_step, ACTIONS),
    }
    results = rounds.interleave(variants, num_rounds)["microseconds"]
    return {name: list(values) for name, values in results.items()}


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
