"""The parser with which each verb declares its flags, and the spellings that it accepts, which are those of absl.

Owns: `-flag`, `--flag value`, `--noflag`, `--flag=false`, dashes for underscores, `--flagfile`, `--undefok`, the two
short forms of `--set`: `path=value` and `--path.to.field=value`; flags of launch scripts that have no effect here, or
that ask for something else than a run. Does not own: the flags (`flags.py` and each verb).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_trainer import files
from official_trainer.cli import help_text
from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import did_you_mean

_OUTPUT = "Output and help"
_FLAG = re.compile(r"--?[A-Za-z]")
_OVERRIDE = re.compile(r"[^-/=][^/=]*=")
# As in `config.limits`, which cannot be imported here: `doctor` runs where nothing is installed.
_MOST_FLAGFILES, _MOST_BYTES = 100, 1 << 20
_SWITCH_VALUES = {
    **dict.fromkeys(("true", "t", "yes", "y", "1", "on"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0", "off"), False),
}
_OF_LEVELS = ("v", "verbosity", "stderrthreshold", "logger_levels")
_OF_GARDEN = ("tpu_platform", "tfhub_handle", "tflex_output_uri")
_OF_HUB = ("tfhub_cache_dir", "tfhub_model_load_format")
_LEVELS, _UNREAD = "there are no levels of messages", "nothing reads it in Model Garden's open source version either"
_DEBUGGER = "`python -m pdb -m official_trainer VERB …` starts a debugger"
_PROFILER = "`python -m cProfile -o FILE -m official_trainer VERB …` profiles Python, the action `profile` steps"
_IDLE = {
    **dict.fromkeys(("logtostderr", "alsologtostderr"), "messages always go to standard error"),
    **dict.fromkeys(("showprefixforinfo", *_OF_LEVELS), _LEVELS),
    **dict.fromkeys(_OF_GARDEN, _UNREAD),
    "log_dir": "messages go to standard error alone; `2> FILE` keeps them",
    "use_cprofile_for_profiling": "no flag profiles",
}
"""Flags that launch scripts have: accepted, and why each does nothing."""
_INSTEAD = {
    **dict.fromkeys(("pdb", "run_with_pdb", "pdb_post_mortem"), _DEBUGGER),
    **dict.fromkeys(("run_with_profiling", "profile_file"), _PROFILER),
    "only_check_args": "`official-trainer check` tries everything with the same flags, and trains nothing",
    "helpxml": "`--help` prints text",
    "pretrain_steps": "`trainer.continuous_eval_timeout` says how long to wait for one more checkpoint",
    **{name: f"set {name.upper()} in the environment" for name in _OF_HUB},
}
"""Flags that ask for something else than a run: refused, and what does it."""
_WITH_VALUE = {*_OF_LEVELS, *_OF_GARDEN, *_OF_HUB, "log_dir", "profile_file", "pretrain_steps"}
"""Those of both that take a value."""
_Kind = Literal["value", "values", "optional", "switch"]


class UsageError(UserError, ValueError):
    """A command line that cannot be read."""

    exit_code = ExitCode.CONFIG


class Parser(argparse.ArgumentParser):
    """An argparse parser with absl's spellings, which reports all problems of a command line at once."""

    def __init__(self, prog: str, *, usage: str, description: str) -> None:
        super().__init__(
            prog,
            usage=help_text.wrap_usage(prog, usage),
            description=description,
            formatter_class=help_text.Formatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.epilog = ""
        self._commands: tuple[str, ...] = ()
        self._kinds: dict[str, _Kind] = {}
        self._choices: dict[str, Sequence[str]] = {}
        self._position_names: list[str] = []
        self._rest_name = ""
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        self._group: argparse._ActionsContainer
        self.output_group()
        self.switch("help", "show this text and exit (also -h)")
        self._group = self

    def group(self, title: str, note: str | None = None) -> None:
        """Puts the flags that are declared from here on below a title; a title may come again.

        Args:
          title: says what the flags are for.
          note: a sentence below the title.
        """
        if title not in self._groups:
            self._groups[title] = self.add_argument_group(title, note)
        self._group = self._groups[title]

    def output_group(self) -> None:
        """Puts the flags that are declared from here on below the last title, that of what is printed."""
        self.group(_OUTPUT)

    def format_help(self) -> str:
        """Returns usage, description and flags; the group of `--help` is the last, although it is declared first."""
        self._action_groups.sort(key=lambda group: group.title == _OUTPUT)
        return super().format_help()

    def value(self, name: str, metavar: str, help: str, *, repeat: bool = False, choices: Sequence[str] = ()) -> None:
        """Declares `--name=METAVAR`, None by default; the last value counts, or all of them with `repeat`.

        Other words than its `choices` are refused.
        """
        self._kinds[name] = "values" if repeat else "value"
        self._choices[name] = choices
        self._group.add_argument(f"--{name}", metavar=metavar, help=help)

    def optional_value(self, name: str, metavar: str, help: str) -> None:
        """Declares `--name` and `--name=METAVAR`, None by default; the former is an empty text."""
        self._kinds[name] = "optional"
        self._group.add_argument(f"--{name}", metavar=metavar, help=help, nargs="?")

    def switch(self, name: str, help: str, *, default: bool | None = False) -> None:
        """Declares `--name` and `--noname`; the help shows the one that changes the default."""
        self._kinds[name] = "switch"
        flag = f"--no{name}" if default else f"--{name}"
        self._group.add_argument(flag, dest=name, action="store_const", const=not default, default=default, help=help)

    def note(self, text: str) -> None:
        """Adds a sentence below the flags of the help."""
        self.epilog = f"{self.epilog} {text}".strip()

    def accept_command(self, *names: str) -> None:
        """Accepts a `--` before the flags of the command that the verb starts, and after it the name of the command.

        `read` returns the name as `command`; the first one if none is given.
        """
        self._commands = names

    def positional(self, name: str, metavar: str, help: str) -> None:
        """Declares a positional argument, None by default."""
        self._position_names.append(name)
        self._group.add_argument(name, metavar=metavar, nargs="?", help=help)

    def positionals(self, name: str, metavar: str, help: str) -> None:
        """Declares that any number of positional arguments may follow; an empty list by default."""
        self._rest_name = name
        self._group.add_argument(name, metavar=metavar, nargs="*", default=[], help=help)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Reads `argv`.

        Returns:
          Its values by the names of the flags; `idle` has a line for each flag that is accepted and does nothing.

        Raises:
          UsageError: a flag that is unknown, without a value or with a wrong one; an argument too many.
        """
        command, argv = self._commands[:1], list(argv)
        if self._commands and "--" in argv:
            place = argv.index("--")  # which separates the flags of the command for readers, and for its name
            command = tuple(word for word in argv[place + 1 : place + 2] if word in self._commands) or command
            argv[place : place + 1 + (argv[place + 1 : place + 2] == [*command])] = []
        words = _Words(self._kinds)
        words.read("--help" if word in ("-h", "-?", "--helpfull", "--helpshort") else word for word in argv)
        defaults = {action.dest: action.default for action in self._actions}
        arguments = argparse.Namespace(**defaults | words.values, idle=words.idle)
        if self._commands:
            arguments.command = command[0]
        for name, word in zip(self._position_names, words.positionals, strict=False):
            setattr(arguments, name, word)
        late = [word for word in words.positionals if self._commands and word.startswith("--")]
        extra = [word for word in words.positionals[len(self._position_names) :] if word not in late]
        if self._rest_name:
            setattr(arguments, self._rest_name, extra)
            extra = []
        problems = words.problems + [words.unexpected(word) for word in extra]
        for name, choices in self._choices.items():
            if choices and (text := getattr(arguments, name)) is not None and text not in choices:
                near = did_you_mean(text, choices)
                problems.append(f"--{name}={text}: expected one of {', '.join(choices)}{near}")
        if late:
            problems.append(f"{late[0]}: flags after a second `--` are not read; leave one `--` out")
        if problems and not arguments.help:
            raise UsageError("\n".join([*problems, f"`{self.prog} --help` lists the flags"]))
        return arguments

    def words(self, arguments: argparse.Namespace) -> list[str]:
        """Returns the command line that gives this parser's flags the values of `arguments`."""
        words = [getattr(arguments, name) for name in self._position_names if getattr(arguments, name) is not None]
        switches = []
        for name, kind in self._kinds.items():
            value = getattr(arguments, name)
            if kind == "switch":
                switches += [] if value == self.get_default(name) else [f"--{name}" if value else f"--no{name}"]
            elif kind == "optional":
                words += [] if value is None else [f"--{name}={value}" if value else f"--{name}"]
            else:
                values = value if isinstance(value, list) else [] if value is None else [value]
                words += [f"--{name}={each}" for each in values]
        return words + switches


class _Words:
    """The words of one command line, by kind. With a flag `--set`, `PATH=VALUE` and `--PATH=VALUE` are values of it.

    Attributes:
      values: of the flags that are given; the last one, or a list of all where the flag may be repeated.
      positionals: everything else.
      problems: one line each.
      idle: one line for each flag that does nothing.
    """

    def __init__(self, kinds: Mapping[str, _Kind]) -> None:
        self._kinds = kinds
        self._takes_overrides = "set" in kinds
        self.values: dict[str, Any] = {}
        self.positionals: list[str] = []
        self.problems: list[str] = []
        self.idle: list[str] = []
        self._unknown: list[tuple[str, str]] = []
        self._undefined_ok: set[str] = set()

    def read(self, argv: Iterable[str]) -> None:
        """Sorts every word of `argv`."""
        words = deque(_with_flagfiles(argv, []))
        while words:
            word = words.popleft()
            if word == "--":
                for rest in words:
                    self._argument(rest)
                break
            if _FLAG.match(word):
                self._flag(word, words)
            else:
                self._argument(word)
        self.problems += [
            problem for name, problem in self._unknown if not {name, name.removeprefix("no")} & self._undefined_ok
        ]

    def _argument(self, word: str) -> None:
        if self._takes_overrides and _OVERRIDE.match(word):
            self._set("set", word)
        else:
            self.positionals.append(word)

    def _set(self, name: str, value: str) -> None:
        if self._kinds[name] == "values":
            self.values.setdefault(name, []).append(value)
        else:
            self.values[name] = value

    def _flag(self, word: str, rest: deque[str]) -> None:
        spelled, equals, text = word.lstrip("-").partition("=")
        name = spelled.replace("-", "_")
        negated = name.removeprefix("no").removeprefix("_")
        value = text if equals else None
        kind = self._kinds.get(name)
        if name == "undefok":
            given = self._value(name, value, rest).split(",")
            self._undefined_ok.update(each.strip().lstrip("-").replace("-", "_") for each in given)
        elif kind in ("value", "values"):
            self._set(name, self._value(name, value, rest))
        elif kind == "optional":
            self.values[name] = value or ""
            if value == "":
                self.problems.append(f"--{name}= has no value: is a variable not set? Write --{name}, or name one")
        elif kind == "switch":
            self.values[name] = _SWITCH_VALUES.get((value or "true").lower() if equals else "true", False)
            if equals and text.lower() not in _SWITCH_VALUES:
                self.problems.append(f"--{name}={value}: expected true or false")
        elif value is None and name.startswith("no") and self._kinds.get(negated) == "switch":
            self.values[negated] = False
        elif self._takes_overrides and "." in spelled:
            self._set("set", f"{spelled}={self._value(spelled, value, rest)}")
        elif not self._is_foreign(name, value, rest):
            if self._takes_overrides and (path := _field_path(name)):
                hint = f"; the field for it is set with {path}={value or 'VALUE'}"
            else:
                hint = did_you_mean(name, self._kinds, prefix="--")
            self._unknown.append((name, f"unknown flag --{spelled}{hint}"))

    def _is_foreign(self, name: str, value: str | None, rest: deque[str]) -> bool:
        """Takes a flag of launch scripts that says nothing about a run; returns whether it is one."""
        known = name if name in _IDLE or name in _INSTEAD else name.removeprefix("no")
        if known in _WITH_VALUE:
            is_on = bool(self._value(name, value, rest))
        else:
            is_on = known == name and (value is None or _SWITCH_VALUES.get(value.lower(), True))
        if known in _IDLE:
            self.idle.append(f"--{name} has no effect: {_IDLE[known]}")
        elif known in _INSTEAD and is_on:
            self.problems.append(f"--{name} is not for official-trainer: {_INSTEAD[known]}")
        return known in _IDLE or known in _INSTEAD

    def _value(self, name: str, value: str | None, rest: deque[str]) -> str:
        if value is not None:
            return value
        if rest and rest[0] != "--" and not _FLAG.match(rest[0]):
            return rest.popleft()
        self.problems.append(f"--{name} needs a value: --{name}=VALUE")
        return ""

    def unexpected(self, word: str) -> str:
        """Returns the problem of a positional argument too many, which may be a flag without its dashes."""
        name, equals, _ = word.partition("=")
        if self._takes_overrides and (not name or any(each.endswith("=") for each in self.values.get("set", ()))):
            return f"unexpected argument {word!r}; write PATH=VALUE without spaces around ="
        return f"unexpected argument {word!r}{did_you_mean(name, self._kinds, prefix='--') if equals else ''}"


def _field_path(name: str) -> str:
    """Returns the path of a field that every experiment has, such as `trainer.train_steps`; empty if there is none."""
    try:
        from official_trainer.config import DataConfig, RuntimeConfig, TrainerConfig, other_names
        from official_trainer.config.optimization import ConstantLrConfig
    except ImportError:  # `doctor` says what to install
        return ""

    def names(section: type[Any]) -> set[str]:
        return {field.name for field in dataclasses.fields(section)}

    sections = {"trainer": TrainerConfig, "runtime": RuntimeConfig, "task.train_data": DataConfig}
    sections["trainer.optimizer_config.learning_rate.constant"] = ConstantLrConfig
    asked = (name, *other_names.ours(name))
    return next((f"{path}.{each}" for path, cls in sections.items() for each in asked if each in names(cls)), "")


def _with_flagfiles(argv: Iterable[str], read: list[str]) -> Iterator[str]:
    """Yields the words of `argv`, with the flags of the file in place of each `--flagfile`.

    A flag file has a flag on each line; `#` and `//` start a comment line.
    """
    words = deque(argv)
    while words:
        word = words.popleft()
        name, equals, path = word.partition("=")
        if word == "--":
            yield word
            yield from words
            return
        if name.lstrip("-") != "flagfile" or not name.startswith("-"):
            yield word
            continue
        if not equals and not words:
            raise UsageError("--flagfile needs a value: --flagfile=PATH")
        path = path if equals else words.popleft()
        read.append(path)
        if len(read) > _MOST_FLAGFILES:
            what = f"at most {_MOST_FLAGFILES} flag files are read; put some into one, unless one includes itself"
            raise UsageError(f"--flagfile={path}: {what}")
        try:
            lines = [line.strip() for line in files.read_regular_text(path, _MOST_BYTES).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--flagfile={path}: {getattr(error, 'strerror', None) or error}") from error
        inside: list[str] = []
        for line in lines:
            if line and not line.startswith(("#", "//")):  # `--flag value`, or one word with all its spaces
                flag, space, value = line.partition(" ")
                is_pair = bool(space) and flag.startswith("-") and "=" not in flag
                inside += [flag, value.strip()] if is_pair else [line]
        yield from _with_flagfiles(inside, read)
