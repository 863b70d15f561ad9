"""What `--gin_file` and `--gin_params` say, as gin's statements, each with its place.

Owns: finding files and includes, gin's syntax errors in our words; values with references that are not looked up yet.
Does not own: what the statements do (`gin_bindings.py`). Needs gin, but nothing that gin could configure.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tokenize
import types
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import ConfigError, Origin, Problem
from official_trainer.errors import nearest

FILE_FLAG, PARAMS_FLAG = "--gin_file", "--gin_params"

_REQUIREMENT = "gin-config>=0.5,<0.6"
_VALUES = "True, None, 0.5, 'text', [1, 2], @function, @function(), %macro"
_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None"}


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@scope/name`, or `@scope/name()`, in a value."""

    name: str
    is_called: bool

    def __repr__(self) -> str:
        return f"@{self.name}{'()' * self.is_called}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name` in a value."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Source:
    """Statements that share their imports: those of one file, or of all `--gin_params`.

    Attributes:
      statements: gin's `BindingStatement` and `ImportStatement`, or the `Source` of an included file; each with its
        place.
    """

    statements: tuple[tuple[Any, Origin], ...]


def load_gin() -> types.ModuleType:
    """Imports gin.

    Raises:
      ConfigError: it is not installed.
    """
    try:
        import gin
        import gin.config_parser
    except ModuleNotFoundError as error:
        what = f"{FILE_FLAG} and {PARAMS_FLAG} need {error.name}, which is not installed"
        raise ConfigError([Problem(what, fix=f"pip install '{_REQUIREMENT}'")]) from error
    return gin


def read(gin_files: Sequence[str], gin_params: Sequence[str]) -> tuple[Source, ...]:
    """Returns what the flags say: the files in their order, then the parameters.

    Args:
      gin_files: paths as given; looked up from the current directory, then where gin looks.
      gin_params: bindings, one a line.

    Raises:
      ConfigError: gin is not installed, a file cannot be read, or something is not gin's syntax.
    """
    load_gin()
    problems: list[Problem] = []
    reader = _Reader(problems)
    sources = [reader.file(name, Origin("flag", FILE_FLAG), ()) for name in gin_files]
    if gin_params:
        sources.append(Source(tuple(each for text in gin_params for each in reader.params(text))))
    if problems:
        raise ConfigError(problems)
    return tuple(source for source in sources if source is not None)


class _Reader:
    """Reads sources and notes what is wrong; of each source the first syntax error, for what follows is guesswork."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def params(self, text: str) -> Iterator[tuple[Any, Origin]]:
        return self._statements(text, Origin("flag", PARAMS_FLAG, text=text), ())

    def file(self, name: str, asked: Origin, inside: tuple[str, ...]) -> Source | None:
        """Reads a file that `asked` names, while those of `inside` are being read."""
        path = find(name)
        if path is None:
            self._problems.append(_missing(name, asked))
            return None
        if path in inside:
            self._problems.append(Problem(f"'{name}' includes itself", origin=asked, fix="remove the include"))
            return None
        try:
            text = files.read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = files.reason_of(error) if isinstance(error, OSError) else "it is not text"
            self._problems.append(Problem(f"'{name}' cannot be read: {reason}", origin=asked))
            return None
        return Source(tuple(self._statements(text, Origin("file", path, text=text), (*inside, path))))

    def _statements(self, text: str, whole: Origin, inside: tuple[str, ...]) -> Iterator[tuple[Any, Origin]]:
        from gin import config_parser

        try:
            parser = config_parser.ConfigParser(text, _Delegate())
            while (statement := parser.parse_statement()) is not None:
                if isinstance(statement, config_parser.BlockDeclaration):
                    continue  # its bindings follow, each with the name of the block
                place = _at(whole, statement.location.line_num)
                if not isinstance(statement, config_parser.IncludeStatement):
                    yield statement, place
                elif (included := self.file(statement.filename, place, inside)) is not None:
                    yield included, place
        except (SyntaxError, tokenize.TokenError) as error:
            self._problems.append(_not_gin(error, whole))


class _Delegate:
    """Takes names in values for what they say; gin's own looks them up at once."""

    def configurable_reference(self, name: str, evaluate: bool) -> Reference:
        return Reference(name, evaluate)

    def macro(self, name: str) -> Macro:
        return Macro(name)


def find(name: str) -> str | None:
    """Returns the path of a file, from the current directory, or where gin looks: its search paths and packages."""
    import gin

    path = os.path.expanduser(name)
    places = [path]
    if not os.path.isabs(path) and not files.is_url(path):
        places += [os.path.join(folder, path) for folder in (*gin.config._LOCATION_PREFIXES[1:], *sys.path)]
    return next((place for place in places if files.exists(place) and not files.is_dir(place)), None)


def _missing(name: str, asked: Origin) -> Problem:
    path = os.path.expanduser(name)
    if not files.is_url(path) and files.is_dir(path):
        return Problem(f"'{name}' is a directory", origin=asked, fix="name a file")
    what = f"there is no file '{name}'"
    if files.is_url(path):
        return Problem(what, origin=asked)
    near = nearest(os.path.basename(path), files.list_dir(os.path.dirname(path) or "."))
    found = os.path.join(os.path.dirname(name), near[0]) if near else ""
    fix = "a relative path starts at the current directory, an importable package, or a search path of gin"
    return Problem(what, origin=asked, near=found, fix="" if os.path.isabs(path) else fix)


def _at(whole: Origin, line: int, column: int = 0) -> Origin:
    """Returns the place of a statement, or of a column that counts from 1."""
    lines = whole.text.splitlines()
    content = lines[line - 1] if 0 < line <= len(lines) else ""
    return dataclasses.replace(whole, line=line, column=column or len(content) - len(content.lstrip()) + 1)


def _not_gin(error: SyntaxError | tokenize.TokenError, whole: Origin) -> Problem:
    """Returns a syntax error in our words; gin's own have the place beside the message, Python's have it in them."""
    if isinstance(error, tokenize.TokenError):
        said, (line, column) = error.args[0], error.args[1]
        line = min(line, max(1, len(whole.text.splitlines())))  # the end of the text is a line of its own
    else:
        said, line, column = error.msg, error.lineno or 1, error.offset or 0
    place = _at(whole, line, column + 1 if column else 0)
    if token := re.search(r"Failed to parse token '(.*)'", said):
        word = token[1]
        near = _CONSTANTS.get(word.lower(), "")
        fix = "" if near else f"text has quotes: '{word}'"
        return Problem(f"{word} is no value", origin=place, allowed=_VALUES, near=near, fix=fix)
    if said.startswith("Unable to parse value"):
        return Problem("there is no value", origin=place, allowed=_VALUES)
    said = " ".join(said.split()).rstrip(".")
    return Problem(f"not gin's syntax: {said}", origin=place, fix="write function.argument = value")
