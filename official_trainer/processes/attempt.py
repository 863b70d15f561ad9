"""One attempt at a job: all processes are started, watched, and ended together.

Owns: what the end of one process means for the others, and restarts of single processes.
Does not own: restarts of the whole job (`local.py`), the processes themselves (`children.py`).

No process is signalled while all are well. After a failure the others have a short time to end by themselves, because
their own error messages are better than those of a killed process; then they get SIGTERM; then SIGKILL.
"""

from __future__ import annotations

import dataclasses
import sched
from collections.abc import Callable, Sequence

from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, ROLES, WORKER
from official_trainer.errors import ExitCode
from official_trainer.processes.children import Process, Processes
from official_trainer.processes.job import ALL_ROLES, DATA_ROLES, DATA_WORKER, JobProcesses, Member
from official_trainer.processes.output import Printer
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import End, Outcome, Restarts, judge, may_run_again

_SERVER_SECONDS = 5.0  # for processes that only served, and have nothing to save, once training has ended


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a job is started and watched.

    Attributes:
      newest_step: returns the step of the run's newest complete checkpoint; None without one.
      supervise: whether processes that may run again are restarted.
      max_restarts: the most restarts; None for as many as bring new checkpoints.
      first_seconds: the wait before the first restart; each further one without a new checkpoint is twice as long. If
        there is a new one, the whole job is restarted at once.
      peers_seconds: how long the others have to end by themselves after the first failure.
    """

    newest_step: Callable[[], int | None]
    supervise: bool = False
    max_restarts: int | None = None
    first_seconds: float = 1.0
    peers_seconds: float = 30.0

    def restarts(self, *, is_prompt: bool = False) -> Restarts:
        """Returns a new count of restarts; `is_prompt`: whether there is no wait after a new checkpoint."""
        return Restarts(limit=self.max_restarts, first_seconds=self.first_seconds, is_prompt=is_prompt)


class Attempt:
    """One attempt at a job."""

    def __init__(
        self, job: JobProcesses, options: Options, printer: Printer, processes: Processes, signals: Signals
    ) -> None:
        self._job, self._options, self._printer = job, options, printer
        self._processes, self._signals = processes, signals
        self._ends: list[End] = []
        self._timers = sched.scheduler()
        self._waiting: list[Process] = []
        self._is_ending = False
        self._is_trained = False

    def run(self, members: Sequence[Member]) -> Outcome:
        """Starts the processes, and returns how they ended once all of them have."""
        self._printer.expect(member.name for member in members)
        self._start(
            *(Process(member, self._printer.lines_of(member.name), self._options.restarts()) for member in members)
        )
        while self._processes.running or (self._waiting and not self._is_ending):
            for process, code in self._processes.wait(self._timers.run(blocking=False)):
                self._on_end(process, code)
            self._read_signals()
        return judge(self._ends, was_asked=self._signals.asked is not None)

    def _start(self, *processes: Process) -> None:
        started = [f"{process.member.name} (pid {self._processes.start(process)})" for process in processes]
        self._printer.say(f"started {', '.join(started)}")

    def _on_end(self, process: Process, code: int) -> None:
        member = process.member
        end = End(
            name=member.name,
            role=member.role,
            code=code,
            was_told=process.was_told,
            was_killed=process.was_killed,
            last=tuple(process.lines.last),
        )
        if self._is_restarted(process, end):
            return
        self._ends.append(end)
        names = self._processes.names
        if end.was_told and not self._is_ending:
            pass  # it only served, and training is done
        elif code and self._is_ending and end.is_own:
            self._printer.say(f"{end.name} {end.how}")
        elif code and not self._is_ending and member.role == EVALUATOR:
            self._printer.say(f"{end.name} {end.how}; training goes on without it")
        elif not self._is_ending and member.role == DATA_WORKER and names(DATA_WORKER):
            self._printer.say(f"{end.name} {end.how}; training goes on with the other data workers")
        elif (code or member.role in DATA_ROLES) and not self._is_ending:
            self._fail(end)
        is_over = not names(CHIEF) if self._job.has_servers else not names(CHIEF, WORKER)
        if is_over and not self._is_trained:
            self._is_trained = True
            self._on_trained()

    def _is_restarted(self, process: Process, end: End) -> bool:
        """Starts one process again if the others can continue meanwhile."""
        role = end.role
        is_single = role in (EVALUATOR, *DATA_ROLES) or (role == WORKER and self._job.has_servers)
        if end.was_told or self._is_ending or not (self._options.supervise and is_single and may_run_again(end.code)):
            return False
        seconds = process.restarts.next(self._options.newest_step())
        if isinstance(seconds, str):
            self._printer.say(f"{end.name} is not started again: {seconds}")
            return False
        self._printer.say(f"{end.name} {end.how}; the others go on; it starts again in {seconds:g} s")
        self._waiting.append(process)

        def start_again() -> None:
            if process in self._waiting and not self._is_ending:
                self._waiting.remove(process)
                self._start(process)

        self._after(seconds, start_again)
        return True

    def _fail(self, end: End) -> None:
        """Handles the first failure: the others end by themselves, or are ended."""
        self._is_ending = True
        # A process that was stopped, by its own scheduler perhaps, saves with the others, which takes longer.
        seconds = self._job.grace_seconds if end.code == ExitCode.PREEMPTED else self._options.peers_seconds
        others = self._processes.names(CHIEF, WORKER, PS)
        self._printer.say(f"{end.name} {end.how}" + (f"; {_waiting(others, seconds)}" if others else ""))
        self._after(seconds, self._processes.terminate)
        self._after(seconds + self._job.grace_seconds, self._kill)

    def _on_trained(self) -> None:
        """No process trains any more: ends those that only served, and on a failure the evaluator too."""
        served = (WORKER, PS, *DATA_ROLES)
        self._waiting = [process for process in self._waiting if process.member.role == EVALUATOR]
        self._processes.terminate(*(ALL_ROLES if self._is_ending else served))
        self._after(_SERVER_SECONDS, lambda: self._kill(*served))
        if not self._is_ending and self._processes.names(EVALUATOR):
            self._printer.say(
                "training is done; the evaluator ends by itself once it has evaluated the last checkpoint"
            )

    def _read_signals(self) -> None:
        was_asked, was_insisted = self._signals.asked is not None, self._signals.insisted
        self._signals.read()
        asked = self._signals.asked
        if self._signals.insisted and not was_insisted:
            self._printer.say("a second signal: killing the processes that still run")
            self._kill()
        elif asked is not None and not was_asked:
            self._is_ending = True
            processes = self._processes
            self._printer.say(f"{asked}: {_waiting(processes.names(*ROLES), self._job.grace_seconds)}")
            if self._job.has_servers and processes.names(CHIEF):
                processes.terminate(CHIEF, EVALUATOR)  # the chief saves the values that the parameter servers hold
            else:
                processes.terminate(*ROLES)  # a data service is ended once no process reads from it
            self._after(self._job.grace_seconds, self._kill)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.enter(seconds, 0, act)

    def _kill(self, *roles: str) -> None:
        if names := self._processes.names(*roles):
            self._printer.say(f"killing {', '.join(names)}")
        self._processes.kill(*roles)


def _waiting(names: Sequence[str], seconds: float) -> str:
    return f"waiting up to {seconds:g} s for {', '.join(names)} to end"
