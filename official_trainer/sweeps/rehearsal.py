"""What is tried before the first trial: `official-trainer check` of the experiment.

Owns: the process of the check, and what its end means for the sweep.
Does not own: what is tried (`runs/check.py`), trying the sampler (`study.py`).

So a metric that evaluations do not produce, or a mistake in the task, costs seconds and not a trial.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from official_trainer import files
from official_trainer.distributed.cluster import CHIEF
from official_trainer.errors import MEANINGS, ExitCode
from official_trainer.processes import forked
from official_trainer.processes.forked import ForkedProcess
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import End
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps.settings import SweepError

FOLDER, OUTPUT = "check", "check.log"
"""In the directory of a sweep: where it is tried, and what that prints; absent afterwards, unless it failed."""


def rehearse(command: Sequence[str], directory: str) -> None:
    """Tries an experiment.

    Args:
      command: a module and its arguments.
      directory: of the sweep, where the output is kept if it fails.

    Raises:
      SweepError: it failed; with its error.
      PreemptedError: a signal came.
    """
    output = files.join(directory, OUTPUT)
    files.remove(output)  # of a process that was killed
    with Signals() as signals:
        process = ForkedProcess(command, environ=os.environ, output=output)
        try:
            while (code := process.exit_code()) is None:
                forked.wait([process], signals.fileno())
                signals.read()
                if signals.asked is not None:
                    raise PreemptedError("no trial was started; the same command begins again")
        finally:
            process.kill()
    if code == 0:
        for left in (output, files.join(directory, FOLDER)):
            files.remove(left)
        return
    how = End(name="check", role=CHIEF, code=code).how
    if code not in list(MEANINGS):
        raise SweepError(f"the check before the first trial {how}; give the same command again", ExitCode.RETRY)
    printed = files.read_bytes(output).decode(errors="replace")
    _, label, error = f"\n{printed}".rpartition("\nerror: ")
    what = error.strip() if label else f"{how}; see {output}"
    what = f"objective{what.removeprefix('--metric')}" if what.startswith("--metric: ") else what
    raise SweepError(f"{what}\nThis was found before the first trial, so there is no trial yet", ExitCode(code))
