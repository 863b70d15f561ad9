"""Exports of a run in several formats."""

from official_trainer.tasks.export import FORMAT_FILES
from tests import ROOT
from tests.support.forked import run_command

ALL = ("saved_model", *FORMAT_FILES)


def export(run, folder, formats, *words):
    return run_command(
        ["export", f"--model_dir={run}", f"--format={','.join(formats)}", *words], cwd=ROOT, folder=folder
    )
