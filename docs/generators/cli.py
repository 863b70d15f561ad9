"""The page `docs/reference/cli.md`, from the flags that each verb declares.

Owns: the layout. Does not own: flags, descriptions and examples; they stand in `official_trainer/cli`.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Iterator

from official_trainer.cli import dispatch
from official_trainer.cli.parser import Parser

_HEAD = """\
# Command line

`official-trainer VERB --help` prints the same. `python train.py` is `official-trainer train` with the folder of
`train.py` as the workspace. Flags are spelled as absl's: `--flag=value`, `--flag value`, `-flag`, `--noflag`;
`--flagfile=FILE` reads flags from a file, one a line.
"""


def page() -> str:
    """Returns the page."""
    verbs = dispatch.verbs()
    contents = [f"| [`{name}`](#{name}) | {dispatch.help_line(module)} |" for name, module in verbs.items()]
    table = "\n".join(["| verb | what it does |", "|---|---|", *contents])
    return "\n\n".join([_HEAD.strip(), table, *("\n\n".join(_verb(*verb)) for verb in verbs.items())]) + "\n"


def _verb(name: str, module: types.ModuleType) -> Iterator[str]:
    parser = Parser(f"official-trainer {name}", usage=module.USAGE, description=dispatch.help_line(module))
    module.add_flags(parser)
    yield f"## {name}"
    yield _markdown(parser.description or "")
    yield f"```text\n{parser.usage}\n```"
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS and action.dest != "help"]
    shown.sort(key=lambda action: bool(action.option_strings))  # what has no dashes comes first
    if shown:
        yield "\n".join(["| argument | meaning |", "|---|---|", *map(_row, shown)])
    if parser.epilog:
        yield _markdown(parser.epilog)


def _row(action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else str(action.metavar)
    value = f"={action.metavar}" if action.option_strings and action.nargs is None and action.metavar else ""
    meaning = (action.help or "").replace("|", "\\|").replace("<", "&lt;")
    return f"| `{name}{value}` | {_code(meaning)} |"


def _code(text: str) -> str:
    """Returns text with its flags and overrides as code."""
    return re.sub(r"(?<![`\w])(--\w+(?:=\w+)?)", r"`\1`", text) if "`" not in text else text


def _markdown(text: str) -> str:
    """Returns the text of a help page, whose indented lines are commands."""
    return re.sub(r"((?:^ +\S.*\n?)+)", lambda found: f"```sh\n{found[1].rstrip()}\n```\n", text, flags=re.MULTILINE)
