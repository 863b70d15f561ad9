"""The start of a cluster: waiting for the processes of a run, for a bounded time, and saying who is missing.

Owns: looking whether somebody listens at an address, the wait before TensorFlow's own, which says nothing and lasts an
hour. Does not own: what is done once all are there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from official_trainer.errors import ExitCode
from official_trainer.peers import PeerLostError

_logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_SAY_SECONDS = 10.0
_CONNECT_SECONDS = 2.0


def meet(
    name: str,
    members: Mapping[str, str],
    *,
    timeout_seconds: float,
    is_there: Callable[[str], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns once every member was seen to listen at its address; listens at the own one meanwhile.

    Args:
      name: of this process, one of `members`.
      members: `host:port` by name.
      timeout_seconds: how long to wait for the last one.
      is_there: whether somebody listens at an address.
      clock: tells the time in seconds.
      sleep: waits.

    Raises:
      PeerLostError: names those who did not come.
      OSError: the own address is in use.
    """
    missing = {other: address for other, address in members.items() if other != name}
    began = said = clock()
    with _listening(members[name]):
        while True:
            missing = {other: address for other, address in missing.items() if not (is_there or answers)(address)}
            now = clock()
            if not missing:
                return
            if now - began > timeout_seconds:
                raise PeerLostError(
                    f"{name} has waited {now - began:.0f} seconds for {_named(missing)}: nobody listens there. "
                    "runtime.rendezvous_timeout_seconds allows no longer; see whether they were started, and whether "
                    "their addresses can be reached from here."
                )
            if now - said >= _SAY_SECONDS:
                said = now
                _logger.warning("%s waits for %s", name, _named(missing))
            sleep(_POLL_SECONDS)


def answers(address: str) -> bool:
    """Whether somebody listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def bounded(seconds: float, what: str) -> Iterator[None]:
    """Ends the process with exit code 75 if the block, which nothing can interrupt, takes longer than this."""
    timer = threading.Timer(seconds, _give_up, (seconds, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float, what: str) -> None:
    print(f"{what} took longer than runtime.rendezvous_timeout_seconds={seconds:g}", file=sys.stderr, flush=True)
    os._exit(ExitCode.RETRY)


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    """Listens at the port of an address, on all interfaces, as TensorFlow's server will."""
    port = int(address.rpartition(":")[2])
    with socket.create_server(("", port), backlog=1024):
        yield


def _named(members: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({address})" for name, address in members.items())
