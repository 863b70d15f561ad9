"""The process of a trial that calls a function: `python -m official_trainer.sweeps.function_trial FUNCTION DIR VALUES`.

Owns: that call, and its exit code. Does not own: the function and what it is called with (`sweeps/functions.py`).
"""

from __future__ import annotations

import json
import sys

from official_trainer.cli import dispatch, process, terminal
from official_trainer.errors import ExitCode


def main() -> int:
    """Calls the function that the command line names; returns the exit code of the process."""
    process.prepare()
    return dispatch.reported(_call, sys.argv, ends_process=True)


def _call() -> int:
    from official_trainer.sweeps import functions

    reference, model_dir, values = sys.argv[1:]
    with process.interruptible(), terminal.log_shown(quiet=False):
        functions.load(reference)(functions.TrialRun.of(model_dir, json.loads(values)))
    return int(ExitCode.DONE)


if __name__ == "__main__":
    raise SystemExit(main())
