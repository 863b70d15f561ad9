"""Which formats the models of runs can have: `python -m official_trainer.formats RUN [RUN …]`.

Owns: a table of runs and formats, yes with the difference from the model, or no with the reason.
Does not own: writing and comparing (`writing.py`). Nothing is kept, and no run directory is changed.

Each run has a process of its own, because a process has one Keras, and its experiment is searched in the workspace that
it ran in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import get_args

from official_trainer import config, files
from official_trainer.config.schema import ExportFormat
from official_trainer.errors import UserError, describe_error
from official_trainer.formats.kinds import missing
from official_trainer.formats.shown import measured
from official_trainer.runs import recorded
from official_trainer.runs.job import Job
from official_trainer.runs.run import import_tensorflow
from official_trainer.tasks import registry

FORMATS: Sequence[str] = get_args(ExportFormat)


class NotARunError(UserError, LookupError):
    """A folder that is no run directory."""


def tried(run_dir: str) -> dict[str, str]:
    """Returns what comes of each format of the newest checkpoint of a run: `yes: …` or `no: …`."""
    found = dict.fromkeys(FORMATS, "")
    for name in FORMATS:
        for what, fix in missing([name]):
            found[name] = f"no: {what}; {fix}"
    run = recorded.read(run_dir, now_seconds=0.0)
    if run.experiment is None:
        raise NotARunError(f"{run_dir} does not say which experiment it is of, so its model cannot be built")
    experiment, workspace = run.experiment, run.record.get("workspace") or registry.find_workspace()
    base = registry.get_config(experiment, workspace, run.record.get("imports") or [])
    resolved = config.resolve(base, experiment=experiment, config_files=[files.join(run_dir, files.PARAMS_FILE)])
    job = Job(experiment=experiment, resolved=resolved, model_dir=run_dir, mode="export", quiet=True)
    import_tensorflow(quiet=True)
    from official_trainer.formats.writing import Formats
    from official_trainer.runs.chosen_checkpoint import build_at
    from official_trainer.tasks import export

    trainer, step = build_at(job, "latest")
    with trainer.weights_averaged(), tempfile.TemporaryDirectory() as work:
        folder = files.join(work, str(step))
        export.save(folder, trainer.task, trainer.model, step=step)
        formats = Formats(trainer, folder, experiment, job.config.trainer.export.max_difference)
        made = formats.write([name for name in FORMATS if not found[name]])
    found |= {name: f"no: {why}" for name, why in made.failures.items()}
    for name, row in made.record["formats"].items():
        found[name] = measured(row) if "not_compared" in row else f"yes: {measured(row)}"
    return found


def rows(run_dirs: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the table, in Markdown."""
    yield "| run | format | is it the model? |"
    yield "|---|---|---|"
    for run_dir in run_dirs:
        command = [sys.executable, "-m", "official_trainer.formats", "--json", run_dir]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            found = {"all": f"no: {lines[-1]}"}
        else:
            found = json.loads(done.stdout.strip().splitlines()[-1])
        for name, outcome in found.items():
            cell = outcome.replace("|", "\\|")
            yield f"| {os.path.basename(run_dir.rstrip('/'))} | {name} | {cell} |"


def main(words: Sequence[str]) -> int:
    """Prints the table; returns the exit code."""
    if not words or words[0].startswith("--h"):
        print(__doc__)
        return 0 if words else 2
    if words[0] == "--json":
        try:
            print(json.dumps(tried(words[1])))
        except UserError as error:
            print(describe_error(error).replace("\n", " "), file=sys.stderr)
            return int(error.exit_code)
        return 0
    for line in rows(words):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
