"""See to a job that `launch TARGET --submit` has submitted.

The scheduler's own command is run as it is, such as squeue or kubectl. It was printed when the job was submitted.

Owns: `job`, on the records in launches/. Does not own: which commands these are (`launch/targets/`), submitting
(`launch/submit.py`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess

from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError
from official_trainer.launch import launches, submit
from official_trainer.launch.submit import SchedulerError
from official_trainer.nearest import did_you_mean

GROUP = "Use several processes or machines"
USAGE = "ACTION NAME"
EXAMPLES = (
    ("official-trainer job status digits-cnn-1a2b3c4d", "the state of a job; the beginning of its name is enough"),
    ("official-trainer job logs digits-cnn-1a2b3c4d", "what it has printed"),
    ("official-trainer job cancel digits-cnn-1a2b3c4d", "end it, or remove what is left of it"),
)
NEXT = ("official-trainer eval --model_dir=runs/digits", "evaluate the run")

ACTIONS = ("status", "logs", "cancel")
_INTERRUPTED = 130


def add_flags(parser: flags.Parser) -> None:
    """Declares the action and the job."""
    parser.group("Action and job")
    parser.positional("action", "ACTION", f"one of {', '.join(ACTIONS)}")
    parser.positional("name", "NAME", "name of the job, or its beginning")
    parser.output_group()


def run(arguments: argparse.Namespace) -> int:
    """Runs the scheduler's command in the folder of the job, and returns its exit code.

    Raises:
      UsageError: the action does not exist.
      RecordError: the job does not exist, or its record cannot be read.
      SchedulerError: the scheduler's program is missing.
    """
    if arguments.action not in ACTIONS:
        near = did_you_mean(arguments.action, ACTIONS) if arguments.action else ""
        wrong = f"'{arguments.action}' is no action of job" if arguments.action else "job needs an action"
        raise UsageError(f"{wrong}; actions: {', '.join(ACTIONS)}{near}")
    folder = launches.find(submit.root(arguments), arguments.name or "")
    argv = getattr(launches.read(folder), arguments.action)
    if shutil.which(argv[0]) is None:
        raise SchedulerError(f"{argv[0]} is not on the PATH; run this where the job was submitted")
    try:
        code = subprocess.run(argv, cwd=folder, check=False).returncode
    except KeyboardInterrupt:  # the usual way to leave; the program has got the signal too
        return _INTERRUPTED
    return _INTERRUPTED if code == -signal.SIGINT else code
