"""Waiting for the other processes of a run before anything is built with them.

Owns: the bounded wait, and saying who did not answer. Does not own: who they are (`cluster.py`), or talking to them.
Imports no TensorFlow.

TensorFlow waits for the processes of a cluster for ever, or fails with one address in the middle of a page. Here a
connection that is accepted says that the process is there and listens; no byte is sent.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping

from official_trainer.errors import ExitCode, UserError

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
_SAY_AFTER_SECONDS = 5.0


class RendezvousError(UserError, TimeoutError):
    """Processes of the run did not come in time; starting again helps once they do."""

    exit_code = ExitCode.RETRY


def wait_for(
    addresses: Mapping[str, str],
    timeout_seconds: float,
    *,
    setting: str = "runtime.rendezvous_timeout_seconds",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    connects: Callable[[str], bool] | None = None,
) -> None:
    """Returns when every process answers at its address.

    Args:
      addresses: `host:port` of each process, by what it is called: `worker 1`.
      timeout_seconds: longest wait.
      setting: what it is set by, for the message.
      clock: tells the time in seconds.
      sleep: waits.
      connects: whether somebody answers at an address; None opens a connection.

    Raises:
      RendezvousError: names the processes that did not answer.
    """
    connects = connects or answers
    deadline = clock() + timeout_seconds
    said_seconds = clock() + _SAY_AFTER_SECONDS
    missing = dict(addresses)
    while missing := {name: address for name, address in missing.items() if not connects(address)}:
        if clock() >= deadline:
            raise RendezvousError(
                f"{named(missing)} did not answer within {timeout_seconds:g} seconds ({setting}). Start "
                f"{'them' if len(missing) > 1 else 'it'}, or check that the address is right and can be reached from "
                "here, and start this process again."
            )
        if clock() >= said_seconds:
            _logger.warning("waiting for %s, for up to %g seconds", named(missing), timeout_seconds)
            said_seconds = deadline
        sleep(POLL_SECONDS)


def answers(address: str) -> bool:
    """Whether a process accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def named(processes: Mapping[str, str]) -> str:
    """Returns processes with their addresses: `worker 0 (10.0.0.2:2222), ps 0 (10.0.0.3:2222)`."""
    return ", ".join(f"{name} ({address})" for name, address in processes.items())
