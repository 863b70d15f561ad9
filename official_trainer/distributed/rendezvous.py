"""Waiting for the other processes of a run before anything is built with them.

Owns: the bounded wait, and the error that names the processes that did not answer. Does not own: the list of processes
(`cluster.py`), or messages between them. Imports no TensorFlow.

TensorFlow waits for the processes of a cluster without a limit, or fails with a page of text that contains one address.
Here a connection that is accepted means that the process listens; no byte is sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from official_trainer.distributed.peers import PeerLostError, answers, named

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
_CONNECTED_SECONDS = 120.0  # TensorFlow takes less than one second on a machine that is not overloaded
_WARN_AFTER_SECONDS = 5.0


class RendezvousError(PeerLostError, TimeoutError):
    """Processes of the run did not come in time; starting again helps once they do."""


def wait_for(addresses: Mapping[str, str], timeout_seconds: float) -> None:
    """Returns when every process answers at its address.

    Args:
      addresses: `host:port` of each process, by what it is called: `worker 1`.
      timeout_seconds: longest wait.

    Raises:
      RendezvousError: names the processes that did not answer.
    """
    deadline = time.monotonic() + timeout_seconds
    warning_seconds = time.monotonic() + _WARN_AFTER_SECONDS
    missing = dict(addresses)
    while missing := {name: address for name, address in missing.items() if not answers(address)}:
        if time.monotonic() >= deadline:
            raise RendezvousError(
                f"{named(missing)} did not answer within {timeout_seconds:g} seconds "
                f"(runtime.rendezvous_timeout_seconds). Start "
                f"{'them' if len(missing) > 1 else 'it'}, or check that the address is right and can be reached from "
                "here, and start this process again."
            )
        if time.monotonic() >= warning_seconds:
            _logger.warning("waiting for %s, for up to %g seconds", named(missing), timeout_seconds)
            warning_seconds = deadline
        time.sleep(POLL_SECONDS)


def meet(name: str, addresses: Mapping[str, str], timeout_seconds: float) -> None:
    """Returns when all of several equal processes have reached each other; listens at its own address meanwhile.

    Args:
      name: the name of this process.
      addresses: `host:port` of each process, including this one, by name.
      timeout_seconds: longest wait, `runtime.rendezvous_timeout_seconds`.

    Raises:
      RendezvousError: names the processes that did not come, or this process's port is in use.
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
    """Kills this process, after a message on stderr, if the block takes longer than `seconds`, or two minutes.

    For calls of TensorFlow that connect to processes which answered, but may die now: TensorFlow waits for them in C++,
    and no Python thread or signal handler runs meanwhile. So another process measures the time.
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
"""Waits until its stdin is closed, which also happens when the process that it guards dies."""
