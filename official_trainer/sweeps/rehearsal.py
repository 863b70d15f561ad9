"""What is tried before the first trial: `official-trainer check`, with the values of the first trial.

Owns: the command, and what its end means.
Does not own: what is tried (`runs/check.py`), when (`driver.py`, which has claimed the first trial then, so that no
other driver tries it).

So a metric that evaluations do not produce, or a mistake in the task, costs seconds and not a trial.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from official_trainer import files
from official_trainer.distributed.cluster import CHIEF
from official_trainer.errors import MEANINGS, ExitCode
from official_trainer.processes.children import Process, Processes
from official_trainer.processes.job import Member
from official_trainer.processes.output import Lines
from official_trainer.processes.signals import Signals
from official_trainer.processes.starter import Slot
from official_trainer.processes.verdict import End, Restarts
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps.trial import SweepError

PLACE = "check"
"""In the directory of a sweep: where it is tried; absent afterwards."""
_OUTPUT = "check.log"
_ERROR = "error: "
_POLL_SECONDS = 0.5


def rehearse(command: Sequence[str], directory: str, processes: Processes, signals: Signals, slot: Slot) -> None:
    """Tries a trial.

    Args:
      command: a module and its arguments.
      directory: of the sweep, where its output is kept if it fails.
      processes: start it.
      signals: end it.
      slot: its devices.

    Raises:
      SweepError: it failed; with its error.
      PreemptedError: a signal came.
    """
    for name in (PLACE, _OUTPUT):  # of a process that was killed
        files.remove(files.join(directory, name))
    place = tempfile.mkdtemp() if files.is_url(directory) else directory  # a bucket cannot append
    path = files.join(place, _OUTPUT)
    output = open(path, "wb", buffering=0)  # noqa: SIM115 - its lines close it
    member = Member(role=CHIEF, index=0, argv=tuple(command), environ={})
    process = Process(member, Lines(lambda lines: None, output), Restarts(), slot=slot)
    processes.start(process)
    while (found := processes.wait(_POLL_SECONDS)) is None or (code := found[1]) is None:
        signals.read()
        if signals.insisted:
            processes.kill()
        elif signals.asked is not None:
            processes.terminate()
    process.lines.end()
    if signals.asked is not None:
        raise PreemptedError("no trial was started; the same command begins again")
    if code == 0:
        for left in (path, files.join(directory, PLACE), *([place] if place != directory else [])):
            files.remove(left)
        return
    how = End(name="check", role=CHIEF, code=code).how
    if code not in list(MEANINGS):
        raise SweepError(f"the check before the first trial {how}; give the same command again", ExitCode.RETRY)
    printed = files.read_bytes(path).decode(errors="replace")
    _, label, error = f"\n{printed}".rpartition(f"\n{_ERROR}")
    what = error.strip() if label else f"{how}; see {path}"
    what = f"objective{what.removeprefix('--metric')}" if what.startswith("--metric: ") else what
    raise SweepError(f"{what}\nThis was found before the first trial, so there is no trial yet", ExitCode(code))
