"""Which of the processes that train together are late: each reports it in its folder of the run directory.

Owns: these reports, and what an error about another process takes from them. Does not own: when a process is late
(`watchdog.py`).

TensorFlow only reports that a collective operation was not done in time. Only the process that hangs can see where.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math

from official_trainer import files
from official_trainer.distributed.cluster import PS, Cluster, process_name
from official_trainer.distributed.peers import PeerLostError
from official_trainer.distributed.rendezvous import answers
from official_trainer.runs.health.stall_report import UNCERTAIN, Stall
from official_trainer.threads import WorkerThread, run_bounded

_NAME = "late.json"
_READ_SECONDS = 5.0  # the storage may be what hangs


class LateReports:
    """The reports of a run's processes.

    Attributes:
      folder: for the files of this process: the run directory is the chief's.
      patience_seconds: how long processes wait for each other within a step; at half of it, or of what is a stall, one
        is late.
    """

    def __init__(self, model_dir: str, cluster: Cluster | None, patience_seconds: float = math.inf) -> None:
        """Takes the run directory, and who takes part; if no other process trains, nothing is ever reported."""
        self.patience_seconds = math.inf
        self._others: dict[str, tuple[str, str]] = {}
        self.folder = self._own = model_dir
        self._writer = WorkerThread("late-report")
        if cluster is None or PS in cluster.addresses:
            return
        for role, index in cluster.training:
            if (role, index) != (cluster.role, cluster.index):
                name = process_name(role, index)
                self._others[name] = cluster.addresses[role][index], _folder(model_dir, name)
        if self._others:
            self.patience_seconds = patience_seconds
        self._own = _folder(model_dir, cluster.name)
        self.folder = model_dir if cluster.is_chief else self._own

    def report(self, gap: Stall | None) -> None:
        """Reports what this process is late with, or with None that it is no longer late; does not wait for the write.

        A process that may only be waiting for the others reports nothing.
        """
        if self._others:
            doing = gap.doing if gap is not None and gap.activity not in UNCERTAIN else None
            self._writer.submit(functools.partial(self._write, doing))

    def clear(self) -> None:
        """Removes the report of an earlier process with this name."""
        if self._others:
            self._write(None)

    def of_others(self) -> list[str]:
        """Returns which are late: `worker 1 is waiting for the next batch at step 7`, `worker 2 (…) does not answer`.

        That is what is known after a few seconds; the storage may be what hangs.
        """
        found: list[str] = []
        if self._others:
            run_bounded(functools.partial(self._read, found), _READ_SECONDS, "late-reports")
        return list(found)

    def explain(self, error: BaseException) -> PeerLostError | None:
        """Returns an error about other processes with their reports added; None for other errors, or without any."""
        if not isinstance(error, PeerLostError):
            return None
        found = self.of_others()
        return type(error)(f"{str(error).rstrip('.')}. Late: {'; '.join(found)}.") if found else None

    def _write(self, doing: str | None) -> None:
        path = files.join(self._own, _NAME)
        with contextlib.suppress(Exception):  # of any storage; a report is not worth an error
            if doing is None:
                if files.exists(path):
                    files.remove(path)
                return
            files.make_dirs(self._own)
            files.write_text_atomically(path, json.dumps({"doing": doing}), durable=False)

    def _read(self, found: list[str]) -> None:
        for name, (address, folder) in self._others.items():
            if not answers(address):
                found.append(f"{name} ({address}) does not answer")
                continue
            with contextlib.suppress(Exception):
                found.append(f"{name} is {json.loads(files.read_bytes(files.join(folder, _NAME)))['doing']}")


def _folder(model_dir: str, name: str) -> str:
    return files.join(model_dir, "workers", name.replace(" ", "-"))
