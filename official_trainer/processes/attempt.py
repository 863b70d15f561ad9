"""One attempt at a job: all processes are started, read, watched, and ended together.

Owns: their environment and output, what the end of one process means for the others, restarts of single processes.
Does not own: forking (`forked.py`), restarts of the whole job (`local.py`).

No process is signalled while all are well. After a failure the others have a short time to end by themselves, because
their own error messages are better than those of a killed process; then they get SIGTERM; then SIGKILL.
"""

from __future__ import annotations

import dataclasses
import os
import sched
from collections.abc import Callable, Mapping, Sequence

from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, ROLES, WORKER
from official_trainer.errors import ExitCode
from official_trainer.processes import forked
from official_trainer.processes.forked import ForkedProcess
from official_trainer.processes.job import JobProcesses, Member
from official_trainer.processes.output import Lines, Printer
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


class Process:
    """A process of a job, through its restarts.

    Attributes:
      member: its role and command.
      restarts: counts its restarts.
      run: what runs now; None before its start and after its end.
    """

    def __init__(self, member: Member, lines: Lines, restarts: Restarts) -> None:
        """Takes what it is, what takes its output, and what counts its restarts."""
        self.member, self.restarts = member, restarts
        self.run: ForkedProcess | None = None
        self._lines = lines
        self._was_told = self._was_killed = False

    def start(self, environ: Mapping[str, str]) -> int:
        """Starts it, or starts it again; returns its process id.

        Raises:
          ForkServerError: it cannot be forked.
        """
        # gRPC would use a proxy for loopback too.
        direct = {name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in ("no_proxy", "NO_PROXY")}
        self.run = ForkedProcess(self.member.argv, environ={**environ, **direct, **self.member.environ})
        return self.run.pid

    def poll(self) -> End | None:
        """Takes the output that has come; returns how it ended, once it has and all of its output is taken."""
        if self.run is None:
            return None
        code = self.run.exit_code()  # before the output is read, so that all of it is there after the end
        while data := self.run.read():
            self._lines.feed(data)
            if code is None:
                break
        if code is None:
            return None
        self.run.close()
        self.run = None
        last = tuple(self._lines.last)
        told, killed = self._was_told, self._was_killed
        return End(name=self.member.name, role=self.member.role, code=code, was_told=told, was_killed=killed, last=last)

    def terminate(self) -> None:
        """Sends SIGTERM, once: a second one would keep it from saving."""
        if self.run is not None and not self._was_told:
            self._was_told = True
            self.run.terminate()

    def kill(self) -> None:
        """Kills it, with what it has started."""
        if self.run is not None:
            self._was_told = self._was_killed = True
            self.run.kill()

    def end(self) -> None:
        """Kills it, and prints an incomplete last line."""
        self.kill()
        self._lines.end()


class Attempt:
    """One attempt at a job."""

    def __init__(self, job: JobProcesses, options: Options, printer: Printer, signals: Signals) -> None:
        """Takes the job, how it is watched, what prints, and the signals of the launcher, which end a wait."""
        self._job, self._options, self._printer, self._signals = job, options, printer, signals
        self._environ = dict(os.environ)  # what this process imports later may set more, and processes are to be alike
        self._processes: list[Process] = []
        self._ends: list[End] = []
        self._timers = sched.scheduler()
        self._waiting: list[Process] = []
        self._is_ending = False
        self._is_trained = False

    def run(self, members: Sequence[Member]) -> Outcome:
        """Starts the processes, and returns how they ended once all of them have; after an error none is left.

        Raises:
          ForkServerError: one cannot be forked.
        """
        printer = self._printer
        printer.expect(member.name for member in members)
        self._processes = [Process(m, printer.lines_of(m.name), self._options.restarts()) for m in members]
        try:
            self._start(*self._processes)
            while self._running() or (self._waiting and not self._is_ending):
                self._wait(self._timers.run(blocking=False))
                self._read_signals()
        finally:
            for process in self._processes:
                process.end()
        return judge(self._ends, was_asked=self._signals.asked is not None)

    def _start(self, *processes: Process) -> None:
        started = [f"{process.member.name} (pid {process.start(self._environ)})" for process in processes]
        self._printer.say(f"started {', '.join(started)}")

    def _wait(self, seconds: float | None) -> None:
        """Waits for output, an end or a signal, for so long at most, and handles what came."""
        runs = [process.run for process in self._processes if process.run is not None]
        outputs = [run.output.fileno() for run in runs if run.output is not None]
        forked.wait(runs, self._signals.fileno(), *outputs, seconds=seconds)
        for process in self._running():
            if (end := process.poll()) is not None:
                self._on_end(process, end)

    def _running(self, *roles: str) -> list[Process]:
        """Returns the processes that run, of these roles or of all."""
        return [p for p in self._processes if p.run is not None and p.member.role in (roles or ROLES)]

    def _names(self, *roles: str) -> list[str]:
        return [process.member.name for process in self._running(*roles)]

    def _on_end(self, process: Process, end: End) -> None:
        role, code = end.role, end.code
        if self._is_restarted(process, end):
            return
        self._ends.append(end)
        if end.was_told and not self._is_ending:
            pass  # it only served, and training is done
        elif code and self._is_ending and end.is_own:
            self._printer.say(f"{end.name} {end.how}")
        elif code and not self._is_ending and role == EVALUATOR:
            self._printer.say(f"{end.name} {end.how}; training goes on without it")
        elif code and not self._is_ending:
            self._fail(end)
        trains = (CHIEF,) if self._job.has_servers else (CHIEF, WORKER)
        if not self._running(*trains) and not self._is_trained:
            self._is_trained = True
            self._on_trained()

    def _is_restarted(self, process: Process, end: End) -> bool:
        """Starts one process again if the others can continue meanwhile."""
        role = end.role
        is_single = role == EVALUATOR or (role == WORKER and self._job.has_servers)
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
        others = self._names(CHIEF, WORKER, PS)
        self._printer.say(f"{end.name} {end.how}" + (f"; {_waiting(others, seconds)}" if others else ""))
        self._after(seconds, self._terminate)
        self._after(seconds + self._job.grace_seconds, self._kill)

    def _on_trained(self) -> None:
        """No process trains any more: ends those that only served, and on a failure the evaluator too."""
        served = (WORKER, PS)
        self._waiting = [process for process in self._waiting if process.member.role == EVALUATOR]
        self._terminate(*(ROLES if self._is_ending else served))
        self._after(_SERVER_SECONDS, lambda: self._kill(*served))
        if not self._is_ending and self._running(EVALUATOR):
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
            self._printer.say(f"{asked}: {_waiting(self._names(*ROLES), self._job.grace_seconds)}")
            if self._job.has_servers and self._running(CHIEF):
                self._terminate(CHIEF, EVALUATOR)  # the chief saves the values that the parameter servers hold
            else:
                self._terminate(*ROLES)
            self._after(self._job.grace_seconds, self._kill)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.enter(seconds, 0, act)

    def _terminate(self, *roles: str) -> None:
        for process in self._running(*roles):
            process.terminate()

    def _kill(self, *roles: str) -> None:
        if names := self._names(*roles):
            self._printer.say(f"killing {', '.join(names)}")
        for process in self._running(*roles):
            process.kill()


def _waiting(names: Sequence[str], seconds: float) -> str:
    return f"waiting up to {seconds:g} s for {', '.join(names)} to end"
