"""The verbs: those of the core, a module each in this folder, and those that installed packages add.

Owns: finding them, and the parser of each. `sweep`, `launch`, `job`, `compare`, `report` and `find-lr` are
found as another package's: by the entry points `official_trainer.verbs`, each the name of a verb and its module.
Does not own: what a verb does, and what becomes of its errors (`cli/dispatch.py`).

A verb is a module with a docstring and the names below. The docstring's first line is in the overview; all of it up to
`Owns:` is in the verb's help.

    GROUP: str                                its title in the overview, one of `help_text.GROUPS` or another one
    USAGE: str                                what follows the verb in its help
    EXAMPLES: tuple[tuple[str, str], ...]     commands, and what each does
    NEXT: tuple[str, str]                     the command that people use after this, and what it does
    add_flags(parser: official_trainer.cli.flags.Parser) -> None
    run(arguments: argparse.Namespace) -> int

It may also have

    ORDER: int                                its number in its group; the others follow by name
    IN_WORKSPACE: bool                        whether it runs in the folder of the workspace, where a relative path of a
                                              config means the same from every folder
    OF_A_RUN: bool                            whether it takes the directory of a run in place of an experiment
    more_help(arguments: argparse.Namespace) -> Iterator[str]    lines of its help about what is named with it

A package adds a verb in its pyproject.toml:

    [project.entry-points."official_trainer.verbs"]
    audit = "my_package.audit"

A verb whose work the workers of a job can share is named in `launch/job_spec.py`, and has

    add_worker_flags(parser: official_trainer.cli.flags.Parser) -> None      its own flags that each worker gets
    worker_command(arguments: argparse.Namespace) -> tuple[list[str], str, float]
                                              the words after the verb, the directory that the workers share, and how
                                              many seconds one may save after SIGTERM; refuses what they would refuse
"""

from __future__ import annotations

import contextlib
import importlib
import os
import types
from collections.abc import Iterable, Mapping

from official_trainer.cli import help_text
from official_trainer.cli.flags import Parser
from official_trainer.errors import UserError

ENTRY_POINTS = "official_trainer.verbs"
_NO_GROUP = "Other verbs"


def own_names() -> tuple[str, ...]:
    """Returns the verbs of this folder, in alphabetical order."""
    here = os.path.dirname(os.path.abspath(__file__))
    names = sorted(name.removesuffix(".py") for name in os.listdir(here) if name.endswith(".py"))
    return tuple(name.replace("_", "-") for name in names if name != "__init__")


def names() -> tuple[str, ...]:
    """Returns all verbs, in alphabetical order."""
    from official_trainer.config import installed  # which needs packages that `doctor` may have to name

    return tuple(sorted({*own_names(), *(point.name for point in installed.points(ENTRY_POINTS))}))


def load(name: str) -> types.ModuleType | None:
    """Imports one verb alone, to start fast; None if there is no such verb.

    Raises:
      PackageError: an installed package names it, and its module cannot be imported; or two packages do.
    """
    if name in own_names():  # before the metadata of packages is read
        return importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
    from official_trainer.config import installed

    return installed.load(ENTRY_POINTS, name, f"the verb {name}")


def load_some(wanted: Iterable[str]) -> dict[str, types.ModuleType]:
    """Imports the verbs of `wanted` that can be imported, such as all `names`."""
    modules: dict[str, types.ModuleType] = {}
    for name in wanted:
        with contextlib.suppress(UserError):
            if (module := load(name)) is not None:
                modules[name] = module
    return modules


def parser_of(module: types.ModuleType, program: str) -> Parser:
    """Returns the parser of a verb, which is called as `program`."""
    parser = Parser(program, usage=module.USAGE, description=help_text.description(module))
    module.add_flags(parser)
    return parser


def help_line(module: types.ModuleType) -> str:
    """Returns the help line of a verb."""
    return (module.__doc__ or "").partition("\n")[0]


def by_group(modules: Mapping[str, types.ModuleType]) -> dict[str, list[str]]:
    """Returns the names of verbs by the title of their group, in the order of the overview."""
    groups: dict[str, list[str]] = {title: [] for title in help_text.GROUPS}
    for name in sorted(modules, key=lambda name: (getattr(modules[name], "ORDER", len(modules)), name)):
        groups.setdefault(getattr(modules[name], "GROUP", _NO_GROUP), []).append(name)
    return {title: names for title, names in groups.items() if names}


def help_lines() -> dict[str, dict[str, str]]:
    """Returns the help line of each verb that can be imported, by the title of its group."""
    modules = load_some(names())
    groups = by_group(modules)
    return {title: {name: help_line(modules[name]) for name in group} for title, group in groups.items()}
