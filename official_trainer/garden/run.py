"""`python -m official_trainer.garden.run official.vision.train FLAGS`: its command on this engine.

Owns: which programs are Model Garden's driver, by their source and without an import; the words of our `train` that
such a command means. Does not own: what a flag means and who refuses it (`cli/`), programs that have a driver of their
own (`program/run_experiment.py`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from official_trainer.errors import ExitCode, UserError
from official_trainer.garden.index import PACKAGE
from official_trainer.nearest import did_you_mean

_DRIVERS = (f"{PACKAGE}.vision.train", f"{PACKAGE}.nlp.train")
"""The programs whose `main` other programs call."""
_FLAGS = f"{PACKAGE}.common.flags"
_USAGE = f"python -m official_trainer.garden.run {_DRIVERS[0]} --experiment=NAME --mode=MODE --model_dir=DIR"


class ProgramError(UserError, ValueError):
    """A program that this engine cannot run in place of Model Garden's driver."""

    exit_code = ExitCode.CONFIG


def train_words(words: Sequence[str]) -> list[str]:
    """Returns the words of `official-trainer` for those of `python -m`, which begin with the program.

    Raises:
      ProgramError: there is no such program, or it is not Model Garden's driver.
    """
    if not words or words[0].startswith("-"):
        raise ProgramError(f"name the program before its flags: {_USAGE}\n`official-trainer train --help` lists them")
    program, *rest = words
    module = _module_of(program)
    path = _path(module)
    if path is None:
        near = did_you_mean(module, _DRIVERS)
        raise ProgramError(f"{program}: there is no such module{near}\nthe command is: {_USAGE}")
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:  # also what is no text
        raise ProgramError(f"{path}:{error.lineno or 1}: cannot be read as Python: {error.msg}") from error
    names = _imported(tree)
    is_theirs = module.startswith(f"{PACKAGE}.")
    calls = [(_dotted(node.func, names), node.args) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    mains = {_dotted(arguments[0], names) for called, arguments in calls if called == "absl.app.run" and arguments}
    if is_theirs and module.endswith(".train") and (f"{_FLAGS}.define_flags", []) in calls:
        return ["train", *rest]  # experiments of the release are found by name
    if mains & {f"{driver}.main" for driver in _DRIVERS}:
        return ["train", f"--import={module}", *rest]
    if is_theirs:
        fix = "this engine runs the experiments of the release by name: `official-trainer list --all`"
    else:
        fix = (
            "what it does beside that would be left out: call `official_trainer.run_experiment` in it, or train with "
            "`official-trainer train --import=MODULE`, the module that registers its experiments"
        )
    raise ProgramError(f"{path}: this is not a program that runs `main` of {' or '.join(_DRIVERS)}; {fix}")


def _module_of(program: str) -> str:
    """Returns the module for the program of a command. A file of another folder is importable from then on.

    Python looks beside a file that it runs for what the file imports, such as packages `configs` and `tasks`.
    """
    if not program.endswith(".py"):
        return program
    file = Path(program).resolve()
    if not file.is_file():
        return program.removesuffix(".py").replace(os.sep, ".")
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    top, *inner = file.relative_to(root).with_suffix("").parts
    if top != PACKAGE and root != Path.cwd():
        if other := next((each for each in (Path(f"{top}.py"), Path(top, "__init__.py")) if each.is_file()), None):
            raise ProgramError(f"{program}: {other} of this folder has the same name; start the program in {root}")
        sys.path.insert(0, str(root))
    return ".".join([top, *inner])


def _path(module: str) -> Path | None:
    """Returns the file of a module without importing the packages around it, which import TensorFlow."""
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None:
        return None
    if not inner:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    places = [Path(place, *inner).with_suffix(".py") for place in spec.submodule_search_locations or ()]
    return next((place for place in places if place.is_file()), None)


def _imported(tree: ast.Module) -> dict[str, str]:
    """Returns what each name stands for that a module imports: `{"tfm_flags": "official.common.flags"}`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Returns the whole name of what an expression such as `train.main` refers to; empty if it is no name."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    # By its name, because the command line is above this package; no module imports this one.
    raise SystemExit(importlib.import_module("official_trainer.cli").main(translate=train_words))
