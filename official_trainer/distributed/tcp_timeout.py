"""A time limit for connections between the processes of a run whose other end does not answer: the kernel ends them.

Owns: that setting, on every connection to a process of the run. Does not own: what follows when one ends (`peers.py`,
TensorFlow).

TensorFlow's gRPC sends no keepalives, and neither TensorFlow nor an environment variable can switch them on. A cable
that is pulled closes no connection, so a process that waits for an answer waits until the kernel gives up sending,
which takes a quarter of an hour, and during some of these waits no Python code can run. A process that is only stopped
or busy is not affected: its kernel answers.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from official_trainer.threads import RepeatingThread

SILENT_SECONDS = 30
"""How long a connection may stay without an answer. A switch that restarts, or a machine that is moved, takes less."""

_PROBE_SECONDS = 5
_CHECK_SECONDS = 5.0
_DESCRIPTORS = "/proc/self/fd"

Address = tuple[str, int]


def end_silent_connections(addresses: Iterable[str]) -> None:
    """Has the kernel end this process's connections to silent processes, from now on; does nothing except on Linux.

    Args:
      addresses: `host:port` of all processes of the run.
    """
    addresses = list(addresses)
    seen: set[frozenset[Address]] = set()

    def bound_new() -> None:
        nonlocal seen
        found = {ends for _, ends in _connections()}
        if not found <= seen:  # names are resolved for new connections only
            bound(_resolved(addresses), SILENT_SECONDS)
        seen = found

    if os.path.isdir(_DESCRIPTORS) and hasattr(socket, "TCP_USER_TIMEOUT"):
        RepeatingThread("silence", bound_new, _CHECK_SECONDS).start()  # connections come and go


def bound(addresses: Collection[Address], seconds: int) -> int:
    """Limits how long a connection may be silent, for those without a limit; returns their number.

    Args:
      addresses: IP address and port of processes; a connection counts if either end is one of them.
      seconds: the limit.
    """
    count = 0
    for connection, ends in _connections():
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            is_bounded = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            if not is_bounded and not ends.isdisjoint(addresses):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)
                count += 1
    return count


def _connections() -> Iterator[tuple[socket.socket, frozenset[Address]]]:
    """Yields the TCP connections of this process with their two ends; each is valid until the next one is taken."""
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            duplicate = os.dup(int(name))  # TensorFlow's own descriptor stays open
            try:
                connection = socket.socket(fileno=duplicate)
            except OSError:  # it is not a socket
                os.close(duplicate)
                continue
            with connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    yield connection, frozenset((_plain(connection.getpeername()), _plain(connection.getsockname())))


def _plain(end: tuple[Any, ...]) -> Address:
    """Returns host and port, with the IPv4 address of an IPv4 connection of an IPv6 socket."""
    return end[0].removeprefix("::ffff:"), end[1]


def _resolved(addresses: Iterable[str]) -> set[Address]:
    resolved: set[Address] = set()
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            for *_, end in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
                resolved.add((str(end[0]), int(end[1])))
    return resolved
