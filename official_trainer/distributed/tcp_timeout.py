"""Connections between the processes of a run whose other end has fallen silent: the kernel ends them.

Owns: that setting, on every connection that there is to a process of the run. Does not own: what follows when one ends
(`lost_peers.py`, TensorFlow).

TensorFlow's gRPC asks for no sign of life. A cable that is pulled closes no connection, so whoever waits for an answer
waits until the kernel gives up sending again, which takes a quarter of an hour, and some of these waits keep Python
from running. A process that is only stopped or busy is not silent: its kernel answers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

SILENT_SECONDS = 30
"""After so long a connection is ended. A switch that starts anew, or a machine that is moved, takes less."""

_PROBE_SECONDS = 5
_LOOK_SECONDS = 5.0
_DESCRIPTORS = "/proc/self/fd"

Address = tuple[str, int]


def end_silent_connections(addresses: Iterable[str]) -> None:
    """Has the kernel end this process's connections to silent processes, from now on; on Linux, elsewhere nothing.

    Args:
      addresses: `host:port` of all processes of the run.
    """
    if os.path.isdir(_DESCRIPTORS) and hasattr(socket, "TCP_USER_TIMEOUT"):
        threading.Thread(target=_look, args=(list(addresses),), name="silence", daemon=True).start()


def _look(addresses: Collection[str]) -> None:
    seen: set[frozenset[Address]] = set()
    while True:  # connections come and go; a name may get another address, but is asked for only where one has come
        there = {ends for _, ends in _connections()}
        if not there <= seen:
            bound(_resolved(addresses), SILENT_SECONDS)
        seen = there
        time.sleep(_LOOK_SECONDS)


def bound(addresses: Collection[Address], seconds: int) -> int:
    """Sets how long a connection may be silent, on those that have none yet; returns on how many.

    Args:
      addresses: IP address and port of processes; a connection counts if either end is one of them.
      seconds: after so long without an answer it is ended.
    """
    found = 0
    for connection, ends in _connections():
        with contextlib.suppress(OSError):  # it may have ended
            is_bounded = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            if not is_bounded and not ends.isdisjoint(addresses):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)
                found += 1
    return found


def _connections() -> Iterator[tuple[socket.socket, frozenset[Address]]]:
    """Yields the TCP connections of this process with their two ends; each is good until the next one is asked for."""
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError), socket.socket(fileno=_duplicate(int(name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                yield connection, frozenset((_plain(connection.getpeername()), _plain(connection.getsockname())))


def _duplicate(descriptor: int) -> int:
    """Returns another descriptor of the same socket, so that TensorFlow's own stays open whatever happens here.

    Raises:
      OSError: it is none, or none any more.
    """
    duplicate = os.dup(descriptor)
    if stat.S_ISSOCK(os.fstat(duplicate).st_mode):
        return duplicate
    os.close(duplicate)
    raise OSError("not a socket")


def _plain(end: tuple[Any, ...]) -> Address:
    """Returns host and port; of an IPv4 connection as such, also where a socket of IPv6 has it."""
    return end[0].removeprefix("::ffff:"), end[1]


def _resolved(addresses: Iterable[str]) -> set[Address]:
    resolved: set[Address] = set()
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            for *_, end in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
                resolved.add((str(end[0]), int(end[1])))
    return resolved
