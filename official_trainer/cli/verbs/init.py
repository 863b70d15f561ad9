"""Write a new workspace with one example experiment and its tests.

No file is overwritten.

Owns: `init`: copies `template/` without ever overwriting a file. `template/launch` is a link to the
repository's `launch/`, so the profiles exist once; a wheel contains them as files.
Does not own: what a workspace is (`tasks/registry.py`).
"""

from __future__ import annotations

import argparse
import os
import shlex

from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError

GROUP = "Start with these, in this order"
ORDER = 1
USAGE = "DIR"
EXAMPLES = (("official-trainer init ~/my_workspace", "write a workspace to a folder, and say what to do in it"),)
NEXT = ("official-trainer list", "what can be run, once you are in the folder")

_RENAMED = {"gitignore": ".gitignore"}  # under its own name, it would apply to this repository and to the wheel
_LEFT_OUT = ("__pycache__", "examples")  # the examples are rendered for the repository's experiment
_REPOSITORY_EXPERIMENT, _EXPERIMENT = "digits_cnn", "my_experiment"


def add_flags(parser: flags.Parser) -> None:
    """Declares the arguments of `init`."""
    parser.group("Workspace")
    parser.positional("directory", "DIR", "folder of the new workspace; may exist")


def run(arguments: argparse.Namespace) -> int:
    """Writes the workspace, and prints what to do next.

    Raises:
      UsageError: no directory is named, a file is in the way, or one cannot be written.
    """
    if not arguments.directory:
        raise UsageError("name the folder of the new workspace: official-trainer init DIR")
    directory = os.path.expanduser(arguments.directory)
    files = _template()
    taken = [name for name in files if os.path.lexists(os.path.join(directory, name))]
    if taken:
        raise UsageError(
            f"{arguments.directory} already has {', '.join(taken)}; nothing was written. Name another folder."
        )
    try:
        for name, text in files.items():
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}; name a folder that can be written") from error
    print(_next_steps(directory, list_of_files=sorted(files)))
    return 0


def _template() -> dict[str, str]:
    """Returns the text of each file of a new workspace, by its path there; its commands name the new experiment."""
    root = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "template")
    files = {}
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, _RENAMED.get(name, name)), root)
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                files[path] = file.read().replace(_REPOSITORY_EXPERIMENT, _EXPERIMENT)
    return files


def _next_steps(directory: str, list_of_files: list[str]) -> str:
    steps = [
        ("official-trainer list", "what can be run"),
        ("official-trainer check my_experiment", "try every part of it"),
        ("python train.py --experiment=my_experiment", "train it"),
        ("pytest", "see that it learns, and resumes exactly"),
    ]
    enter = [] if os.path.abspath(directory) == os.getcwd() else [(f"cd {shlex.quote(directory)}", "")]
    lines = [f"  {command:<46}  {terminal.paint(why, 'dim')}".rstrip() for command, why in [*enter, *steps]]
    written = [f"  {name}" for name in list_of_files]
    return "\n".join([f"Wrote a workspace to {directory}:", *written, "", "Next:", *lines])
