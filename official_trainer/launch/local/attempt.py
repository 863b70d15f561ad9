"""One round of a job's processes: all started, watched, and ended together.

Owns: what one process's end means for the others, and single restarts. Does not own: whole restarts (`local.py`).

While all is well nobody is told anything. After a failure the others have a short time to find out by themselves,
because what they say then is better than what they say when they are killed; then SIGTERM; then SIGKILL.
"""

from __future__ import annotations

import dataclasses
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, ROLES, WORKER
from official_trainer.errors import ExitCode
from official_trainer.launch.local.children import PRELOAD, Started, Starter
from official_trainer.launch.local.output import Lines, Printer
from official_trainer.launch.local.signals import Signals
from official_trainer.launch.spec import ALL_ROLES, DATA_ROLES, DATA_WORKER, JobSpec, Member
from official_trainer.launch.verdict import End, Outcome, Restarts, judge, may_run_again

_READ_BYTES = 1 << 16
_SERVER_SECONDS = 5.0  # for processes that only served, and have nothing to save, once training has ended


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a job is started and watched.

    Attributes:
      supervise: whether what may be started again is.
      max_restarts: how often; None for as long as new checkpoints come.
      first_seconds: the wait before the first restart; each further one without a new checkpoint is twice as long.
      peers_seconds: how long the others have to end by themselves after the first failure.
      preload: what processes find imported, because they are forked; nothing starts each anew.
    """

    supervise: bool = False
    max_restarts: int | None = None
    first_seconds: float = 1.0
    peers_seconds: float = 30.0
    preload: Sequence[str] = PRELOAD

    def restarts(self) -> Restarts:
        """Returns a new count of restarts."""
        return Restarts(limit=self.max_restarts, first_seconds=self.first_seconds)


@dataclasses.dataclass(eq=False)
class _Child:
    """A process of a job, through single restarts."""

    member: Member
    lines: Lines
    restarts: Restarts
    pid: int | None = None
    output: int = -1
    was_told: bool = False
    was_killed: bool = False


class Attempt:
    """One round of processes."""

    def __init__(
        self,
        job: JobSpec,
        options: Options,
        printer: Printer,
        starter: Starter,
        signals: Signals,
        newest: Callable[[], int | None],
    ) -> None:
        self._job, self._options, self._printer = job, options, printer
        self._starter, self._signals, self._newest = starter, signals, newest
        self._running: dict[int, _Child] = {}
        self._ends: list[End] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._waiting: list[_Child] = []
        self._unsaid: list[str] = []
        self._is_ending = False
        self._is_trained = False

    def run(self, members: Sequence[Member], environ: Mapping[str, str]) -> Outcome:
        """Starts the processes, and returns how they ended once all of them have.

        Args:
          members: the processes.
          environ: the environment that they share.
        """
        self._environ = environ
        self._printer.expect(member.name for member in members)
        children = [_Child(member, self._printer.lines_of(member.name), self._options.restarts()) for member in members]
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._starter, selectors.EVENT_READ, self._read_starter)
            self._selector.register(self._signals, selectors.EVENT_READ, self._read_signals)
            try:
                for child in children:
                    self._start(child)
                while self._running or (self._waiting and not self._is_ending):
                    self._turn()
            finally:
                for child in children:
                    self._drain(child)
                    child.lines.end()
        return judge(self._ends, was_asked=self._signals.asked is not None)

    def _turn(self) -> None:
        """Waits for one thing to happen, and does what it calls for."""
        timeout = max(min(when for when, _ in self._due) - time.monotonic(), 0) if self._due else None
        for key, _ in self._selector.select(timeout):
            key.data()
        now = time.monotonic()
        due = [act for when, act in self._due if when <= now]
        self._due = [(when, act) for when, act in self._due if when > now]
        for act in due:
            act()

    def _start(self, child: _Child) -> None:
        environ = _environ_of(child.member, self._environ)
        child.pid = None
        number, child.output = self._starter.start(child.member.argv, environ)
        self._running[number] = child
        self._selector.register(child.output, selectors.EVENT_READ, lambda: self._read_output(child))

    def _read_output(self, child: _Child) -> bool:
        """Takes what a process has printed; returns whether there may be more at once."""
        if child.output < 0:
            return False
        try:
            data = os.read(child.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            child.lines.feed(data)
        else:
            self._close(child)
        return bool(data)

    def _drain(self, child: _Child) -> None:
        while self._read_output(child):
            pass
        self._close(child)

    def _close(self, child: _Child) -> None:
        if child.output >= 0:
            self._selector.unregister(child.output)
            os.close(child.output)
            child.output = -1

    # What happens.

    def _read_starter(self) -> None:
        for event in self._starter.read():
            if isinstance(event, Started):
                self._on_start(self._running[event.number], event.pid)
            else:
                child = self._running.pop(event.number)
                self._drain(child)
                self._on_end(child, event.code)

    def _on_start(self, child: _Child, pid: int) -> None:
        """Says which process is which, at once for all that are started together."""
        child.pid = pid
        self._unsaid.append(f"{child.member.name} (pid {pid})")
        if all(other.pid for other in self._running.values()):
            self._printer.say(f"started {', '.join(self._unsaid)}")
            self._unsaid.clear()

    def _on_end(self, child: _Child, code: int) -> None:
        member = child.member
        end = End(
            name=member.name,
            role=member.role,
            code=code,
            was_told=child.was_told,
            was_killed=child.was_killed,
            last=tuple(child.lines.last),
        )
        if self._is_restarted(child, end):
            return
        self._ends.append(end)
        if code and self._is_ending and not end.was_told:
            self._printer.say(f"{end.name} {end.how}")
        elif code and not self._is_ending and member.role == EVALUATOR:
            self._printer.say(f"{end.name} {end.how}; training goes on without it")
        elif not self._is_ending and member.role == DATA_WORKER and self._names(DATA_WORKER):
            self._printer.say(f"{end.name} {end.how}; training goes on with the other data workers")
        elif (code or member.role in DATA_ROLES) and not self._is_ending:
            self._fail(end)
        is_over = not self._names(CHIEF) if self._job.has_servers else not self._names(CHIEF, WORKER)
        if is_over and not self._is_trained:
            self._is_trained = True
            self._on_trained()

    def _is_restarted(self, child: _Child, end: End) -> bool:
        """Starts one process again if the others can go on meanwhile."""
        role = child.member.role
        is_single = role in (EVALUATOR, *DATA_ROLES) or (role == WORKER and self._job.has_servers)
        if end.was_told or self._is_ending or not (self._options.supervise and is_single and may_run_again(end.code)):
            return False
        seconds = child.restarts.next(self._newest())
        if isinstance(seconds, str):
            self._printer.say(f"{end.name} is not started again: {seconds}")
            return False
        self._printer.say(f"{end.name} {end.how}; the others go on; it starts again in {seconds:g} s")
        self._waiting.append(child)
        self._after(seconds, lambda: self._start_again(child))
        return True

    def _start_again(self, child: _Child) -> None:
        if child in self._waiting and not self._is_ending:
            self._waiting.remove(child)
            self._start(child)

    def _fail(self, end: End) -> None:
        """The first failure: the others find out by themselves, or are told."""
        self._is_ending = True
        # Who was stopped, by its own scheduler perhaps, saves together with the others, which takes longer.
        seconds = self._job.grace_seconds if end.code == ExitCode.PREEMPTED else self._options.peers_seconds
        others = self._names(CHIEF, WORKER, PS)
        self._printer.say(f"{end.name} {end.how}" + (f"; {_waiting(others, seconds)}" if others else ""))
        self._after(seconds, self._tell)
        self._after(seconds + self._job.grace_seconds, self._kill)

    def _on_trained(self) -> None:
        """Nobody is left who trains: ends those that only served, and on a failure the evaluator too."""
        served = (WORKER, PS, *DATA_ROLES)
        self._waiting = [child for child in self._waiting if child.member.role == EVALUATOR]
        self._tell(*(ALL_ROLES if self._is_ending else served))
        self._after(_SERVER_SECONDS, lambda: self._kill(*served))
        if not self._is_ending and self._names(EVALUATOR):
            self._printer.say(
                "training is done; the evaluator ends by itself once it has evaluated the last checkpoint"
            )

    def _read_signals(self) -> None:
        was_asked = self._signals.asked is not None
        self._signals.read()
        asked = self._signals.asked
        if self._signals.insisted:
            self._printer.say("a second signal: killing what is left")
            self._kill()
        elif asked is not None and not was_asked:
            self._is_ending = True
            self._printer.say(f"{asked}: {_waiting(self._names(*ROLES), self._job.grace_seconds)}")
            if self._job.has_servers and self._names(CHIEF):
                self._tell(CHIEF, EVALUATOR)  # the chief saves what the parameter servers hold
            else:
                self._tell(*ROLES)  # a data service is told when nobody reads from it any more
            self._after(self._job.grace_seconds, self._kill)

    # What is done about it.

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, act))

    def _names(self, *roles: str) -> list[str]:
        """Returns who runs, of these roles or of all."""
        return [child.member.name for _, child in self._of(roles or ALL_ROLES)]

    def _of(self, roles: Collection[str]) -> list[tuple[int, _Child]]:
        return [(number, child) for number, child in self._running.items() if child.member.role in roles]

    def _tell(self, *roles: str) -> None:
        """Sends SIGTERM, once: a second one would keep a process from saving."""
        for number, child in self._of(roles or ALL_ROLES):
            if not child.was_told:
                child.was_told = True
                self._starter.signal(number, signal.SIGTERM)

    def _kill(self, *roles: str) -> None:
        if names := self._names(*roles):
            self._printer.say(f"killing {', '.join(names)}")
        for number, child in self._of(roles or ALL_ROLES):
            child.was_told = child.was_killed = True
            self._starter.signal(number, signal.SIGKILL)


def _waiting(names: Sequence[str], seconds: float) -> str:
    return f"waiting up to {seconds:g} s for {', '.join(names)} to end"


def _environ_of(member: Member, environ: Mapping[str, str]) -> dict[str, str]:
    direct = {
        name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in ("no_proxy", "NO_PROXY")
    }  # gRPC would ask a proxy for loopback too
    return {**environ, **direct, "PYTHONUNBUFFERED": "1", **member.environ}
