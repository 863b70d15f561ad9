"""The processes that train together: waiting for them before anything is built, and what it means when one is lost.

Owns: the contract, the trivial case of one process, the bounded wait, which of TensorFlow's errors mean that a process
is lost, and which one that is. Does not own: the list of processes (`cluster.py`), how values travel
(`multi_worker.py`), who decides what all do (`collective.py`). Imports no TensorFlow.

TensorFlow waits for the processes of a cluster without a limit, or fails with a page of text that contains one address.
Here a connection that is accepted means that the process listens; no byte is sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.distributed.cluster import process_name
from official_trainer.errors import ExitCode, UserError

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
_WARN_AFTER_SECONDS = 5.0


class PeerLostError(UserError, RuntimeError):
    """A process of the run has died or does not answer; starting all of them again continues the run."""

    exit_code = ExitCode.RETRY


class Peers:
    """The processes that train together. Number 0 is the chief. This class is that of a process without others.

    Attributes:
      is_reached: whether the others exchange values now; not while the chief alone runs code, and they wait for a call.
    """

    index = 0
    count = 1
    is_reached: Callable[[], bool] = staticmethod(lambda: True)

    def losses_explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that turns errors of a lost process into `PeerLostError`."""
        return contextlib.nullcontext()

    def exchange(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in their order; waits for all of them without a limit.

        All have to exchange the same number of times, in the same order.

        Args:
          value: anything that `trees.to_json` supports.

        Raises:
          PeerLostError: a process has died.
        """
        return [value]


ALONE = Peers()


def answers(address: str) -> bool:
    """Whether a process accepts connections at `host:port`; not if that is no address."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def processes_of(addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns `host:port` by the names of processes, such as `worker 1`, from those by role."""
    return {process_name(role, index): address for role in addresses for index, address in enumerate(addresses[role])}


def named(processes: Mapping[str, str]) -> str:
    """Returns processes with their addresses: `worker 0 (10.0.0.2:2222), ps 0 (10.0.0.3:2222)`."""
    return ", ".join(f"{name} ({address})" for name, address in processes.items())


def explain_loss(
    error: BaseException, addresses: Mapping[str, Sequence[str]], *, connects: Callable[[str], bool] = answers
) -> PeerLostError | None:
    """Returns the error that names the lost process, or None if `error` does not mean that one is lost.

    Args:
      error: was raised by TensorFlow.
      addresses: `host:port` of the processes that this one depends on, by role.
      connects: whether a process answers at an address.
    """
    classes = {cls.__name__ for cls in type(error).__mro__}
    is_unknown_device = "InvalidArgumentError" in classes and _UNKNOWN_DEVICE in str(error)
    if isinstance(error, PeerLostError) or not (classes & _LOSS_CLASSES or is_unknown_device):
        return None
    processes = processes_of(addresses)
    blamed = [
        name for role, index in _DEVICE.findall(str(error)) if (name := process_name(role, int(index))) in processes
    ]
    silent = [name for name, address in processes.items() if not connects(address)]
    if is_unknown_device and not silent:
        return None
    if not (blamed or silent):
        return PeerLostError(_LOST_TOUCH) if _BETWEEN_PROCESSES in str(error) else None
    lost = [name for name in silent if name in blamed] or silent or blamed[-1:]
    names = named({name: processes[name] for name in lost})
    return PeerLostError(
        f"lost {names}: it has died, was restarted, or cannot be reached. Start what is missing and the same command "
        "continues from the last checkpoint"
    )


_LOSS_CLASSES = frozenset({"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"})
"""Names of the errors that TensorFlow raises then, among other reasons; this module does not import TensorFlow."""

_UNKNOWN_DEVICE = "unknown device"
"""In TensorFlow's error where a function is traced for the device of a process that has just died."""

_BETWEEN_PROCESSES = "Collective ops is aborted by"
"""In TensorFlow's error about a process that has sent no heartbeat for a while; the error does not name the process."""

_LOST_TOUCH = (
    "lost touch with the other processes of the run: one of them was stopped, or could not be reached for a while, "
    "though all of them answer now. Start all of them again, and the same command continues from the last checkpoint"
)

_DEVICE = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


# Before anything is built.


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
