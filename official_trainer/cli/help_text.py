"""What `--help` prints: the overview of all verbs, the help of one, and the settings of an experiment.

Owns: the order and the groups of the overview, the layout of a verb's help and of an experiment's settings, 80 columns.
Does not own: the texts. Each verb has its own, as `dispatch.py` says; those of settings come from `config/explain.py`.
"""

from __future__ import annotations

import argparse
import itertools
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from official_trainer.shown import shorten

if TYPE_CHECKING:
    from official_trainer.config import Setting

WIDTH = 80
GROUPS = (
    "Start with these, in this order",
    "Find settings, and compare runs",
    "Use a trained model",
    "Use several processes or machines",
    "Set up this machine",
)
"""The titles of the overview, in their order; those of verbs of other packages follow."""

_BELOW = " " * 6
_LEAST_VALUE = 20
_HELP_COLUMN = 28  # wide enough for most flags, so that most meanings fit on one line
_MORE = {
    "official-trainer VERB --help": "flags, examples, and the command after it",
    "official-trainer train --help NAME": "the settings of an experiment",
    "official-trainer --version": "the version",
    "docs/index.md in the repository": "quickstart, guides and reference",
}


class Formatter(argparse.HelpFormatter):
    """Argparse's layout, always 80 columns wide, with `--flag=VALUE` as in the examples."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{action.option_strings[0]}={action.metavar}"


def wrap_usage(prog: str, usage: str) -> str:
    """Returns the usage of a program in lines of at most 80 columns; what is in brackets stays together."""
    lines, indent = [prog], " " * len("usage: ")
    for part in re.findall(r"\[[^]]*]\S*|[^\s[]\S*", usage):
        if len(f"{indent}{lines[-1]} {part}") > WIDTH:
            lines.append("   ")
        lines[-1] += f" {part}"
    return f"\n{indent}".join(lines)


def description(module: types.ModuleType) -> str:
    """Returns the description of a verb: its docstring up to `Owns:`."""
    return " ".join((module.__doc__ or "").partition("Owns:")[0].split())


def overview(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the overview of all verbs.

    Args:
      groups: the help line of each verb, by the title of its group.
    """
    about = (
        "Trains, evaluates, checks and exports the experiments of a workspace "
        "(the folder that holds experiments/) and of Model Garden."
    )
    text = ["usage: official-trainer VERB [flags]", "", *textwrap.wrap(about, WIDTH)]
    for title, lines in {**groups, "More": _MORE}.items():
        width = max(map(len, lines if title == "More" else itertools.chain(*groups.values())))
        text += ["", f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in lines.items())]
    return "\n".join(text)


def verb_help(parser: argparse.ArgumentParser, module: types.ModuleType, arguments: argparse.Namespace) -> str:
    """Returns the help of a verb: usage, description, flags, examples, and what is used after it.

    Args:
      parser: has the flags of the verb.
      module: the verb.
      arguments: what is given with `--help`; for a target of `launch`, or an action of `job`, its examples are shown,
        and what the verb itself has to say of it.
    """
    first = getattr(arguments, "target", None) or getattr(arguments, "action", None)
    examples: Sequence[tuple[str, str]] = module.EXAMPLES
    about_first = [(command, why) for command, why in examples if first and command.split()[2:3] == [first]]
    more = module.more_help(arguments) if hasattr(module, "more_help") else ()
    text = [parser.format_help().rstrip(), *more, "", "Examples:"]
    for command, why in about_first or examples:
        if parser.prog.endswith(".py"):  # a script that stands for a verb
            command = re.sub(r"^official-trainer \S+", parser.prog, command)
        lines = textwrap.wrap(
            command, WIDTH - 4, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        text += [f"  # {why}", "  " + " \\\n  ".join(lines)]  # which a shell reads as one
    command, why = module.NEXT
    return "\n".join([*text, "", f"Next: {command}  # {why}"])


def settings_help(prog: str, experiment: str, settings: Iterable[Setting]) -> str:
    """Returns the settings of an experiment by section: path and value on one line, type and meaning below.

    Args:
      prog: the command, which takes the settings.
      experiment: its name.
      settings: with the values that the command would use.
    """
    about = (
        f"Settings of {experiment}, each with its value. PATH=VALUE at the end of the command changes one. "
        f"`{prog} --help` lists the flags."
    )
    text = [f"usage: {prog} {experiment} [flags] [PATH=VALUE …]", "", *textwrap.wrap(about, WIDTH)]
    return "\n".join([*text, *_by_section("the experiment", settings, lambda setting: f"{setting.path}=")])


def fields_help(title: str, settings: Iterable[Setting]) -> Iterator[str]:
    """Returns the lines about the fields of a YAML file by section: name and default, type and meaning below.

    Args:
      title: above those that are in no section.
      settings: with their defaults.
    """
    return _by_section(title, settings, lambda field: f"{field.path.removeprefix(field.section).lstrip('.')}: ")


def _by_section(title: str, settings: Iterable[Setting], name: Callable[[Setting], str]) -> Iterator[str]:
    for section, those in itertools.groupby(settings, key=lambda setting: setting.section):
        yield from ("", f"{section or title}:")
        for setting in those:
            left = f"  {name(setting)}"
            yield left + shorten(setting.value, max(WIDTH - len(left), _LEAST_VALUE))
            what = f"{setting.kind}: {setting.meaning}" if setting.meaning else setting.kind
            yield from textwrap.wrap(what, WIDTH, initial_indent=_BELOW, subsequent_indent=_BELOW)
