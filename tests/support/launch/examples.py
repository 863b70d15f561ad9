"""What the commands of `launch/README.md` print, kept in `launch/examples/`; `rendered.py` writes them."""

import contextlib
import dataclasses
import re
import shlex
import sys
from pathlib import Path

from official_trainer.cli import flags
from official_trainer.launch import submit, targets
from official_trainer.launch.spec import Code, in_copy
from official_trainer.launch.verbs import launch
from tests import ROOT

FOLDER = ROOT / "launch" / "examples"
WORKSPACE = "/shared/workspace"
PYTHON = f"{WORKSPACE}/.venv/bin/python"


def commands():
    """Returns the words after `official-trainer launch` of each command in the README."""
    found = re.findall(r"^official-trainer launch (.*)$", (ROOT / "launch/README.md").read_text(), flags=re.MULTILINE)
    return [shlex.split(line) for line in found]


def rendered(words):
    """Returns the profile's name and what the engine gets, as in a workspace at WORKSPACE."""
    parser = flags.Parser("launch", usage="", description="")
    launch.add_flags(parser)
    arguments = parser.read(words)
    arguments.home = None
    engine, job = submit.checked(arguments, targets.get(arguments.target))
    job = in_workspace(engine, job)
    assert not [*engine.problems(job)]
    return Path(arguments.profile).stem, engine.render(job).files


def in_workspace(engine, job):
    """Returns a job as it is submitted in WORKSPACE, with the code that its target copies from there."""
    job = dataclasses.replace(job, cwd=WORKSPACE)
    if not engine.copies_code:
        return job
    folder = f"{WORKSPACE}/launches/{job.name}/code-0123456789ab"
    return in_copy(job, Code(commit="0123456789ab" * 3 + "0123", workspace=WORKSPACE, folder=folder), [])


def texts():
    """Returns the text of each example by its file name: `PROFILE.suffix`, or `PROFILE.FILE` for one of several."""
    found = {}
    with contextlib.chdir(ROOT):
        for words in commands():
            if words[0] != launch.LOCAL:
                name, files = rendered(words)
                for file, text in files.items():
                    end = Path(file).suffix if len(files) == 1 else f".{file}"
                    found[name + end] = text.replace(sys.executable, PYTHON)
    return found
