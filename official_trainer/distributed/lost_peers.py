"""Which of TensorFlow's errors mean that a process of the run is gone, and which one that is.

Owns: reading the errors, and asking who still answers. Does not own: what is done about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from official_trainer.distributed.cluster import process_name
from official_trainer.distributed.peers import PeerLostError
from official_trainer.distributed.rendezvous import answers, named


def explained(
    error: BaseException, addresses: Mapping[str, Sequence[str]], *, connects: Callable[[str], bool] = answers
) -> PeerLostError | None:
    """Returns what an error of TensorFlow says about a process that is gone, or None if it says something else.

    Args:
      error: what was raised.
      addresses: `host:port` of the processes that this one depends on, by role.
      connects: whether somebody answers at an address.
    """
    if isinstance(error, PeerLostError) or not is_loss(error):
        return None
    processes = {(role, index): address for role, listed in addresses.items() for index, address in enumerate(listed)}
    blamed = [(role, int(index)) for role, index in _DEVICE.findall(str(error)) if (role, int(index)) in processes]
    silent = [process for process, address in processes.items() if not connects(address)]
    if not (blamed or silent):
        return PeerLostError(_LOST_TOUCH) if _BETWEEN_PROCESSES in str(error) else None
    lost = [process for process in silent if process in blamed] or silent or blamed[-1:]
    who = named({process_name(*process): processes[process] for process in lost})
    return PeerLostError(
        f"lost {who}: it has died, was started anew, or cannot be reached. Start what is missing and the same command "
        "continues from the last checkpoint"
    )


def is_loss(error: BaseException) -> bool:
    """Whether TensorFlow raises an error of this class when a process is gone, among other things."""
    return bool(_LOST & {cls.__name__ for cls in type(error).__mro__})


_LOST = frozenset({"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"})
"""Names of the errors that TensorFlow raises when a process is gone; this module does not import it."""

_BETWEEN_PROCESSES = "Collective ops is aborted by"
"""What TensorFlow says when it has not heard of a process for a while, without saying of which."""

_LOST_TOUCH = (
    "lost touch with the other processes of the run: one of them was stopped, or could not be reached for a while, "
    "though all of them answer now. Start all of them again, and the same command continues from the last checkpoint"
)

_DEVICE = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
