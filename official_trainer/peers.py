"""What the processes that train together tell each other between steps, so that all of them decide alike.

Owns: the contract, and the trivial case of one process. Does not own: how values travel (`multi_worker.py`).

Every process of a synchronous run runs the same loop. Whatever is decided by something that only one of them sees (its
clock, a signal, a file) is exchanged first. All of them have to exchange the same number of times, in the same order.
"""

from __future__ import annotations

from typing import Any, Protocol


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
