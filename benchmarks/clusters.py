"""Steps on every strategy, ours beside Model Garden's driver: one process, two workers, a coordinator with workers.

Owns: which processes a variant has, how they are started, and which of their time counts. Does not own: what each does
(`cluster_jobs.py`), the tables (`report.py`).

Both sides run as their users run them, driver and all, for the same steps on the same batches; what counts is the time
between summaries, each with the loops up to it, after some that trace and warm up; the median of these, because a
machine that others use too stands still at times. Checkpoints at the end do not count. Processes are real and talk over
loopback. Each worker of a cluster may use one core of its own, as if it were a machine, or the one that Model Garden's
coordinator keeps busy would have the idle one's core too; chief and parameter server take what they find. A process
alone has all cores.

Run as a process of its own (`python -m benchmarks.clusters FILE --rounds=N`), because its fork server imports
TensorFlow once for all.
"""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.processes.local import free_ports

ALONE: dict[str, int] = {}

ROLES: dict[str, dict[str, int]] = {
    "off": ALONE,
    "mirrored": ALONE,
    "mirrored over two logical CPUs": ALONE,
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
}
"""How many processes of each role a strategy has."""

TITLES = {
    "off": "off",
    "mirrored": "mirrored × 1",
    "mirrored over two logical CPUs": "mirrored × 2",
    "multi_worker_mirrored": "multi_worker_mirrored, 2 workers",
    "parameter_server": "parameter_server, 2 workers",
}

STRATEGIES: dict[str, Sequence[str]] = {
    "small": tuple(ROLES),
    "medium": tuple(ROLES),
    "accelerated": ("parameter_server",),
}
"""What each model is measured on. The last one is there because all of a coordinator's processes share the cores of one
machine, so keeping both workers busy takes time from each."""

SIDES = {"ours": "ours", "garden": "Model Garden"}

WINDOW_STEPS = {
    ("small", "off"): 1000,
    ("small", "mirrored"): 1000,
    ("small", "mirrored over two logical CPUs"): 500,
    ("small", "multi_worker_mirrored"): 200,
    ("small", "parameter_server"): 500,
    ("medium", "parameter_server"): 60,
    ("accelerated", "parameter_server"): 40,
}
"""Steps per loop, so that a loop takes some tenths of a second; those not listed have `MEDIUM_WINDOW_STEPS`."""

MEDIUM_WINDOW_STEPS = 20
WINDOWS_PER_SUMMARY = 2
WARM_SUMMARIES = 3  # TensorFlow traces, trackers open their files, and ours learns how long a worker's closure may be
TIMED_SUMMARIES = 5

TIMEOUT_SECONDS = 120

_context = multiprocessing.get_context("forkserver")


def name(strategy: str, side: str) -> str:
    """Returns a row of the table."""
    return f"{TITLES[strategy]}: {SIDES[side]}"


# One job.


def milliseconds_per_step(side: str, strategy: str, model: str) -> dict[str, float]:
    """Runs a job from start to end and returns what a step of the loops that count took."""
    window_steps = WINDOW_STEPS.get((model, strategy), MEDIUM_WINDOW_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "side": side,
            "strategy": strategy,
            "model": model,
            "window_steps": window_steps,
            "num_windows": (WARM_SUMMARIES + TIMED_SUMMARIES) * WINDOWS_PER_SUMMARY,
            "windows_per_summary": WINDOWS_PER_SUMMARY,
            "folder": folder,
        }
        _run(settings, ROLES[strategy], Path(folder))
        return {"milliseconds": _timed(Path(folder, "times.jsonl"), window_steps)}


def _timed(path: Path, window_steps: int) -> float:
    """Returns milliseconds per step between two of the last summaries, the median.

    Raises:
      RuntimeError: not all loops were timed, each once and in order.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    num_windows = (WARM_SUMMARIES + TIMED_SUMMARIES) * WINDOWS_PER_SUMMARY
    expected = [number * window_steps for number in range(1, num_windows + 1)]
    if [step for step, _ in rows] != expected:
        raise RuntimeError(f"loops ended at steps {[step for step, _ in rows]}, expected {expected}")
    times = [time for _, time in rows[WARM_SUMMARIES * WINDOWS_PER_SUMMARY - 1 :: WINDOWS_PER_SUMMARY]]
    seconds = statistics.median(end - start for start, end in itertools.pairwise(times))
    return seconds / (WINDOWS_PER_SUMMARY * window_steps) * 1e3


def _run(settings: Mapping[str, Any], roles: Mapping[str, int], folder: Path) -> None:
    """Starts the processes of a job, waits for those that end by themselves, and ends the others.

    Raises:
      RuntimeError: one of them failed, or none of them ends; shows the end of what each said.
    """
    children: dict[str, Any] = {}
    try:
        for place, tf_config, core in _places(roles):
            target = (settings | {"tf_config": tf_config, "core": core}, str(folder / f"{place}.txt"))
            children[place] = _context.Process(target=_main, args=target, daemon=True)
            children[place].start()
        _wait({place: child for place, child in children.items() if _ends(place, settings)}, folder)
    finally:
        for child in children.values():
            child.kill()
            child.join()


def _main(settings: dict[str, Any], output: str) -> None:
    from benchmarks import cluster_jobs  # the fork server has it; the process that measures stays without TensorFlow

    cluster_jobs.main(cluster_jobs.Assignment(**settings), output)


def _ends(place: str, settings: Mapping[str, Any]) -> bool:
    """Whether a process ends when training does; Model Garden's servers never do."""
    return settings["strategy"] != "parameter_server" or place.startswith("chief")


def _wait(children: Mapping[str, Any], folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while any(child.exitcode is None for child in children.values()):
        failed = any(child.exitcode for child in children.values())
        if failed or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    codes = {place: child.exitcode for place, child in children.items()}
    if set(codes.values()) != {0}:
        said = "\n".join(f"--- {path.stem}:\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.txt")))
        raise RuntimeError(f"exit codes {codes} (None: still running)\n{said}")


def _places(roles: Mapping[str, int]) -> Iterator[tuple[str, dict[str, Any] | None, int | None]]:
    """Yields each process: its name, its `TF_CONFIG`, and the core that it keeps to."""
    if not roles:
        yield "alone", None, None
        return
    ports = iter(free_ports(sum(roles.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in roles.items()}
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            core = next(cores) if role == "worker" else None
            yield f"{role}-{index}", {"cluster": cluster, "task": {"type": role, "index": index}}, core


# All of them.


def measure_all(num_rounds: int) -> dict[str, dict[str, Sequence[float]]]:
    """Returns milliseconds per step by model and variant, round by round."""
    _context.set_forkserver_preload(["benchmarks.cluster_jobs"])
    variants = {
        f"{model}/{name(strategy, side)}": functools.partial(milliseconds_per_step, side, strategy, model)
        for model, strategies in STRATEGIES.items()
        for strategy in strategies
        for side in SIDES
    }
    results = rounds.interleave(variants, num_rounds)["milliseconds"]
    return {
        model: {key.partition("/")[2]: values for key, values in results.items() if key.startswith(f"{model}/")}
        for model in STRATEGIES
    }


def targets(model: str) -> list[Target]:
    """Never slower than Model Garden on the same strategy; both workers of a coordinator at work, not one.

    A twentieth is what two runs of the same side differ by.
    """
    if model == "accelerated":
        ours, theirs = (name("parameter_server", side) for side in SIDES)
        return [Target(name=ours, against=theirs, at_most=1 / 1.6)]
    same = [Target(name=name(strategy, "ours"), against=name(strategy, "garden"), at_most=1.05) for strategy in ROLES]
    return [*same, Target(name=name("mirrored", "ours"), against=name("off", "ours"), at_most=1.05)]


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    results = processes.results_of("benchmarks.clusters", num_rounds)
    return [
        Comparison(
            title=f"a step of the {model} model",
            unit="ms/step",
            digits=3 if model == "small" else 1,
            quartiles=True,
            values=values,
            baseline=name(STRATEGIES[model][0], "ours"),
            targets=targets(model),
        )
        for model, values in results.items()
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
