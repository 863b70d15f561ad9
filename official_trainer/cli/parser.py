"""The parser with which each verb declares its flags, and the spellings that it accepts, which are those of absl.

Owns: `-flag`, `--flag value`, `--noflag`, `--flag=false`, dashes for underscores, `--flagfile`, `--undefok`, the two
short forms of `--set`: `path=value` and `--path.to.field=value`; flags of launch scripts that have no effect here.
Does not own: the flags (`flags.py` and each verb).
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
_HELP = ("-h", "-?", "--helpfull", "--helpshort")
_FLAG = re.compile(r"--?[A-Za-z]")
_OVERRIDE = re.compile(r"[^-/=][^/=]*=")
# As in `config.limits`, which cannot be imported here: `doctor` runs where nothing is installed.
_MOST_FLAGFILES, _MOST_BYTES = 100, 1 << 20
_SWITCH_VALUES = {
    **dict.fromkeys(("true", "t", "yes", "y", "1", "on"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0", "off"), False),
}
_Takes = Literal["nothing", "value", "values"]
_IDLE: Mapping[str, tuple[_Takes, str]] = {
    **dict.fromkeys(("logtostderr", "alsologtostderr"), ("nothing", "messages always go to standard error")),
    "showprefixforinfo": ("nothing", "there are no levels of messages"),
    **dict.fromkeys(
        ("v", "verbosity", "stderrthreshold", "logger_levels"), ("value", "there are no levels of messages")
    ),
    "log_dir": ("value", "messages go to standard error alone; `2> FILE` keeps them"),
    **dict.fromkeys(
        ("tpu_platform", "tfhub_handle", "tflex_output_uri"),
        ("value", "nothing reads it in Model Garden's open source version either"),
    ),
}
"""Flags of launch scripts of Model Garden that have no effect: what stands behind them, and why."""


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
        )
        self._commands: tuple[str, ...] = ()
        self._takes: dict[str, _Takes] = {}
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
        self._takes[name] = "values" if repeat else "value"
        self._choices[name] = choices
        self._group.add_argument(f"--{name}", metavar=metavar, help=help)

    def switch(self, name: str, help: str, *, default: bool | None = False) -> None:
        """Declares `--name` and `--noname`; the help shows the one that changes the default."""
        self._takes[name] = "nothing"
        flag = f"--no{name}" if default else f"--{name}"
        self._group.add_argument(flag, dest=name, action="store_const", const=not default, default=default, help=help)

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
        arguments = argparse.Namespace(**{action.dest: action.default for action in self._actions})
        words = deque(_with_flagfiles(argv, []))
        if self._commands:
            arguments.command = self._commands[0]
            if "--" in words:  # which separates the flags of the command for readers, and for its name
                index = words.index("--")
                del words[index]
                if index < len(words) and words[index] in self._commands:
                    arguments.command = words[index]
                    del words[index]
        line = _Line(self._takes, words)
        vars(arguments).update(line.values)
        arguments.idle = line.idle
        extra = line.positionals[len(self._position_names) :]
        vars(arguments).update(zip(self._position_names, line.positionals, strict=False))
        if self._rest_name:
            setattr(arguments, self._rest_name, extra)
        else:
            line.problems += map(line.unexpected, extra)
        for name, choices in self._choices.items():
            if choices and (text := getattr(arguments, name)) is not None and text not in choices:
                near = did_you_mean(text, choices)
                line.problems.append(f"--{name}={text}: expected one of {', '.join(choices)}{near}")
        if line.problems and not arguments.help:
            raise UsageError("\n".join([*line.problems, f"`{self.prog} --help` lists the flags"]))
        return arguments

    def words(self, arguments: argparse.Namespace) -> list[str]:
        """Returns the command line that gives this parser's flags the values of `arguments`."""
        words = [getattr(arguments, name) for name in self._position_names if getattr(arguments, name) is not None]
        switches = []
        for name, takes in self._takes.items():
            value = getattr(arguments, name)
            if value == self.get_default(name):
                continue
            if takes == "nothing":
                switches.append(f"--{name}" if value else f"--no{name}")
            else:
                words += [f"--{name}={text}" for text in (value if takes == "values" else [value])]
        return words + switches


class _Line:
    """One command line. With a flag `--set`, `PATH=VALUE` and `--PATH=VALUE` are values of it.

    Attributes:
      values: of the flags that are given; the last one, or a list of all where the flag may be repeated.
      positionals: everything else.
      problems: one line each.
      idle: one line for each flag that does nothing.
    """

    def __init__(self, takes: Mapping[str, _Takes], words: deque[str]) -> None:
        """Reads the words of a command line, with what the flags of its verb take."""
        self._declared = takes
        idle: dict[str, _Takes] = {name: behind for name, (behind, _) in _IDLE.items()}
        self._takes = {**idle, "undefok": "values", **takes}
        self._takes_overrides = "set" in takes
        self._words = words
        self.values: dict[str, Any] = {}
        self.positionals: list[str] = []
        self.problems: list[str] = []
        unknown: list[tuple[str, str]] = []
        while words and (word := words.popleft()) != "--":
            if word in _HELP:
                self.values["help"] = True
            elif not _FLAG.match(word):
                self._argument(word)
            elif problem := self._flag(word):
                unknown.append(problem)
        for word in words:
            self._argument(word)
        names = ",".join(self.values.pop("undefok", ())).replace("-", "_").split(",")
        self.problems += [problem for name, problem in unknown if not {name, name.removeprefix("no")} & {*names}]
        given = [name for name in self.values if name not in takes]
        self.idle = [f"--{name} has no effect: {_IDLE[name][1]}" for name in given]
        for name in given:
            del self.values[name]

    def _argument(self, word: str) -> None:
        if self._takes_overrides and _OVERRIDE.match(word):
            self._add("set", word)
        else:
            self.positionals.append(word)

    def _add(self, name: str, value: str) -> None:
        if self._takes[name] == "values":
            self.values.setdefault(name, []).append(value)
        else:
            self.values[name] = value

    def _flag(self, word: str) -> tuple[str, str] | None:
        """Reads a flag, and its value if that is the next word; returns the name and the problem of an unknown one."""
        spelled, equals, text = word.lstrip("-").partition("=")
        name = spelled.replace("-", "_")
        value = text if equals else None
        switched_off = name.removeprefix("no").removeprefix("_")
        takes = self._takes.get(name)
        if takes in ("value", "values"):
            self._add(name, self._value(name, value))
        elif takes == "nothing":
            self.values[name] = _SWITCH_VALUES.get((value or "true").lower() if equals else "true", False)
            if equals and text.lower() not in _SWITCH_VALUES:
                self.problems.append(f"--{name}={value}: expected true or false")
        elif value is None and name.startswith("no") and self._takes.get(switched_off) == "nothing":
            self.values[switched_off] = False
        elif self._takes_overrides and "." in spelled:
            self._add("set", f"{spelled}={self._value(spelled, value)}")
        else:
            if self._takes_overrides and (path := _field_path(name)):
                hint = f"; the field for it is set with {path}={value or 'VALUE'}"
            else:
                hint = did_you_mean(name, self._declared, prefix="--")
            return name, f"unknown flag --{spelled}{hint}"
        return None

    def _value(self, name: str, value: str | None) -> str:
        if value is not None:
            return value
        if self._words and self._words[0] != "--" and not _FLAG.match(self._words[0]):
            return self._words.popleft()
        self.problems.append(f"--{name} needs a value: --{name}=VALUE")
        return ""

    def unexpected(self, word: str) -> str:
        """Returns the problem of a positional argument too many, which may be a flag without its dashes."""
        name, equals, _ = word.partition("=")
        if self._takes_overrides and (not name or any(text.endswith("=") for text in self.values.get("set", ()))):
            return f"unexpected argument {word!r}; write PATH=VALUE without spaces around ="
        return f"unexpected argument {word!r}{did_you_mean(name, self._declared, prefix='--') if equals else ''}"


def _field_path(name: str) -> str:
    """Returns the path of a field that every experiment has, such as `trainer.train_steps`; empty if there is none."""
    try:
        from official_trainer.config import DataConfig, RuntimeConfig, TrainerConfig, other_names
        from official_trainer.config.optimization import ConstantLrConfig
    except ImportError:  # `doctor` says what to install
        return ""
    sections: dict[str, type[Any]] = {
        "trainer": TrainerConfig,
        "runtime": RuntimeConfig,
        "task.train_data": DataConfig,
        "trainer.optimizer_config.learning_rate.constant": ConstantLrConfig,
    }
    names = {name, *other_names.ours(name)}
    fields = ((path, field.name) for path, cls in sections.items() for field in dataclasses.fields(cls))
    return next((f"{path}.{field}" for path, field in fields if field in names), "")


def _with_flagfiles(argv: Iterable[str], read: list[str]) -> Iterator[str]:
    """Yields the words of `argv`, with the flags of the file in place of each `--flagfile`.

    A flag file has a flag on each line; `#` and `//` start a comment line.
    """
    words = iter(argv)
    for word in words:
        name, equals, path = word.partition("=")
        if name not in ("-flagfile", "--flagfile"):
            yield word
            if word == "--":
                yield from words
            continue
        if not equals and not (path := next(words, "")):
            raise UsageError("--flagfile needs a value: --flagfile=PATH")
        read.append(path)
        if len(read) > _MOST_FLAGFILES:
            what = f"at most {_MOST_FLAGFILES} flag files are read; put some into one, unless one includes itself"
            raise UsageError(f"--flagfile={path}: {what}")
        try:
            lines = [line.strip() for line in files.read_regular_text(path, _MOST_BYTES).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--flagfile={path}: {getattr(error, 'strerror', None) or error}") from error
        yield from _with_flagfiles(_words_of([line for line in lines if not line.startswith(("#", "//"))]), read)


def _words_of(lines: Iterable[str]) -> Iterator[str]:
    """Yields the words of a flag file: `--flag value` is two, and every other line one with all its spaces."""
    for line in filter(None, lines):
        flag, space, value = line.partition(" ")
        yield from [flag, value.strip()] if space and flag.startswith("-") and "=" not in flag else [line]
