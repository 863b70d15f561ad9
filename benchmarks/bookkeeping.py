"""What a training step pays for exact resume: random streams, the mark of waiting for data, the trace of the loss.

Owns: the same trainer with each of these left out, or done many times. Does not own: the tables (`report.py`).

Each is so cheap that it drowns in the noise of a step. So a step does it eleven times, one after the other, and what it
then takes beyond a step without is divided by eleven. Where the data stands costs a step nothing: it is the step.

Run as a process of its own (`python -m benchmarks.bookkeeping FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.lazy import keras

TIMES = 11
ROUNDS_PER_BUILD = 2  # two graphs of the same step differ in speed, see steps.py
WINDOW_STEPS = {"digits_cnn": 50, "digits_mlp": 500}
WARM_WINDOWS, TIMED_WINDOWS = 1, 4

NONE = "none of it"
ALL = "as it is"
STREAMS = "random streams of two Dropout layers (one in digits_mlp)"
MARK = "mark of waiting for data"
TRACE = "loss of the last step and its average"
TOGETHER = "together"

VARIANTS: dict[str, tuple[int, int, int]] = {
    NONE: (0, 0, 0),
    ALL: (1, 1, 1),
    STREAMS: (TIMES, 0, 0),
    MARK: (0, TIMES, 0),
    TRACE: (0, 0, TIMES),
    TOGETHER: (TIMES, TIMES, TIMES),
}
"""How often a step does each."""


def build_trainer(experiment: str, streams: int, mark: int, trace: int) -> Any:
    """Returns the trainer of an experiment whose steps do each piece of bookkeeping so many times."""
    from official_trainer import distribute, random_streams, registry
    from official_trainer.trainer import Trainer

    config = registry.get_config(experiment, processes.ROOT)
    random_streams.enable(config.runtime.seed)
    with distribute.build_strategy(config.runtime).scope():
        task = registry.get_task_cls(config.task)(config.task)
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        trainer = Trainer(config, task, task.build_model(), optimizer, evaluate=False)
    trainer._streams.begin_step = _repeated(trainer._streams.begin_step, streams)
    trainer._loss_trace.update = _repeated(trainer._loss_trace.update, trace)
    trainer._input_mark.next = _nested(trainer._input_mark.next, mark)
    return trainer


def _repeated(function: Callable[[Any], None], times: int) -> Callable[[Any], None]:
    def call(value: Any) -> None:
        for _ in range(times):
            function(value)

    return call


def _nested(function: Callable[[Callable[[], Any]], Any], times: int) -> Callable[[Callable[[], Any]], Any]:
    def call(get_inputs: Callable[[], Any]) -> Any:
        for _ in range(times):
            get_inputs = functools.partial(function, get_inputs)
        return get_inputs()

    return call


# Measuring.


def microseconds_per_step(trainer: Any, window_steps: int) -> dict[str, float]:
    """Trains some windows and returns what a step of the timed ones took."""
    trainer.run_steps(WARM_WINDOWS * window_steps)
    start = time.perf_counter()
    for _ in range(TIMED_WINDOWS):
        trainer.run_steps(window_steps)
    return {"microseconds": (time.perf_counter() - start) / (TIMED_WINDOWS * window_steps) * 1e6}


def measure_all(num_rounds: int) -> dict[str, dict[str, tuple[float, ...]]]:
    """Returns microseconds per step by experiment and variant, round by round."""
    return {experiment: _measure(experiment, num_rounds) for experiment in WINDOW_STEPS}


def _measure(experiment: str, num_rounds: int) -> dict[str, tuple[float, ...]]:
    values: dict[str, tuple[float, ...]] = dict.fromkeys(VARIANTS, ())
    for start in range(0, num_rounds, ROUNDS_PER_BUILD):
        keras.backend.clear_session()
        gc.collect()  # pipelines of the last build
        trainers = {name: build_trainer(experiment, *times) for name, times in VARIANTS.items()}
        window = WINDOW_STEPS[experiment]
        measures = {name: functools.partial(microseconds_per_step, each, window) for name, each in trainers.items()}
        for trainer in trainers.values():
            trainer.run_steps(window)
        results = rounds.interleave(measures, min(ROUNDS_PER_BUILD, num_rounds - start))["microseconds"]
        values = {name: values[name] + results[name] for name in VARIANTS}
    return values


def share(values: list[float], without: list[float]) -> list[float]:
    """Returns what one time of `TIMES` takes, in percent of a step without, round by round."""
    return [100 * (each - none) / TIMES / none for each, none in zip(values, without, strict=True)]


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    results = processes.results_of("benchmarks.bookkeeping", num_rounds)
    comparisons = []
    for experiment, values in results.items():
        comparisons.append(
            Comparison(
                title=f"bookkeeping in a step of {experiment}",
                unit="µs/step",
                quartiles=True,
                values={name: values[name] for name in (NONE, ALL)},
                baseline=NONE,
            )
        )
        targets = [Target(name=TOGETHER, at_most=1.0)] if experiment == "digits_cnn" else []
        comparisons.append(
            Comparison(
                title=f"one time of {TIMES}, {experiment}",
                unit="%",
                digits=2,
                quartiles=True,
                values={name: share(values[name], values[NONE]) for name in (STREAMS, MARK, TRACE, TOGETHER)},
                targets=targets,
            )
        )
    return comparisons


if __name__ == "__main__":
    processes.write_results(measure_all)
