"""The page `docs/reference/cli.md`, from what each verb declares.

Owns: the layout. Does not own: flags, descriptions and examples; they stand in `official_trainer/cli`.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Iterator, Mapping

from official_trainer.cli import help_text, verbs
from official_trainer.cli.parser import Parser

_HEAD = """\
# Command line

`official-trainer VERB --help` prints the same. `python train.py` is `official-trainer train` with the folder of
`train.py` as the workspace. Flags are spelled as absl's: `--flag=value`, `--flag value`, `-flag`, `--noflag`;
`--flagfile=FILE` reads flags from a file, one a line. `VERB --help EXPERIMENT`
[lists the settings](../guides/config.md#see-what-can-be-set) of an experiment."""


def page() -> str:
    """Returns the page."""
    loaded = verbs.load_some(verbs.names())
    names = [name for group in verbs.by_group(loaded).values() for name in group]
    sections = ["\n\n".join(_verb(name, loaded[name])) for name in names]
    return "\n\n".join([_HEAD, _contents(names, loaded), *sections]) + "\n"


def _contents(names: list[str], loaded: Mapping[str, types.ModuleType]) -> str:
    rows = [f"| [`{name}`](#{name}) | {verbs.help_line(loaded[name])} |" for name in names]
    return "\n".join(["| verb | what it does |", "|---|---|", *rows])


def _verb(name: str, module: types.ModuleType) -> Iterator[str]:
    parser = Parser(f"official-trainer {name}", usage=module.USAGE, description=help_text.description(module))
    module.add_flags(parser)
    yield f"## {name}"
    yield _code(parser.description or "")
    yield f"```text\n{parser.prog} {module.USAGE}\n```"
    parser.format_help()  # sorts the groups
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if each.help != argparse.SUPPRESS and each.dest != "help"]
        if actions:
            yield "\n".join([f"| {_code(group.title or '')} | |", "|---|---|", *map(_row, actions)])
            yield from [_code(group.description)] if group.description else []
    yield "Examples:"
    examples = "\n".join(f"# {why}\n{command}" for command, why in module.EXAMPLES)
    yield f"```text\n{examples}\n```"  # not `sh`: tests of the help try them, those of pages need not
    yield f"Next: `{module.NEXT[0]}`, {module.NEXT[1]}."


def _row(action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else str(action.metavar)
    value = f"={action.metavar}" if action.option_strings and action.nargs is None else ""
    value = f"[={action.metavar}]" if action.option_strings and action.nargs == "?" else value
    return f"| `{name}{value}` | {_code(action.help or '')} |"


def _code(text: str) -> str:
    """Returns text with its flags and overrides as code; what is in backticks stays."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|").replace("<", "&lt;"))
    flag = re.compile(r"--\w+(?:=[\w.=]*\w)?|\bPATH=VALUE\b|\b\w+\.\w+=\w+(?!\w|,)")
    return "".join(part if part.startswith("`") else flag.sub(r"`\g<0>`", part) for part in parts)
