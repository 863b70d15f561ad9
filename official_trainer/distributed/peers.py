"""The processes that train together, and what it means when one of them is lost.

Owns: the contract, the trivial case of one process, which of TensorFlow's errors mean that a process is lost, and which
one that is. Does not own: how values travel (`multi_worker.py`), who decides what all do (`collective.py`).
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.distributed.cluster import process_name
from official_trainer.errors import ExitCode, UserError

_CONNECT_SECONDS = 2.0


class PeerLostError(UserError, RuntimeError):
    """A process of the run has died or does not answer; starting all of them again continues the run."""

    exit_code = ExitCode.RETRY


class Peers:
    """The processes that train together. Number 0 is the chief. This class is that of a process without others."""

    index = 0
    count = 1

    def losses_explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that turns errors of a lost process into `PeerLostError`."""
        return contextlib.nullcontext()

    def exchange(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in their order; waits for all of them without a limit.

        All have to exchange the same number of times, in the same order.

        Args:
          value: anything that `pickle` supports.

        Raises:
          PeerLostError: a process has died.
        """
        return [value]


ALONE = Peers()


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


def explain_loss(
    error: BaseException, addresses: Mapping[str, Sequence[str]], *, connects: Callable[[str], bool] = answers
) -> PeerLostError | None:
    """Returns the error that names the lost process, or None if `error` does not mean that one is lost.

    Args:
      error: was raised by TensorFlow.
      addresses: `host:port` of the processes that this one depends on, by role.
      connects: whether a process answers at an address.
    """
    if isinstance(error, PeerLostError) or not is_loss(error):
        return None
    processes = {(role, index): address for role, listed in addresses.items() for index, address in enumerate(listed)}
    blamed = [(role, int(index)) for role, index in _DEVICE.findall(str(error)) if (role, int(index)) in processes]
    silent = [process for process, address in processes.items() if not connects(address)]
    if not (blamed or silent):
        return PeerLostError(_LOST_TOUCH) if _BETWEEN_PROCESSES in str(error) else None
    lost = [process for process in silent if process in blamed] or silent or blamed[-1:]
    names = named({process_name(*process): processes[process] for process in lost})
    return PeerLostError(
        f"lost {names}: it has died, was restarted, or cannot be reached. Start what is missing and the same command "
        "continues from the last checkpoint"
    )


def is_loss(error: BaseException) -> bool:
    """Whether TensorFlow raises an error of this class when a process is lost, among other reasons."""
    return bool(_LOSS_CLASSES & {cls.__name__ for cls in type(error).__mro__})


_LOSS_CLASSES = frozenset({"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"})
"""Names of the errors; this module does not import TensorFlow."""

_BETWEEN_PROCESSES = "Collective ops is aborted by"
"""In TensorFlow's error about a process that has sent no heartbeat for a while; the error does not name the process."""

_LOST_TOUCH = (
    "lost touch with the other processes of the run: one of them was stopped, or could not be reached for a while, "
    "though all of them answer now. Start all of them again, and the same command continues from the last checkpoint"
)

_DEVICE = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
