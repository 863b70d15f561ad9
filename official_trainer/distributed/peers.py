"""The processes that train together: what they tell each other, and what it means when one of them is gone.

Owns: the contract, the trivial case of one process, errors about the others. Does not own: how values travel
(`multi_worker.py`), who asks whom (`collective.py`).
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from official_trainer.errors import ExitCode, UserError


class PeerLostError(UserError, RuntimeError):
    """A process of the run has died or does not answer; starting all of them again continues the run."""

    exit_code = ExitCode.RETRY


class Peers(Protocol):
    """The processes that train together. Number 0 is the chief, which speaks for the run."""

    index: int
    count: int

    def losses_explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that turns errors of a lost process into `PeerLostError`."""

    def exchange(self, value: Any) -> list[Any]:
        """Returns what every process gave here, in their order; waits for all of them, however long.

        All have to exchange the same number of times, in the same order.

        Args:
          value: what `pickle` takes.

        Raises:
          PeerLostError: a process has died.
        """


class Alone:
    """A process without others."""

    index = 0
    count = 1

    def losses_explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that does nothing."""
        return contextlib.nullcontext()

    def exchange(self, value: Any) -> list[Any]:
        """Returns `value` alone."""
        return [value]


ALONE = Alone()
