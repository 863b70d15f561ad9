"""Commands, each a process: how long it takes, how much memory it needs, and when it printed which step."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""Everything is compared on the CPU, without TensorFlow's banner."""

GRACE_SECONDS, PATIENCE_SECONDS = 20.0, 120.0

_STEP = re.compile(r"(?:^|[|\]] )step\W+(\d+)")
"""`step 100/2000` of ours, after the name of a worker or not; `train | step: 100` of Model Garden and the script."""


def environment(**changes: str) -> dict[str, str]:
    """Returns this process's environment for a child, which keeps bytecode and prints each line at once."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **ENVIRONMENT, "PYTHONUNBUFFERED": "1", **changes}


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process took from its start to its exit."""

    seconds: float
    peak_bytes: int


def run(words: Sequence[str], *, exit_code: int = 0) -> Usage:
    """Runs a command of this Python in the repository's root.

    Linux counts the memory that this process has when it starts the child towards the child's peak. So a part that
    measures memory does not import TensorFlow.

    Raises:
      RuntimeError: the command ended with another exit code; shows the end of what it said.
    """
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment(), stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != exit_code:
            output.seek(0)
            raise RuntimeError(f"{' '.join(words)} ended with {child.returncode}:\n{output.read()[-4000:]}")
    return Usage(seconds, usage.ru_maxrss * 1024)


class Watched:
    """A running command whose lines are read as it prints them.

    Attributes:
      process: the command.
      start: when it was started, on the clock of `time.perf_counter`.
      lines: what it has printed, each line with its time.
    """

    def __init__(self, words: Sequence[str], **environ: str) -> None:
        self.start = time.perf_counter()
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(**environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((time.perf_counter(), line))

    def steps(self) -> list[tuple[float, int]]:
        """Returns which steps it has printed, each with its time, in the order of the lines."""
        matches = [(seconds, _STEP.search(line)) for seconds, line in list(self.lines)]
        return [(seconds, int(match[1])) for seconds, match in matches if match]

    def seconds_of(self, step: int, since: float = 0.0) -> float | None:
        """Returns when it first printed this step or a later one, after a moment; None if it has not."""
        return next((seconds for seconds, number in self.steps() if seconds > since and number >= step), None)

    def wait_for(self, step: int, since: float = 0.0) -> float:
        """Waits until it has printed this step or a later one, after a moment; returns when it did.

        Raises:
          RuntimeError: it ended before, or has printed none within two minutes; shows the end of what it said.
        """
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while time.perf_counter() < deadline:
            is_over = self.process.poll() is not None
            if (seconds := self.seconds_of(step, since)) is not None:
                return seconds
            if is_over:
                break
            time.sleep(0.02)
        raise RuntimeError(f"{self.process.args} did not print step {step}:\n{self.end_of_output()}")

    def wait(self) -> None:
        """Waits for the end of the command and of what it prints.

        Raises:
          RuntimeError: it ended with another exit code than 0; shows the end of what it said.
        """
        self.process.wait()
        self._reader.join()
        if self.process.returncode:
            raise RuntimeError(f"{self.process.args} ended with {self.process.returncode}:\n{self.end_of_output()}")

    def end_of_output(self) -> str:
        return "".join(line for _, line in self.lines)[-4000:]

    def stop(self) -> None:
        """Ends it, as a scheduler does: with SIGTERM, and after a grace with SIGKILL."""
        self.process.terminate()
        try:
            self.process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
        self._reader.join()


@contextlib.contextmanager
def watched(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[Watched]:
    """Starts a command, and ends it at the end of the block if it still runs."""
    command = Watched(words, **(environ or {}))
    try:
        yield command
    finally:
        command.stop()
