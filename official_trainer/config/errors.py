"""Problems of a configuration, with their places and with what the user can do about them.

Owns: `Origin` (who set a value), `Problem` and its rendering, `ConfigError`.
Does not own: finding problems; `reading.py`, `overrides.py`, `decode.py` and `checks.py` do.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Literal

from official_trainer.config import limits
from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import nearest
from official_trainer.shown import printable, shorten, without_secrets

_SHOWN_COLUMNS = 110
_SHOWN_PATH = 200
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclasses.dataclass(frozen=True)
class Origin:
    """What set a value, and the place in its text.

    Attributes:
      kind: what set it.
      name: the experiment, the file or the flag; empty for the default of a class.
      line: line in the text of the file or flag, from 1; 0 if it is not known.
      column: column in that line, from 1.
      text: the whole text, for messages.
      length: columns that the value takes there, to underline it.

    Example:
      >>> from official_trainer.config import ExportConfig, resolve
      >>> origin = resolve(ExportConfig(), sets=["best=true"]).origin("best")
      >>> origin.kind, str(origin)
      ('flag', '--set, column 6')
    """

    kind: Literal["default", "experiment", "file", "flag"]
    name: str = ""
    line: int = 0
    column: int = 0
    text: str = dataclasses.field(default="", repr=False, compare=False)
    length: int = dataclasses.field(default=1, repr=False, compare=False)

    def __str__(self) -> str:
        if self.kind == "file" and self.column:
            return f"{self.name}:{self.line}:{self.column}"
        if self.kind == "flag" and self.column:
            line = f"line {self.line}, " if self.line > 1 else ""
            return f"{self.name}, {line}column {self.column}"
        return self.brief

    @property
    def brief(self) -> str:
        """The place without columns.

        For example `a.yaml:6`, `--set`, `experiment digits_cnn` or `class default`.
        """
        if self.kind == "default":
            return "class default"
        if self.kind == "experiment":
            return f"experiment {self.name}".rstrip()
        return f"{self.name}:{self.line}" if self.kind == "file" and self.line else self.name

    def moved(self, lines: int, columns: int, length: int = 1) -> Origin:
        """Returns the place so many lines further on; `columns` count from the start of that line's own text."""
        column = columns + (self.column if lines == 0 else 1)
        return Origin(self.kind, self.name, self.line + lines, column, self.text, length)

    @property
    def by_user(self) -> bool:
        """Whether a file or a flag set the value, rather than Python code."""
        return self.kind in ("file", "flag")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
      what: what is wrong, in lower case, without a full stop.
      path: the field, such as `trainer.train_steps`; empty when the problem is not about one.
      got: the value, as shown to the user.
      allowed: what would be right, as a list or in words.
      near: the nearest right spelling.
      fix: what to do.
      origin: the place of the text that caused it.

    Example:
      >>> from official_trainer.config import ConfigError, ExportConfig, resolve
      >>> try:
      ...     resolve(ExportConfig(), sets=["max_to_kep=2"])
      ... except ConfigError as error:
      ...     problem = error.problems[0]
      >>> problem.path, problem.near
      ('max_to_kep', 'max_to_keep')
    """

    what: str
    path: str = ""
    got: str = ""
    allowed: str = ""
    near: str = ""
    fix: str = ""
    origin: Origin | None = None

    def __str__(self) -> str:
        return "\n".join([self.message, *self._source()])

    @property
    def message(self) -> str:
        """The problem on one line, with place, path, what is wrong, what is allowed, fix and nearest match."""
        text = self.what + (f", got {self.got}" if self.got else "")
        text += f"; allowed: {self.allowed}" if self.allowed else ""
        text += f"; {self.fix}" if self.fix else ""
        text += f"; did you mean '{self.near}'?" if self.near else ""
        where = shorten(self.origin.brief, _SHOWN_PATH) if self.origin else ""
        pieces = (where, shorten(self.path, _SHOWN_PATH), printable(without_secrets(text)).replace("\n", "\\n"))
        return ": ".join(part for part in pieces if part)

    def _source(self) -> list[str]:
        """The line of the file or flag, with a caret under the spot where its column is known."""
        origin = self.origin
        lines = source_lines(origin.text) if origin and origin.text else []
        if origin is None or not 0 < origin.line <= len(lines):
            return []
        line, column = lines[origin.line - 1].replace("\t", " "), origin.column - 1
        if origin.kind == "flag" and len(lines) == 1:
            line, column = f"{origin.name}={line}", column + len(origin.name) + 1
        if len(line) > _SHOWN_COLUMNS:
            start = max(0, min(column - _SHOWN_COLUMNS // 2, len(line) - _SHOWN_COLUMNS))
            line, column = line[start : start + _SHOWN_COLUMNS], column - start
        end = column + origin.length
        pieces = (line[:column], line[column:end], line[end:]) if origin.column else (line, "", "")
        before, marked, after = (printable(without_secrets(part)) for part in pieces)
        number = str(origin.line) if origin.kind == "file" or len(lines) > 1 else ""
        carets = " " * len(before) + "^" * max(1, len(marked))
        return [f"{number:>5} | {before}{marked}{after}", f"{'':>5} | {carets}"][: 2 if origin.column else 1]


def line_of_code(path: str, line: int) -> Origin:
    """Returns the place of a line of Python code, as seen from the current folder, with its text for the message."""
    import linecache  # reads files; only messages need it

    inside = path.startswith(os.getcwd() + os.sep)
    name = os.path.relpath(path) if inside else path
    return Origin("file", name, line, text="".join(linecache.getlines(path)))


def line_of_class(cls: type, name: str = "") -> Origin | None:
    """Returns the place of a class of the user's, or of a field that it declares; None if there is no file."""
    import ast
    import inspect

    try:
        lines, first = inspect.getsourcelines(cls)
        path = inspect.getsourcefile(cls) or ""
        if path.startswith(_NOT_USERS):
            return None
        (statement,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    fields = [node for node in getattr(statement, "body", ()) if isinstance(node, ast.AnnAssign)]
    declared = next((node for node in fields if getattr(node.target, "id", "") == name), statement)
    return line_of_code(path, first - 1 + declared.lineno)


def calling_line() -> Origin:
    """Returns the line of Python code outside of this package that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_NOT_USERS, "<")):
        frame = frame.f_back
    return line_of_code(frame.f_code.co_filename, frame.f_lineno)


_NOT_USERS_PACKAGES = (__name__.partition(".")[0], "official")
_NOT_USERS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, dataclasses.__file__)


def unregistered(config_cls: type, decorator: str) -> str:
    """Returns what to do where no Task is registered for the class of a task's config; empty for one of a package."""
    if config_cls.__module__.partition(".")[0] in _NOT_USERS_PACKAGES:
        return ""
    return f"put {decorator}({config_cls.__name__}) above its Task class, and import the module of that class"


@functools.lru_cache(maxsize=4)
def source_lines(text: str) -> list[str]:
    """Returns the lines of a text as YAML counts them."""
    return _LINE_BREAK.split(text)


def best_match(word: str, options: Iterable[str]) -> str:
    """Returns the option that `word` was most likely meant to be, or "" if none is close."""
    return next(iter(nearest(word, options)), "")


class ConfigError(UserError, ValueError):
    """All problems of a configuration.

    Attributes:
      problems: each `Problem` once, in the order of the layers.
    """

    exit_code = ExitCode.CONFIG

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(problems))
        assert self.problems, "a ConfigError needs a problem"
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        count, shown = len(self.problems), self.problems[: limits.MAX_PROBLEMS]
        what = f"{count} problems" if count < limits.MAX_PROBLEMS else f"the first {len(shown)} problems"
        return "\n\n".join([f"{what} in the configuration", *map(str, shown)])
