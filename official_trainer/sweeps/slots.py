"""The devices that trials get which train side by side: each slot is for one trial at a time.

Owns: how many cores and GPUs a trial gets, and which; which ones other processes of the sweep have; what is said of it.
Does not own: finding devices (`distributed/devices.py`), binding a process to them (`processes/starter.py`), the
record of how many (`sweep.py`).

The last bits of a trial depend on how many cores and GPUs compute it, not on which ones. So a trial gets as many of
them as those before it, also when other numbers of trials train side by side later. Where there are too few for that,
several slots share the same ones.

Several processes of one machine may work on a sweep. Each takes devices that none of the others has, while there are
some. They know of each other by abstract sockets of Linux: a name that one process of a machine has until it ends, also
by SIGKILL, and that leaves no file behind.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from official_trainer import files
from official_trainer.distributed.cluster import GIVEN_GPUS, given_gpus
from official_trainer.distributed.devices import VISIBLE_GPUS, Devices
from official_trainer.processes.starter import Slot

_Device = TypeVar("_Device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """How many devices a trial gets.

    Attributes:
      cores: 0 where that is not known.
      gpus: 0 where there are none.
    """

    cores: int
    gpus: int

    def __post_init__(self) -> None:
        for name, count in vars(self).items():
            if type(count) is not int or count < 0:
                raise TypeError(f"{name} is {count!r}, which is no number of devices")

    @classmethod
    def of(cls, devices: Devices, parallel: int) -> Share:
        """Returns how many each of so many trials gets: as many as any other, and at least one."""
        return cls(cores=_part(len(devices.cores), parallel), gpus=_part(len(devices.gpus), parallel))


class Held:
    """The devices that this process has, and no other one of this machine that works on the same sweep."""

    def __init__(self, directory: str) -> None:
        """Takes the directory of the sweep."""
        place = directory if files.is_url(directory) else os.path.realpath(directory)
        self._scope = hashlib.sha256(place.encode()).hexdigest()[:16]
        self._sockets: dict[str, socket.socket] = {}

    def close(self) -> None:
        """Gives them back."""
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    def take(self, names: Sequence[str]) -> bool:
        """Takes devices; returns whether no other process has one of them, else takes none."""
        new = {name: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for name in names if name not in self._sockets}
        try:
            for name, each in new.items():
                each.bind(f"\0official-trainer/{self._scope}/{name}")
        except OSError as error:
            for each in new.values():
                each.close()
            return error.errno != errno.EADDRINUSE  # else a system without such names
        self._sockets |= new
        return True


class Slots:
    """The slots of this process."""

    def __init__(
        self,
        devices: Devices,
        share: Share,
        parallel: int,
        environ: Mapping[str, str],
        take: Callable[[Sequence[str]], bool] = lambda names: True,
    ) -> None:
        """Takes what there is.

        Args:
          devices: of this process.
          share: what trials of the sweep get.
          parallel: how many train side by side.
          environ: of this process.
          take: see `Held.take`.
        """
        self._devices, self._share, self._parallel = devices, share, parallel
        self._new = Share.of(devices, parallel)
        self._granted = Share(
            cores=min(share.cores or self._new.cores, len(devices.cores)),
            gpus=min(share.gpus or self._new.gpus, len(devices.gpus)),
        )
        cores, gpus, granted = devices.cores, devices.gpus, self._granted
        parts = [len(there) // count for there, count in ((cores, granted.cores), (gpus, granted.gpus)) if count]
        every = range(max(parallel, min(parts, default=0)))
        mine: list[int] = []  # parts of the devices that no other process has
        for number in every:
            names = [f"core {each}" for each in _taken(cores, granted.cores, number)]
            names += [f"GPU {each}" for each in _taken(gpus, granted.gpus, number)]
            if len(mine) < parallel and take(names):
                mine.append(number)
        others = [number for number in every if number not in mine][: parallel - len(mine)]
        self._num_shared = len(others)
        self._slots = [self._slot(number, place, environ) for number, place in enumerate(mine + others)]

    def free(self, busy: Iterable[Slot]) -> Slot | None:
        """Returns a slot that is not among these; None if all are."""
        numbers = {slot.number for slot in busy}
        return next((slot for slot in self._slots if slot.number not in numbers), None)

    def lines(self) -> Iterator[str]:
        """Yields what people need to know: how much trials get, if that is not all there is, and what has changed."""
        kinds = [
            ("core", self._granted.cores, len(self._devices.cores), self._share.cores),
            ("GPU", self._granted.gpus, len(self._devices.gpus), self._share.gpus),
        ]
        some = " and ".join(f"{count} of {_counted(there, kind)}" for kind, count, there, _ in kinds if there)
        if some and (self._parallel > 1 or any(count < there for _, count, there, _ in kinds)):
            shared = [f"{kind}s" for kind, count, there, _ in kinds if count * self._parallel > there]
            who = "each trial has" if self._parallel == 1 else f"{self._parallel} trials at a time, each with"
            why = "" if self._granted == self._new else ", as when the sweep began"
            end = f"; they share {' and '.join(shared)}, of which there are too few" if shared else ""
            yield f"{who} {some}{why}{end}"
        for kind, count, _, before in kinds:
            if count != before:
                what = f"each trial had {_counted(before, kind)} when the sweep began, and has {count} here"
                yield f"{what}: the last bits of results may differ"
        if self._num_shared:
            which = " and ".join(f"{kind}s" for kind, _, there, _ in kinds if there)
            some = f"{self._num_shared} of {_counted(self._parallel, 'slot')} of this one"
            yield f"other processes of this sweep have the {which} of this machine, and share them with {some}"

    def _slot(self, number: int, place: int, environ: Mapping[str, str]) -> Slot:
        (cores, gpus), granted = (self._devices.cores, self._devices.gpus), self._granted
        mine = _taken(cores, granted.cores, place) if granted.cores < len(cores) else ()
        seen: dict[str, str] = {}
        if granted.gpus < len(gpus):
            seen[VISIBLE_GPUS] = ",".join(_taken(gpus, granted.gpus, place))
            if given := given_gpus(environ)[0]:
                seen[GIVEN_GPUS] = str(min(given, granted.gpus))
        return Slot(number, mine, seen)


def _part(count: int, parallel: int) -> int:
    return max(count // parallel, min(count, 1))


def _taken(devices: tuple[_Device, ...], count: int, number: int) -> tuple[_Device, ...]:
    """Returns the devices of a slot, of which each has `count`; those of the next one follow."""
    return tuple(devices[(number * count + each) % len(devices)] for each in range(count))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
