"""A job on this machine: its processes on loopback, watched until the last one has ended.

Owns: addresses, and restarts of the whole job.
Does not own: one attempt (`attempt.py`), how the end is judged and when it is restarted (`verdict.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket

from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.processes.attempt import Attempt, Options
from official_trainer.processes.forked import ForkServerError
from official_trainer.processes.job import JobProcesses, Member, members
from official_trainer.processes.output import Printer
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import Outcome

HOST = "127.0.0.1"
_FIRST_PORT, _LAST_PORT = 12000, 32000
"""Below the ports that the system gives to clients: a client could take one before the process does."""


def launch(job: JobProcesses, options: Options, printer: Printer) -> Outcome:
    """Runs a job to its end, with restarts if `options` has them. No process is left afterwards.

    Args:
      job: the job.
      options: how it is started and watched.
      printer: prints the output.
    """
    restarts = options.restarts(is_prompt=True)
    with Signals() as signals:
        while True:
            try:
                outcome = Attempt(job, options, printer, signals).run(members_here(job))
            except ForkServerError as error:
                outcome = Outcome(code=error.exit_code, note=str(error), was_asked=signals.asked is not None)
            if not options.supervise or outcome.was_asked or outcome.code not in START_AGAIN:
                return outcome
            step = options.newest_step()
            seconds = restarts.next(step)
            if isinstance(seconds, str):
                code = ExitCode.FAILED if restarts.is_crash_loop else outcome.code
                return dataclasses.replace(outcome, code=code, note=f"not started again: {seconds}")
            why = f"{outcome.note}: " if outcome.note else ""
            from_step = "from the start" if step is None else f"from step {step}"
            when = f"in {seconds:g} s" if seconds else "at once"
            printer.say(f"{why}restart {restarts.count}, {from_step}, {when}")
            if signals.wait(seconds):
                return dataclasses.replace(outcome, was_asked=True, note=f"not started again: {signals.asked}")


def members_here(job: JobProcesses) -> tuple[Member, ...]:
    """Returns the processes of a job, each at a free port of this machine."""
    ports = iter(free_ports(sum(role.count for role in job.in_cluster)))
    addresses = {role.name: tuple(f"{HOST}:{next(ports)}" for _ in range(role.count)) for role in job.in_cluster}
    return members(job, addresses)


def free_ports(count: int) -> list[int]:
    """Returns unused ports of loopback."""
    chance = random.SystemRandom()  # launchers with the same seed would try the same ports at the same time
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = chance.randint(_FIRST_PORT, _LAST_PORT)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                ports.append(port)
        return ports
