"""Which of the processes that train together are late: each says so itself, in its folder of the run directory.

Owns: those notes, and who reads them. Does not own: when a process is late (`watchdog.py`).

TensorFlow only says that a collective operation was not done in time. Who hangs, only that process itself can see.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable

from official_trainer import files
from official_trainer.distributed.cluster import PS, Cluster, process_name
from official_trainer.distributed.peers import PeerLostError, answers
from official_trainer.runs.health.stalls import UNCERTAIN, Stall

_NOTE = "late.json"
_READ_SECONDS = 5.0  # the storage may be what hangs


class Notes:
    """The notes of a run's processes.

    Attributes:
      folder: for the reports of this process: the run directory is the chief's.
    """

    def __init__(self, model_dir: str, cluster: Cluster | None) -> None:
        """Takes the run directory, and who takes part; without others that train, nothing is ever said."""
        self._others: dict[str, tuple[str, str]] = {}
        self.folder = self._own = model_dir
        if cluster is None or PS in cluster.addresses:
            return
        for role, index in cluster.training:
            if (role, index) != (cluster.role, cluster.index):
                name = process_name(role, index)
                self._others[name] = cluster.addresses[role][index], _folder(model_dir, name)
        self._own = _folder(model_dir, cluster.name)
        self.folder = model_dir if cluster.is_chief else self._own

    @property
    def has_others(self) -> bool:
        """Whether there are processes to wait for."""
        return bool(self._others)

    def tell(self, gap: Stall | None) -> None:
        """Says what this process is late with, or with None that it is not any more; does not wait until it is said.

        A process that may only be waiting for the others says nothing.
        """
        if not self._others:
            return
        is_own = gap is not None and gap.activity not in UNCERTAIN
        words = gap.doing if gap is not None and is_own else None
        threading.Thread(target=self._write, args=(words,), name="late-note", daemon=True).start()

    def forget(self) -> None:
        """Removes what an earlier process with this name has said."""
        if self._others:
            self._write(None)

    def of_others(self) -> list[str]:
        """Returns which are late: `worker 1 is waiting for the next batch at step 7`, `worker 2 (…) does not answer`.

        What is known after a few seconds; the storage may be what hangs.
        """
        said: list[str] = []
        if self._others:
            _bounded(lambda: self._read(said))
        return list(said)

    def explained(self, error: BaseException) -> PeerLostError | None:
        """Returns an error about other processes with what they say of themselves; None if they say nothing."""
        if not isinstance(error, PeerLostError):
            return None
        said = self.of_others()
        return type(error)(f"{str(error).rstrip('.')}. Late: {'; '.join(said)}.") if said else None

    def _write(self, words: str | None) -> None:
        path = files.join(self._own, _NOTE)
        with contextlib.suppress(Exception):  # of any storage; it is only a note
            if words is None:
                if files.exists(path):
                    files.remove(path)
                return
            files.make_dirs(self._own)
            files.write_text_atomically(path, json.dumps({"doing": words}), durable=False)

    def _read(self, said: list[str]) -> None:
        for name, (address, folder) in self._others.items():
            if not answers(address):
                said.append(f"{name} ({address}) does not answer")
                continue
            with contextlib.suppress(Exception):
                said.append(f"{name} is {json.loads(files.read_bytes(files.join(folder, _NOTE)))['doing']}")


def _folder(model_dir: str, name: str) -> str:
    return files.join(model_dir, "workers", name.replace(" ", "-"))


def _bounded(act: Callable[[], object]) -> None:
    """Does `act`, and returns when it is done, has failed, or takes too long."""

    def attempt() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=attempt, name="late-notes", daemon=True)
    thread.start()
    thread.join(_READ_SECONDS)
