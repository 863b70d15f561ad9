"""What the processes that train together tell each other between steps, so that all of them decide alike.

Owns: the contract, the trivial case of one process, and what is said when a process is lost. Does not own: how values
travel (`multi_worker.py`).

Every process of a synchronous run runs the same loop. Whatever is decided by something that only one of them sees (its
clock, a signal, a file) is exchanged first. All of them have to exchange the same number of times, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from official_trainer.cluster import process_name
from official_trainer.errors import ExitCode, UserError
from official_trainer.rendezvous import answers, named


class PeerLostError(UserError, RuntimeError):
    """A process that this one trains with has died or does not answer; starting again helps once it is back."""

    exit_code = ExitCode.RETRY


class Peers(Protocol):
    """The processes that train together."""

    index: int
    count: int

    def exchange(self, value: Any) -> list[Any]:
        """Returns what every process gave here, in their order; waits for all of them.

        Args:
          value: anything that JSON takes; not-a-number too.

        Raises:
          PeerLostError: a process has died, or does not answer within the timeout.
        """


class Alone:
    """A process without others."""

    index = 0
    count = 1

    def exchange(self, value: Any) -> list[Any]:
        """Returns `value` alone."""
        return [value]


ALONE = Alone()


def is_chief(peers: Peers) -> bool:
    """Whether this process speaks for the run: it alone writes to the run directory."""
    return peers.index == 0


def of_chief(peers: Peers, value: Any) -> Any:
    """Returns what the chief gave."""
    return peers.exchange(value if is_chief(peers) else None)[0]


def explained(
    error: BaseException, addresses: Mapping[str, Sequence[str]], *, connects: Callable[[str], bool] = answers
) -> PeerLostError | None:
    """Returns what an error of TensorFlow says about a process that is gone, or None if it says something else.

    Args:
      error: what was raised.
      addresses: `host:port` of the processes that this one depends on, by role.
      connects: whether somebody answers at an address.
    """
    if isinstance(error, PeerLostError) or not _LOST & {cls.__name__ for cls in type(error).__mro__}:
        return None
    processes = {(role, index): address for role, listed in addresses.items() for index, address in enumerate(listed)}
    blamed = [(role, int(index)) for role, index in _DEVICE.findall(str(error)) if (role, int(index)) in processes]
    silent = [process for process, address in processes.items() if not connects(address)]
    if not (blamed or silent):
        return None
    lost = [process for process in silent if process in blamed] or silent or blamed[-1:]
    who = named({process_name(*process): processes[process] for process in lost})
    first_line = str(error).partition("\n")[0][:_SHOWN_CHARACTERS]
    return PeerLostError(
        f"lost {who}: it has died, was started anew, or cannot be reached. Start what is missing and the same command "
        f"continues from the last checkpoint. TensorFlow says: {type(error).__name__}: {first_line}"
    )


_LOST = frozenset({"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"})
"""Names of the errors that TensorFlow raises when a process is gone; this module does not import it."""

_DEVICE = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_SHOWN_CHARACTERS = 200
