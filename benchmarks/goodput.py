"""What SIGKILL once a minute costs a job: ours under its supervisor, the others started again at once by a loop.

The job is `digits_mlp` with a checkpoint every 5,000 steps, some seconds apart. Each side is also left
alone for as long. A kill is in the middle of its minute, so that all that it costs is measured.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time

from benchmarks import harness, jobs, processes
from benchmarks.harness import Promise

OURS, HAND, GARDEN = "launch local --supervise", f"{jobs.HAND}, in a loop", f"{jobs.GARDEN}, in a loop"
SIDES = {OURS: jobs.KILLED, HAND: jobs.HAND, GARDEN: jobs.GARDEN}
KILLED, ALONE = f"{OURS}, a kill a minute", "the same job left alone"
STEP, LOST = "digits_mlp (µs/step)", "share of the time lost by a kill a minute (%)"

NUM_KILLS, EVERY_SECONDS = 3, 60.0

ROUNDS = 1
PROMISES = (
    Promise(STEP, KILLED, ALONE, 1.05),
    Promise(LOST, OURS, HAND, 0.5),
    Promise(LOST, OURS, GARDEN, 0.5),
)


def microseconds(side: str, is_killed: bool, quick: bool) -> float:
    """Runs a job for a while; returns what a step took whose result was kept.

    Raises:
      RuntimeError: there is no such step.
    """
    num_kills, every_seconds = (1, 20.0) if quick else (NUM_KILLS, EVERY_SECONDS)
    steps = {"train_steps": jobs.LONG_STEPS, "checkpoint_interval": 1000 if quick else 5000, "summary_interval": 500}
    steps |= {"validation_interval": jobs.LONG_STEPS} if side == HAND else {"steps_per_loop": 500}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        words = jobs.words_of(SIDES[side], f"{folder}/run", "digits_mlp", "train", **steps)
        command = stack.enter_context(processes.watched(words))
        begin = command.wait_for(1)
        first = max(step for seconds, step in command.steps() if seconds <= begin)
        for number in range(num_kills):
            _sleep_until(begin + (number + 0.5) * every_seconds)
            if is_killed:
                killed = time.perf_counter()
                jobs.kill(command)
                if side != OURS:
                    command.process.wait()
                    command = stack.enter_context(processes.watched(words))
                command.wait_for(1, since=killed + jobs.LATE_LINES_SECONDS)
        _sleep_until(begin + num_kills * every_seconds)
        end, last = command.steps()[-1]
    if last <= first:
        raise RuntimeError(f"{side}: no step after {first} was kept:\n{command.end_of_output()}")
    return (end - begin) / (last - first) * 1e6


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


def alone_and_killed(side: str, quick: bool) -> dict[str, float]:
    alone, killed = (microseconds(side, is_killed, quick) for is_killed in (False, True))
    return {ALONE: alone, KILLED: killed, LOST: 100 * (1 - alone / killed)}


def measure(num_rounds: int, quick: bool) -> harness.Values:
    values = harness.in_turns({side: functools.partial(alone_and_killed, side, quick) for side in SIDES}, num_rounds)
    return {STEP: {name: values[name][OURS] for name in (KILLED, ALONE)}, LOST: values[LOST]}
