"""Waiting for the other processes of a run before anything is built with them.

Owns: the bounded wait, and saying who did not answer. Does not own: who they are (`cluster.py`), or talking to them.
Imports no TensorFlow.

TensorFlow waits for the processes of a cluster for ever, or fails with one address in the middle of a page. Here a
connection that is accepted says that the process is there and listens; no byte is sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from official_trainer.distributed.peers import PeerLostError

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
_CONNECTED_SECONDS = 120.0  # TensorFlow takes less than one, on a machine that is not overloaded
_SAY_AFTER_SECONDS = 5.0


class RendezvousError(PeerLostError, TimeoutError):
    """Processes of the run did not come in time; starting again helps once they do."""


def wait_for(
    addresses: Mapping[str, str],
    timeout_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    connects: Callable[[str], bool] | None = None,
) -> None:
    """Returns when every process answers at its address.

    Args:
      addresses: `host:port` of each process, by what it is called: `worker 1`.
      timeout_seconds: longest wait.
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
                f"{named(missing)} did not answer within {timeout_seconds:g} seconds "
                f"(runtime.rendezvous_timeout_seconds). Start "
                f"{'them' if len(missing) > 1 else 'it'}, or check that the address is right and can be reached from "
                "here, and start this process again."
            )
        if clock() >= said_seconds:
            _logger.warning("waiting for %s, for up to %g seconds", named(missing), timeout_seconds)
            said_seconds = deadline
        sleep(POLL_SECONDS)


def meet(name: str, addresses: Mapping[str, str], timeout_seconds: float) -> None:
    """Returns when all of several equal processes have seen each other; listens at the own address meanwhile.

    Args:
      name: which of them this process is.
      addresses: `host:port` of each process, this one too.
      timeout_seconds: longest wait, `runtime.rendezvous_timeout_seconds`.

    Raises:
      RendezvousError: names the processes that did not come, or says that the own port is in use.
    """
    others = {other: address for other, address in addresses.items() if other != name}
    port = int(addresses[name].rpartition(":")[2])
    try:
        server = socket.create_server(("", port), backlog=len(addresses) * 4)  # on all interfaces, as TensorFlow's
    except OSError as error:
        raise RendezvousError(
            f"{name} cannot listen at {addresses[name]}: {os.strerror(error.errno or 0)}. Another process has that "
            f"port, perhaps {name} of this run, started before; end it, or give another address."
        ) from error
    with server:
        wait_for(others, timeout_seconds)


@contextlib.contextmanager
def bounded(seconds: float, what: str) -> Iterator[None]:
    """Kills this process, after a message on stderr, if the block takes longer than this, or two minutes.

    For calls of TensorFlow that connect to processes which are there, but may die now: it waits for them in C++, and no
    thread of Python runs meanwhile, nor a handler of a signal. So another process keeps the time.
    """
    seconds = min(seconds, _CONNECTED_SECONDS)
    what = f"{what} took longer than {seconds:g} seconds: one of them must have died meanwhile"
    message = f"{what}. This process is killed; started again, the run continues"
    argv = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(seconds), message]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True):  # its stdin is closed at the end
        yield


_GUARD = """
import os, select, signal, sys
if not select.select([0], [], [], float(sys.argv[2]))[0]:
    os.write(2, sys.argv[3].encode() + b"\\n")
    os.kill(int(sys.argv[1]), signal.SIGKILL)
"""
"""Waits for its stdin to be closed, which happens too when the process that it guards dies."""


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
