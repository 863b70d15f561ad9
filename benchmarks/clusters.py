"""Steps on clusters, ours beside Model Garden's driver: two workers that are replicas, a coordinator with two workers.

Both sides run their whole driver for the same steps on the same batches, in real processes that talk over loopback. A
worker keeps to a core of its own, as if it were a machine: or one that is kept busy would have the idle one's core too.
What counts is the time between the steps that the chief prints, after some that trace and warm up.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import statistics
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks import harness, jobs, processes
from benchmarks.harness import Promise

OURS, GARDEN = jobs.OURS, jobs.GARDEN
ROLES = {
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
}
"""How many processes of each role a strategy has."""

WINDOW_STEPS = {"digits_mlp": 500, "digits_cnn": 100}
WARM_WINDOWS, TIMED_WINDOWS = 4, 8

CASES = {
    f"{experiment}, {strategy} (ms/step)": (experiment, strategy) for experiment in WINDOW_STEPS for strategy in ROLES
}
ROUNDS = 5
PROMISES = tuple(Promise(name, OURS, GARDEN, 1.05) for name in CASES)


def milliseconds(name: str, side: str, experiment: str, strategy: str, quick: bool) -> dict[str, float]:
    """Runs a job and returns what a step took between two lines of its chief, the median."""
    window = 10 if quick else WINDOW_STEPS[experiment]
    steps = {
        "train_steps": window * (WARM_WINDOWS + TIMED_WINDOWS),
        "steps_per_loop": window,
        "summary_interval": window,
        "checkpoint_interval": window * (WARM_WINDOWS + TIMED_WINDOWS),
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        words = jobs.words_of(side, f"{folder}/run", experiment, "train", **steps)
        words[-1] += f",runtime.distribution_strategy={strategy}"
        commands = [stack.enter_context(started(words, place)) for place in places(ROLES[strategy])]
        commands[0].wait_for(steps["train_steps"])
        ends = [
            commands[0].wait_for(window * number) for number in range(WARM_WINDOWS, WARM_WINDOWS + TIMED_WINDOWS + 1)
        ]
    return {name: statistics.median(end - start for start, end in itertools.pairwise(ends)) / window * 1e3}


def places(roles: dict[str, int]) -> list[dict[str, Any]]:
    """Returns the `TF_CONFIG` of each process; the one that prints is the first."""
    ports = iter(free_ports(sum(roles.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in roles.items()}
    tasks = [{"type": role, "index": index} for role, count in roles.items() for index in range(count)]
    return [{"cluster": cluster, "task": task} for task in tasks]


@contextlib.contextmanager
def started(words: list[str], place: dict[str, Any]) -> Iterator[processes.Watched]:
    """Starts a process of a cluster, until the end of the block."""
    environ = {"TF_CONFIG": json.dumps(place)}
    is_worker = place["task"]["type"] == "worker"
    if is_worker:  # with one thread, which a core would mean, a worker of a coordinator hangs
        environ["TF_NUM_INTEROP_THREADS"] = "2"
    with processes.watched(words, environ) as command:
        if is_worker:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(command.process.pid, {cores[place["task"]["index"] % len(cores)]})
        yield command


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def measure(num_rounds: int, quick: bool) -> harness.Values:
    values: harness.Values = {}
    for name, (experiment, strategy) in CASES.items():
        variants = {
            side: functools.partial(milliseconds, name, side, experiment, strategy, quick) for side in (OURS, GARDEN)
        }
        values |= harness.in_turns(variants, num_rounds)
    return values
