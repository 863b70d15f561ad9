"""Exports of a run in several formats, and the rows that `predict` writes."""

import json

import numpy as np

from official_trainer.tasks.export import FORMAT_FILES
from tests import ROOT
from tests.support.forked import run_command

ALL = ("saved_model", *FORMAT_FILES)


def export(run, folder, formats, *words):
    return run_command(
        ["export", f"--model_dir={run}", f"--format={','.join(formats)}", *words], cwd=ROOT, folder=folder
    )


def rows(run, folder, *words):
    """Returns the outputs that `predict` writes, by name."""
    output = folder / "rows"
    done = run_command(
        ["predict", f"--model_dir={run}", "--format=jsonl", f"--output={output}", *words], cwd=ROOT, folder=folder
    )
    assert done.code == 0, done.err
    found = [json.loads(line) for path in sorted(output.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return {name: np.array([row[name] for row in found]) for name in found[0]}
