"""What is tried before the first trial: `official-trainer check`, with the values of the first trial.

Owns: that process, and what its end means. Does not own: what is tried (`runs/check.py`).

So a metric that evaluations do not produce, or a mistake in the task, costs seconds and not a trial.
"""

from __future__ import annotations

from collections.abc import Sequence

from official_trainer import files
from official_trainer.distributed.cluster import CHIEF
from official_trainer.errors import MEANINGS, ExitCode
from official_trainer.launch.local.children import Process, Processes
from official_trainer.launch.local.output import Lines
from official_trainer.launch.local.signals import Signals
from official_trainer.launch.spec import Member
from official_trainer.launch.verdict import End, Restarts
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps.trial import SweepError

_OUTPUT = "check.log"
_ERROR = "error: "
_POLL_SECONDS = 0.5


def rehearse(command: Sequence[str], directory: str, processes: Processes, signals: Signals) -> None:
    """Tries a trial.

    Args:
      command: a module and its arguments.
      directory: of the sweep, where its output is kept if it fails.
      processes: start it.
      signals: end it.

    Raises:
      SweepError: it failed; with its error.
      PreemptedError: a signal came.
    """
    path = files.join(directory, _OUTPUT)
    output = open(path, "wb", buffering=0)  # noqa: SIM115 - its lines close it
    member = Member(role=CHIEF, index=0, argv=tuple(command), environ={})
    process = Process(member, Lines(lambda lines: None, output), Restarts())
    processes.start(process)
    code = _end_of(processes, signals)
    process.lines.end()
    if signals.asked is not None:
        raise PreemptedError("no trial was started; the same command begins again")
    if code == 0:
        files.remove(path)
        return
    how = End(name="check", role=CHIEF, code=code).how
    if code not in list(MEANINGS):
        raise SweepError(f"the check before the first trial {how}; give the same command again", ExitCode.RETRY)
    _, label, error = files.read_bytes(path).decode(errors="replace").rpartition(f"\n{_ERROR}")
    what = error.strip() if label else f"{how}; see {path}"
    what = f"objective{what.removeprefix('--metric')}" if what.startswith("--metric: ") else what
    raise SweepError(f"{what}\nThis was found before the first trial; nothing is recorded of one", ExitCode(code))


def _end_of(processes: Processes, signals: Signals) -> int:
    """Waits for the end of the only process; returns its exit code."""
    while True:
        found = processes.wait(_POLL_SECONDS)
        if found is not None and found[1] is not None:
            return found[1]
        signals.read()
        if signals.insisted:
            processes.kill()
        elif signals.asked is not None:
            processes.terminate()
