"""How a job ended: which process failed first, the exit code of the job, and whether and when it is restarted.

Owns: this judgement, as pure functions; the wait before a restart, and giving up.
Does not own: starting and ending processes (`attempt.py`).
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS
from official_trainer.errors import START_AGAIN, ExitCode

_CRASH_LOOP = 5  # restarts in a row without a new checkpoint; then there is no further one
_LONGEST_SECONDS = 60.0  # between two of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How one process ended.

    Attributes:
      name: of the process.
      role: of the process.
      code: its exit code; negative: the signal that killed it.
      was_told: whether the launcher had sent it a signal to end.
      was_killed: whether the launcher killed it because it did not end in time.
      last: its last lines of output.
    """

    name: str
    role: str
    code: int
    was_told: bool = False
    was_killed: bool = False
    last: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """Whether the launcher did not cause it.

        Of a process that was told to end: a signal killed it that is neither the launcher's nor TensorFlow's abort.
        """
        is_killed = self.code < 0 and self.code not in (-signal.SIGTERM, -signal.SIGABRT)
        return not self.was_told or (is_killed and not self.was_killed)

    @property
    def how(self) -> str:
        """A description for messages."""
        if self.was_killed:
            return "did not end in time and was killed"
        if self.code < 0:
            memory = " (out of memory?)" if self.code == -signal.SIGKILL else ""
            return f"was killed by {signal.Signals(-self.code).name}{memory}"
        names = {code.value: code.name.lower().replace("_", "-") for code in ExitCode}
        return f"ended with exit code {self.code}" + (f" ({names[self.code]})" if self.code in names else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
      code: the exit code of the launcher.
      cause: the process whose exit code it is; None after success, or if `note` has the reason.
      was_asked: whether the launcher was asked to stop.
      note: a remark for the user.
    """

    code: int
    cause: End | None = None
    was_asked: bool = False
    note: str = ""


def exit_code(code: int) -> int:
    """Returns the launcher's exit code for that of a process; a process that a signal has killed may be restarted."""
    is_signal = code < 0 or (code > 128 and code != ExitCode.PREEMPTED)
    return int(ExitCode.RETRY) if is_signal else code


def may_run_again(code: int) -> bool:
    """Returns whether a restart may help."""
    return exit_code(code) in START_AGAIN


def judge(ends: Sequence[End], *, was_asked: bool) -> Outcome:
    """Returns how a job ended.

    Args:
      ends: of all processes, in the order in which they ended; the last one of a restarted process.
      was_asked: whether the launcher was asked to stop, and has passed that on.
    """
    trained = [end for end in ends if end.role != EVALUATOR]
    chief = [end for end in trained if end.role == CHIEF]
    if any(end.role == PS for end in trained) and (was_asked or any(end.code == 0 for end in chief)):
        trained = chief  # only the chief saves; the others serve until they are ended
    if was_asked:
        # A process that SIGTERM killed before it had a handler counts as stopped: it has lost nothing.
        lost = -signal.SIGTERM
        trained = [dataclasses.replace(end, code=ExitCode.PREEMPTED) if end.code == lost else end for end in trained]
    failed = [end for end in trained if end.code and (was_asked or end.is_own)]
    if not failed:
        failed = [end for end in ends if end.role == EVALUATOR and end.code and not end.was_told]
    if not failed:
        return Outcome(code=ExitCode.DONE, was_asked=was_asked)
    # An error of its own first; then possible consequences: TensorFlow aborts, or reports lost peers.
    consequences = {ExitCode.RETRY: 4, -signal.SIGABRT: 3, ExitCode.PREEMPTED: 2}
    cause = min(failed, key=lambda end: consequences.get(end.code, end.code < 0))  # of equals, which ended first
    return Outcome(code=exit_code(cause.code), cause=cause, was_asked=was_asked)


class Restarts:
    """Counts the restarts of one process or job.

    Attributes:
      count: the restarts so far.
    """

    def __init__(
        self,
        *,
        limit: int | None = None,
        first_seconds: float = 1.0,
        is_prompt: bool = False,
    ) -> None:
        """Takes the limits.

        Args:
          limit: the most restarts; None for as many as bring new checkpoints.
          first_seconds: the first wait; each further one without a new checkpoint is twice as long.
          is_prompt: whether there is no wait if there is a new checkpoint.
        """
        self.count = 0
        self._limit, self._first_seconds = limit, first_seconds
        self._is_prompt = is_prompt
        self._without_progress = 0
        self._newest: int | None = None

    def next(self, newest: int | None) -> float | str:
        """Returns the seconds until the restart, or why there is none.

        Args:
          newest: step of the newest checkpoint; None without one.
        """
        is_new = newest is not None and newest != self._newest
        self._without_progress = 0 if is_new else self._without_progress
        self._newest = newest
        if self._limit is not None and self.count >= self._limit:
            return f"--max_restarts={self._limit} is used up"
        if self.is_crash_loop:
            is_old = f"the newest checkpoint is still that of step {newest}"
            where = "there is no checkpoint" if newest is None else is_old
            return f"after {self._without_progress} restarts {where}: it crashes again and again"
        seconds = min(self._first_seconds * 2**self._without_progress, _LONGEST_SECONDS)
        seconds = 0.0 if is_new and self._is_prompt else seconds
        self.count += 1
        self._without_progress += 1
        return seconds

    @property
    def is_crash_loop(self) -> bool:
        """Whether too many restarts in a row have brought no new checkpoint."""
        return self._without_progress >= _CRASH_LOOP
