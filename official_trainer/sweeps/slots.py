"""The devices that trials get which train side by side: each slot is for one trial at a time.

Owns: how many cores and GPUs a trial gets, and which; what is said of it.
Does not own: finding devices (`distributed/devices.py`), binding a process to them (`processes/starter.py`), the
record of how many (`sweep.py`).

The last bits of a trial depend on how many cores and GPUs compute it, not on which ones. So a trial gets as many of
them as those before it, also when other numbers of trials train side by side later. Where there are too few for that,
several slots share the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

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


class Slots:
    """The slots of this process."""

    def __init__(self, devices: Devices, share: Share, parallel: int, environ: Mapping[str, str]) -> None:
        """Takes what there is.

        Args:
          devices: of this process.
          share: what trials of the sweep get.
          parallel: how many train side by side.
          environ: of this process.
        """
        self._devices, self._share, self._parallel = devices, share, parallel
        self._new = Share.of(devices, parallel)
        self._granted = Share(
            cores=min(share.cores or self._new.cores, len(devices.cores)),
            gpus=min(share.gpus or self._new.gpus, len(devices.gpus)),
        )
        granted = self._granted
        self._slots: list[Slot] = []
        for number in range(parallel):
            cores = _taken(devices.cores, granted.cores, number) if granted.cores < len(devices.cores) else ()
            seen: dict[str, str] = {}
            if granted.gpus < len(devices.gpus):
                seen[VISIBLE_GPUS] = ",".join(_taken(devices.gpus, granted.gpus, number))
                if given := given_gpus(environ)[0]:
                    seen[GIVEN_GPUS] = str(min(given, granted.gpus))
            self._slots.append(Slot(number, cores, seen))

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


def _part(count: int, parallel: int) -> int:
    return max(count // parallel, min(count, 1))


def _taken(devices: tuple[_Device, ...], count: int, number: int) -> tuple[_Device, ...]:
    """Returns the devices of a slot, of which each has `count`; those of the next one follow."""
    return tuple(devices[(number * count + each) % len(devices)] for each in range(count))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
