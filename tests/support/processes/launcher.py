"""The launcher, for a job of scripted processes: `python -m tests.support.processes.launcher FOLDER JSON`."""

import json
import os
import sys
from pathlib import Path

from official_trainer.cli import process
from official_trainer.launch.verbs import launch as verb
from official_trainer.processes import local
from official_trainer.processes.attempt import Options
from official_trainer.processes.job import DATA_ROLES, JobProcesses, Role
from official_trainer.processes.output import Printer

FOLDER, WANTED = sys.argv[1], json.loads(sys.argv[2])

roles = tuple(
    Role(
        name=name,
        count=count,
        argv=("tests.support.processes.scripted_role", FOLDER, json.dumps(WANTED["sources"])),
        environ={"SERVES": name} if name in DATA_ROLES else {},
        ports=tuple(range(count)) if name in DATA_ROLES else (),
    )
    for name, count in WANTED["counts"].items()
)
job = JobProcesses(roles=roles, grace_seconds=WANTED["grace_seconds"])


def newest():
    steps = [int(path.name.removeprefix("step-")) for path in Path(FOLDER).glob("step-*")]
    return max(steps, default=None)


with process.outliving_reader():
    printer = Printer(sys.stdout, log_dir=WANTED["log_dir"], paint=verb.paint_label)
    outcome = local.launch(job, Options(newest_step=newest, **WANTED["options"]), printer)
verb.report(outcome)
assert "tensorflow" not in sys.modules
sys.stdout.flush()
os._exit(outcome.code)
