"""What a training step pays for exact resume: random streams, the clock of its waits, the numbers of the loss.

Owns: the same trainer with each of these left out. Does not own: the tables (`report.py`).

Each takes some microseconds, far less than the noise of a step. So all variants take turns in short windows, many times
a round, and a round counts the tenth of its windows that were disturbed least. Where the data stands costs a step
nothing: it is the step.

Run as a process of its own (`python -m benchmarks.bookkeeping FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.lazy import keras

WINDOW_STEPS = {"digits_cnn": 20, "digits_mlp": 200}
WINDOWS = 40  # of each variant in a round

NONE = "none of it"
STREAMS = "random streams of the Dropout layers alone"
MARK = "mark of waiting for data alone"
LOSSES = "mean, last value and average of the loss alone"
ALL = "all of it"

VARIANTS: dict[str, tuple[int, int, int]] = {
    NONE: (0, 0, 0),
    STREAMS: (1, 0, 0),
    MARK: (0, 1, 0),
    LOSSES: (0, 0, 1),
    ALL: (1, 1, 1),
}
"""How often a step does each."""


def build_trainer(experiment: str, streams: int, mark: int, losses: int) -> Any:
    """Returns the trainer of an experiment whose steps do each piece of bookkeeping so many times."""
    from official_trainer.distributed import strategy
    from official_trainer.engine.trainer import Trainer
    from official_trainer.tasks import random_streams, registry

    config = registry.get_config(experiment, processes.ROOT)
    random_streams.enable(config.runtime.seed)
    with strategy.build_strategy(config.runtime).scope():
        task = registry.get_task_cls(config.task)(config.task)
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        trainer = Trainer(config, task, task.build_model(), optimizer, evaluate=False)
    context, numbers = trainer.context, trainer.windows.measures.numbers
    context.streams.begin_step = _repeated(context.streams.begin_step, streams)
    numbers.add_loss = _repeated(numbers.add_loss, losses)
    context.clock.waiting = _nested(context.clock.waiting, mark)
    return trainer


def _repeated(function: Callable[..., None], times: int) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        for _ in range(times):
            function(*arguments)

    return call


def _nested(waiting: Callable[[], Any], times: int) -> Callable[[], Any]:
    @contextlib.contextmanager
    def call() -> Iterator[Callable[[Any], Any]]:
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(waiting()) for _ in range(times)]
            yield lambda inputs: [end(inputs) for end in ends]

    return call


# Measuring.


def microseconds_per_step(trainer: Any, num_steps: int) -> dict[str, float]:
    """Trains a window and returns what its steps took."""
    start = time.perf_counter()
    trainer.run_steps(num_steps)
    return {"microseconds": (time.perf_counter() - start) / num_steps * 1e6}


def measure_all(num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns microseconds per step by experiment and variant, round by round.

    All variants are built anew for each round: two graphs of the very same step differ in speed, see `steps.py`.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for experiment in WINDOW_STEPS:
        results = [_measure(experiment) for _ in range(num_rounds)]
        values[experiment] = {name: [each[name] for each in results] for name in VARIANTS}
    return values


def _measure(experiment: str) -> dict[str, float]:
    keras.backend.clear_session()
    gc.collect()  # pipelines of the last round
    window = WINDOW_STEPS[experiment]
    measures = {
        name: functools.partial(microseconds_per_step, build_trainer(experiment, *times), window)
        for name, times in VARIANTS.items()
    }
    rounds.interleave(measures, 1)
    results = rounds.interleave(measures, WINDOWS)["microseconds"]
    return {name: statistics.quantiles(values, n=10)[0] for name, values in results.items()}


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    results = processes.results_of("benchmarks.bookkeeping", num_rounds)
    return [
        Comparison(
            title=f"bookkeeping in a step of {experiment}",
            unit="µs/step",
            digits=1,
            ratio_digits=3,
            quartiles=True,
            values=values,
            baseline=NONE,
            targets=[Target(name=ALL, against=NONE, at_most=1.01)] if experiment == "digits_cnn" else [],
        )
        for experiment, values in results.items()
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
