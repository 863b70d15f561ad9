"""The launcher, for a job of scripted processes: `python -m tests.support.processes.launcher FOLDER JSON`."""

import json
import os
import sys
from pathlib import Path

from official_trainer.cli import process
from official_trainer.launch.verbs import launch as verb
from official_trainer.processes import forked, local
from official_trainer.processes.attempt import Options
from official_trainer.processes.job import JobProcesses, Role
from official_trainer.processes.output import Printer


def main(folder, wanted):
    roles = tuple(
        Role(
            name=name,
            count=count,
            argv=("tests.support.processes.scripted_role", folder, json.dumps(wanted["sources"])),
        )
        for name, count in wanted["counts"].items()
    )
    job = JobProcesses(roles=roles, grace_seconds=wanted["grace_seconds"])

    def newest():
        steps = [int(path.name.removeprefix("step-")) for path in Path(folder).glob("step-*")]
        return max(steps, default=None)

    forked.preload(*wanted["options"].pop("preload"))
    with process.outliving_reader():
        printer = Printer(sys.stdout, log_dir=wanted["log_dir"], paint=verb.paint_label)
        outcome = local.launch(job, Options(newest_step=newest, **wanted["options"]), printer)
    verb.report(outcome)
    assert "tensorflow" not in sys.modules
    sys.stdout.flush()
    os._exit(outcome.code)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
