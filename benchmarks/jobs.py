"""Whole jobs, from the start of a process to its exit: ours, Model Garden's driver, a script without a trainer.

All train the same model for the same steps on the same batches, write summaries, evaluate and save at the same
intervals and keep the best checkpoint; ours and the script also export a SavedModel. The first numbers are those of the
first 100 steps.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import tempfile
import time

from benchmarks import harness, processes
from benchmarks.harness import Promise

OURS, GARDEN, HAND = "python train.py", "Model Garden's driver", "a script written by hand"
KILLED = "launch local --supervise, after SIGKILL"
CNN, MEMORY = "digits_cnn, start to exit (s)", "digits_cnn, peak memory (MiB)"
MLP, FIRST = "digits_mlp, start to exit (s)", "digits_mlp, to the first numbers (s)"

ROUNDS = 7
PROMISES = (
    Promise(CNN, OURS, GARDEN, 0.8),
    Promise(MEMORY, OURS, GARDEN, 1.0),
    Promise(MLP, OURS, HAND, 0.8),
    Promise(MLP, OURS, GARDEN, 0.65),
    Promise(FIRST, OURS, HAND, 0.8),
    Promise(FIRST, OURS, GARDEN, 0.6),
    Promise(FIRST, KILLED, OURS, 0.25),
)

FIRST_STEPS = 100
LONG_STEPS = 100_000_000
LATE_LINES_SECONDS = 0.2  # after a kill, lines that were printed before it may still arrive
_PID = re.compile(r"started .*\(pid (\d+)\)")


def words_of(side: str, model_dir: str, experiment: str, mode: str, **steps: int | str) -> list[str]:
    """Returns the command of a side, with values for fields of `trainer`."""
    if side == HAND:
        return ["-m", "benchmarks.hand_written", f"--model_dir={model_dir}", *(f"--{k}={v}" for k, v in steps.items())]
    flags = [f"--experiment={experiment}", f"--mode={mode}", f"--model_dir={model_dir}"]
    if steps:
        flags.append("--params_override=" + ",".join(f"trainer.{name}={value}" for name, value in steps.items()))
    start = {OURS: ["train.py"], GARDEN: ["-m", "benchmarks.garden"]}
    supervised = ["-m", "official_trainer", "launch", "local", "--supervise", "--"]
    return [*start.get(side, supervised), *flags]


def usage(side: str, quick: bool) -> dict[str, float]:
    """Runs `digits_cnn` to its end."""
    steps = {"train_steps": 200} if quick else {}
    with tempfile.TemporaryDirectory() as model_dir:
        used = processes.run(words_of(side, model_dir, "digits_cnn", "train_and_eval", **steps))
    return {CNN: used.seconds, MEMORY: used.peak_bytes / 2**20}


def first_numbers(side: str, quick: bool) -> dict[str, float]:
    """Runs `digits_mlp` to its end."""
    steps = {"train_steps": 200} if quick else {}
    with (
        tempfile.TemporaryDirectory() as model_dir,
        processes.watched(words_of(side, model_dir, "digits_mlp", "train_and_eval", **steps)) as command,
    ):
        command.wait()
        end = time.perf_counter()
        first = command.wait_for(FIRST_STEPS)
    return {MLP: end - command.start, FIRST: first - command.start}


def after_kill(quick: bool) -> dict[str, float]:
    """Lets `digits_mlp` train for some seconds and kills it; returns what passes until it prints its next step."""
    steps = {"train_steps": LONG_STEPS, "checkpoint_interval": 5000, "summary_interval": 500}
    with (
        tempfile.TemporaryDirectory() as folder,
        processes.watched(words_of(KILLED, f"{folder}/run", "digits_mlp", "train", **steps)) as command,
    ):
        command.wait_for(FIRST_STEPS)
        time.sleep(1 if quick else 10)
        killed = time.perf_counter()
        kill(command)
        return {FIRST: command.wait_for(1, since=killed + LATE_LINES_SECONDS) - killed}


def kill(command: processes.Watched) -> None:
    """Kills the trainer: the process that the supervisor has started last, or else the command itself."""
    pids = [int(match[1]) for _, line in list(command.lines) if (match := _PID.search(line))]
    with contextlib.suppress(ProcessLookupError):
        os.kill((pids or [command.process.pid])[-1], signal.SIGKILL)


def measure(num_rounds: int, quick: bool) -> harness.Values:
    jobs = {side: functools.partial(usage, side, quick) for side in (OURS, GARDEN)}
    starts = {side: functools.partial(first_numbers, side, quick) for side in (OURS, HAND, GARDEN)}
    starts[KILLED] = functools.partial(after_kill, quick)
    if not quick:
        harness.in_turns({**starts, **jobs}, 1)  # reads all files once
    return {**harness.in_turns(jobs, num_rounds), **harness.in_turns(starts, num_rounds)}
