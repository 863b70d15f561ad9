"""What a shell offers at the Tab key: verbs, flags, experiments, settings, and the words that each may be.

Owns: the candidates. Does not own: the talk with bash, zsh and fish (argcomplete), the flags (each verb declares its
own), the fields (`config/explain.py`).

A person waits for the answer, so TensorFlow is not imported. An experiment whose module needs it is offered the
settings that every experiment has.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from official_trainer.cli import target, verbs
from official_trainer.cli.parser import Parser
from official_trainer.errors import UserError

if TYPE_CHECKING:
    from official_trainer.config import ExperimentConfig, Setting

_LAST_ITEM = re.compile(r"(.*[,;])?(.*)", re.DOTALL)


def answer() -> NoReturn:
    """Writes the candidates for the word at the cursor, as the script of argcomplete expects them, and exits."""
    import argcomplete

    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # an import of it fails at once
    # To argcomplete every word is a positional argument: the spellings of flags are known here.
    words = argparse.ArgumentParser(prefix_chars="\0", add_help=False)
    action: Any = words.add_argument("words", nargs="*")
    action.completer = lambda prefix, parsed_args, **_: candidates(parsed_args.words, prefix)
    argcomplete.autocomplete(words)
    raise AssertionError("argcomplete exits")


def candidates(words: Sequence[str], last: str) -> dict[str, str]:
    """Returns what the word at the cursor may become, each with its meaning.

    Args:
      words: those between the program and the cursor.
      last: the word at the cursor, up to it; may be empty.
    """
    is_of_other = words[:1] == ["help"] or (words[:1] == ["watch"] and len(words) > 1)
    name, *rest = (words[1:] if is_of_other else words) or [""]
    if not name:
        modules = verbs.load_some(verbs.names())
        return _beginning(last, {verb: verbs.help_line(module) for verb, module in modules.items()})
    try:
        if (module := verbs.load(name)) is None:
            return {}
        parser = verbs.parser_of(module, name)
        before = parser.waiting(rest)
        arguments = parser.read(["--help", *(rest[:-1] if before else rest)])  # with --help, mistakes do not matter
        arguments.home = None
        spelled, equals, text = last.partition("=")
        if before:
            return _of_value(parser, before, arguments, last)
        if equals and (flag := parser.waiting([spelled])):
            return _after(f"{spelled}=", _of_value(parser, flag, arguments, text))
        if last.startswith("--") and "." in spelled and hasattr(arguments, "set"):
            return _after("--", _settings(arguments, last.removeprefix("--")))
        if not last.startswith("-"):  # the next positional argument, or else a setting
            names = [action.dest for action in parser.shown() if not action.option_strings]
            given = {"name"} if getattr(arguments, "experiment", None) else set()
            free = next((name for name in names if not getattr(arguments, name) and name not in given), None)
            found = _of_value(parser, free, arguments, last) if free else {}
            return found if found or not hasattr(arguments, "set") else _settings(arguments, last)
        shown = [action for action in parser.shown() if action.option_strings]
        ends = ["" if each.nargs in (0, "?") else "=" for each in shown]
        offered = {each.option_strings[-1] + end: each.help or "" for each, end in zip(shown, ends, strict=True)}
        return _beginning(last, offered)
    except UserError:
        return {}


def _beginning(start: str, found: Mapping[str, str]) -> dict[str, str]:
    return {candidate: meaning for candidate, meaning in found.items() if candidate.startswith(start)}


def _after(start: str, found: Mapping[str, str]) -> dict[str, str]:
    return {f"{start}{candidate}": meaning for candidate, meaning in found.items()}


def _of_value(parser: Parser, name: str, arguments: argparse.Namespace, text: str) -> dict[str, str]:
    """Returns candidates for the value of a flag or of a positional argument."""
    metavar = next((action.metavar for action in parser.shown() if action.dest == name), None)
    if parser.choices[name]:
        return _beginning(text, dict.fromkeys(parser.choices[name], ""))
    if name == "experiment" or metavar == "EXPERIMENT":
        from official_trainer.garden import index
        from official_trainer.tasks import registry

        known = {**registry.named(target.workspace(arguments), target.imports(arguments)), **index.entries()}
        found = {name: experiment.summary for name, experiment in known.items()}
        return {**_beginning(text, found), **(_paths(text) if os.sep in text else {})}
    if metavar in ("DIR", "FILE"):
        return _paths(text)
    if name == "params_override":
        before, item = _LAST_ITEM.fullmatch(text).groups(default="")  # type: ignore[union-attr]
        return _after(before, _settings(arguments, item))
    if name == "set":
        return _settings(arguments, text)
    if name == "explain":
        return {path.removesuffix("="): meaning for path, meaning in _settings(arguments, text).items()}
    return {}


def _paths(text: str) -> dict[str, str]:
    home = os.path.expanduser(text)
    found = glob.glob(f"{glob.escape(home)}*")
    return {text + path[len(home) :] + (os.sep if os.path.isdir(path) else ""): "" for path in found}


def _settings(arguments: argparse.Namespace, text: str) -> dict[str, str]:
    """Returns the settings that begin with `text`, as far as the next section; after `=`, the words of the field."""
    from official_trainer import config

    path, equals, _ = text.partition("=")
    known = list(config.settings(_config(arguments)))
    if equals:
        words = [word for setting in known if setting.path == path for word in setting.words]
        return _beginning(text, {f"{path}={word}": "" for word in words})
    found = _next_parts(known, text)
    while found and all(candidate.endswith(".") for candidate in found):
        found = {each: meaning for section in found for each, meaning in _next_parts(known, section).items()}
    # Values first: by the first candidate, argcomplete's script for zsh decides whether a space follows.
    return dict(sorted(found.items(), key=lambda each: each[0].endswith(".")))


def _next_parts(known: Iterable[Setting], text: str) -> dict[str, str]:
    """Returns the settings that begin with `text`; those inside a section as one, which ends with a dot."""
    found: dict[str, str] = {}
    for setting in known:
        if setting.path.startswith(text):
            end = setting.path.find(".", len(text)) + 1
            found.setdefault(setting.path[:end] if end else f"{setting.path}=", "" if end else setting.meaning)
    return found


def _config(arguments: argparse.Namespace) -> ExperimentConfig:
    """Returns the configuration of the experiment that is named, changed by the other words as far as they can be read.

    If it cannot be had without TensorFlow, or its module fails, the fields that every experiment has.
    """
    from official_trainer.config import ExperimentConfig
    from official_trainer.garden import index
    from official_trainer.tasks import registry

    name = arguments.experiment or arguments.name
    if name and (name not in index.entries() or index.is_described(name)):
        with contextlib.suppress(Exception):  # an incomplete setting, or a module of the user's
            return target.resolve(name, arguments).config
        with contextlib.suppress(Exception):
            return registry.get_config(name, target.workspace(arguments), target.imports(arguments))
    return ExperimentConfig()
