"""Arguments of library functions that gin binds, from `--gin_file` and `--gin_params`.

Owns: gin's statements with their places, which arguments may be bound, binding them for one block and restoring gin
after it, warnings about bindings without effect. Does not own: the files of bindings in a run directory
(`runs/resume/config_changes.py`).

The config owns every hyperparameter; gin is for `@gin.configurable` functions that the config does not reach. gin is
imported only when one of the flags is given. gin's parser, lookups and checks are used; what this module adds is that
syntax is checked before TensorFlow is imported, and that all problems are reported at once, each with its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import logging
import os
import re
import sys
import tokenize
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import Config, ConfigError, Origin, Problem, limits
from official_trainer.config.errors import best_match, near_file
from official_trainer.garden.spec import is_config_class
from official_trainer.shown import shorten

_logger = logging.getLogger(__name__)

FILE_FLAG, PARAMS_FLAG = "--gin_file", "--gin_params"

_REQUIREMENT = "gin-config>=0.5,<0.6"
_VALUES = "True, None, 0.5, 'text', [1, 2], @function, @function(), %macro"
_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None"}
_MACRO = "gin.macro"
_SHOWN_ARGUMENTS = 12

Key = tuple[str, str, str]
"""Scope (`""` for none), full name of the function, argument."""
Source = tuple[Any, ...]
"""Pairs of a statement and its place, of one file or of all `--gin_params`, which share their imports. A statement is
gin's `BindingStatement` or `ImportStatement`, or the `Source` of an included file."""


@dataclasses.dataclass(frozen=True)
class Binding:
    """One argument that is bound.

    Attributes:
      name: `scope/module.function.argument`, with the full name of the function.
      value: as it was written.
      written: the name as it was written.
      origin: the last place that binds it.
    """

    name: str
    value: str
    written: str
    origin: Origin


class Bindings:
    """What the gin flags of a command bind.

    Attributes:
      sources: the statements as they were read.
      bound: the bindings by their keys; None until `in_force` has looked up the functions.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self.bound: Mapping[Key, Binding] | None = None

    @property
    def plain(self) -> dict[str, str]:
        """The values by name, once the functions were looked up."""
        assert self.bound is not None
        return {binding.name: binding.value for _, binding in sorted(self.bound.items())}


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


# Reading.


def read(gin_files: Sequence[str] | None, gin_params: Sequence[str] | None) -> Bindings | None:
    """Reads the flags, the files first; no function is looked up. Returns None if both are empty.

    Args:
      gin_files: paths; relative ones start at the current directory, a package, or a search path of gin.
      gin_params: bindings, one per line.

    Raises:
      ConfigError: gin is not installed, a file cannot be read, or a text is not in gin's syntax.
    """
    names, params = list(filter(None, gin_files or ())), list(filter(None, gin_params or ()))
    if not names and not params:
        return None
    load_gin()
    reader = _Reader()
    sources = [reader.file(name, Origin("flag", FILE_FLAG), ()) for name in names]
    sources.append(tuple(pair for text in params for pair in reader.parse(Origin("flag", PARAMS_FLAG, text=text), ())))
    if reader.problems:
        raise ConfigError(reader.problems)
    return Bindings(sources)


class _Reader:
    """Reads sources and collects problems, of each text only the first, because gin's parser cannot go on after it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._num_files = 0

    def file(self, name: str, named_at: Origin, including: tuple[str, ...]) -> Source:
        """Reads the file that is named at a place; `including` are the paths of the files around it."""
        path = _find(name)
        if path is None:
            if files.is_url(name):
                problem = Problem(f"there is no file '{name}'", origin=named_at)
            elif files.is_dir(os.path.expanduser(name)):
                problem = Problem(f"'{name}' is a directory", origin=named_at, fix="name a file")
            else:
                fix = "a relative path starts at the current directory, an importable package, or a search path of gin"
                fix = "" if os.path.isabs(os.path.expanduser(name)) else fix
                problem = Problem(f"there is no file '{name}'", origin=named_at, near=near_file(name), fix=fix)
            return self._fail(problem)
        if path in including:
            return self._fail(Problem(f"'{name}' includes itself", origin=named_at, fix="remove the include"))
        self._num_files += 1
        if self._num_files > limits.MAX_FILES:
            what = f"'{name}' is one more than the {limits.MAX_FILES} files of bindings that may be read"
            is_first = self._num_files == limits.MAX_FILES + 1
            return self._fail(Problem(what, origin=named_at, fix="put some of them into one")) if is_first else ()
        try:
            text = (
                files.read_text(path)
                if files.is_url(path)
                else files.read_regular_text(path, limits.MAX_FLAG_CHARACTERS)
            )
        except (OSError, UnicodeDecodeError) as error:
            reason = files.reason_of(error) if isinstance(error, OSError) else "it is not text"
            return self._fail(Problem(f"'{name}' cannot be read: {reason}", origin=named_at))
        return tuple(self.parse(Origin("file", path, text=text), (*including, path)))

    def parse(self, whole: Origin, including: tuple[str, ...]) -> Iterator[tuple[Any, Origin]]:
        from gin import config_parser

        try:
            for statement in config_parser.ConfigParser(whole.text, _Names()):
                if isinstance(statement, config_parser.BlockDeclaration):
                    continue  # its bindings follow, each with the name of the block
                place = _at(whole, statement.location.line_num)
                if isinstance(statement, config_parser.IncludeStatement):
                    yield self.file(statement.filename, place, including), place
                else:
                    yield statement, place
        except (SyntaxError, tokenize.TokenError) as error:
            self._fail(_syntax_problem(error, whole))
        except RecursionError:
            self._fail(_nested_too_deep(whole))

    def _fail(self, problem: Problem) -> Source:
        self.problems.append(problem)
        return ()


class _Name(str):
    """A reference or a macro as it is written; the `repr` of a value that contains names is gin's syntax again."""

    __repr__ = str.__str__


class _Names:
    """Gives gin's parser names for references and macros; gin's own delegate would look them up immediately."""

    def configurable_reference(self, name: str, evaluate: bool) -> _Name:
        return _Name(f"@{name}{'()' * evaluate}")

    def macro(self, name: str) -> _Name:
        return _Name(f"%{name}")


def _find(name: str) -> str | None:
    """Returns the path of a file: from the current directory, or from gin's search paths and the packages."""
    import gin

    path = os.path.expanduser(name)
    places = [path]
    if not os.path.isabs(path) and not files.is_url(path):
        places += [os.path.join(folder, path) for folder in (*gin.config._LOCATION_PREFIXES[1:], *sys.path)]
    return next((place for place in places if files.exists(place) and not files.is_dir(place)), None)


def _at(whole: Origin, line: int, column: int = 0) -> Origin:
    """Returns a place in a text; without a column (counted from 1), the start of the line's statement."""
    lines = whole.text.splitlines()
    content = lines[line - 1] if 0 < line <= len(lines) else ""
    return dataclasses.replace(whole, line=line, column=column or len(content) - len(content.lstrip()) + 1)


def _nested_too_deep(whole: Origin) -> Problem:
    return Problem("lists and brackets are nested too deep here", origin=_at(whole, 1), fix="write fewer levels")


def _syntax_problem(error: SyntaxError | tokenize.TokenError, whole: Origin) -> Problem:
    if isinstance(error, tokenize.TokenError):
        message, (line, column) = error.args[0], error.args[1]
        column -= bool(column) and sys.version_info >= (3, 12)  # there the first column is 1
        line = min(line, max(1, len(whole.text.splitlines())))  # the end of the text is a line of its own
    else:
        message, line, column = error.msg, error.lineno or 1, error.offset or 0
    if message.startswith("too many nested"):  # from Python 3.12 on, before gin's parser comes that deep
        return _nested_too_deep(whole)
    place = _at(whole, line, column + 1 if column else 0)
    if token := re.search(r"Failed to parse token '(.*)'", message):
        near = _CONSTANTS.get(token[1].lower(), "")
        fix = "" if near else f"put text in quotes: '{shorten(token[1])}'"
        return Problem(f"{shorten(token[1])} is not a value", origin=place, allowed=_VALUES, near=near, fix=fix)
    if message.startswith("Unable to parse value"):
        return Problem("the value is missing", origin=place, allowed=_VALUES)
    return Problem(f"not gin's syntax: {_one_line(message)}", origin=place, fix="write function.argument = value")


# Binding.


@contextlib.contextmanager
def in_force(bindings: Bindings | None, modules: Sequence[str] = (), *, reports: bool = True) -> Iterator[None]:
    """Binds for the block and then restores gin's state; after a block without an error, warns of unused bindings.

    Args:
      bindings: what to bind; with None, gin is not touched.
      modules: imported first, because gin knows functions only after their modules are imported.
      reports: whether this process logs the warnings of the run.

    Raises:
      ConfigError: a function or an argument does not exist, or must not be bound.
    """
    if bindings is None:
        yield
        return
    gin = load_gin().config
    for module in modules:
        importlib.import_module(module)
    before = {key: dict(arguments) for key, arguments in gin._CONFIG.items()}
    _restore(gin, before)
    try:
        bindings.bound = _Binder(gin).bind(bindings.sources)
        yield
        called = operative() if reports else {}
        for key, each in bindings.bound.items() if reports else ():
            if reason := _why_unused(key, bindings.bound, called):
                place = each.origin.brief
                _logger.warning("%s: gin binding %s = %s had no effect: %s", place, each.written, each.value, reason)
    finally:
        _restore(gin, before)


def _restore(gin: Any, config: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Unlocks gin, clears the record of calls, and keeps only the bindings of `config`, which Python code has made."""
    gin.clear_config()
    gin._CONFIG.update({key: dict(arguments) for key, arguments in config.items()})


class _Binder:
    """Binds statement by statement, as `gin.parse_config` does, but collects the problems of all statements."""

    def __init__(self, gin: Any) -> None:
        self._gin = gin
        self._problems: list[Problem] = []
        self._bound: dict[Key, Binding] = {}
        self._macros: list[tuple[str, Origin]] = []

    def bind(self, sources: Sequence[Source]) -> dict[Key, Binding]:
        for source in sources:
            self._bind_source(source)
        for name, place in self._macros:
            if (name, _MACRO) not in self._gin._CONFIG and not self._gin._CONSTANTS.matching_selectors(name):
                self._fail(f"%{name}", "no macro or constant has this name", place, fix=f"add {name} = VALUE")
        if not self._problems:
            try:
                self._gin.finalize()
            except ValueError as error:  # raised by a hook of gin or of user code
                self._problems.append(Problem(f"gin: {_one_line(error)}"))
        if self._problems:
            raise ConfigError(self._problems)
        return self._bound

    def _bind_source(self, source: Source) -> None:
        with self._gin._parse_scope() as context:  # imports hold for the statements of their source only
            for statement, place in source:
                if type(statement) is tuple:
                    self._bind_source(statement)
                elif hasattr(statement, "module"):
                    try:
                        context.process_import(statement)
                    except Exception as error:  # importing a module can raise any error
                        self._fail("", f"cannot be imported: {type(error).__name__}: {_one_line(error)}", place)
                else:
                    self._bind_argument(context, statement, place)
            self._gin._IMPORTS.update(context.imports)

    def _bind_argument(self, context: Any, statement: Any, place: Origin) -> None:
        scope, selector, argument, value, _ = statement
        name = "/".join(filter(None, [scope, f"{selector}.{argument}" if argument else selector]))
        if not argument:  # `name = value` defines a macro
            scope, selector, argument = name, _MACRO, "value"
        names = [part for part in self._gin._iterate_flattened_values(value) if isinstance(part, _Name)]
        self._macros += [(each[1:], place) for each in names if each.startswith("%")]
        references = [each.strip("@()").rpartition("/")[2] for each in names if each.startswith("@")]
        function, *others = [self._find_function(context, each, place) for each in (selector, *references)]
        if function is None or not self._may_bind(function, argument, name, place) or None in others:
            return
        try:
            self._gin.bind_parameter(
                (scope, selector, argument), self._gin.parse_value(repr(value)) if names else value
            )
        except ValueError as error:
            self._fail(name, _one_line(error), place)
            return
        key = (scope, function.selector, argument)
        full_name = scope if selector == _MACRO else "/".join(filter(None, [scope, f"{function.selector}.{argument}"]))
        self._bound[key] = Binding(full_name, repr(value), name, place)

    def _find_function(self, context: Any, selector: str, place: Origin) -> Any:
        """Returns gin's record of a function, or None after reporting that it does not exist."""
        registry = self._gin._REGISTRY
        try:
            found = context.get_configurable(selector)
        except KeyError:
            matching = ", ".join(sorted(registry.matching_selectors(selector)))
            self._fail(selector, "several functions have this name", place, allowed=matching)
            return None
        except (NameError, AttributeError) as error:  # only where the source has enabled dynamic registration
            self._fail(selector, _one_line(error), place)
            return None
        if found is None:
            near = best_match(selector.rpartition(".")[2], {name.rpartition(".")[2]: 0 for name, _ in registry.items()})
            fix = "is its module imported? `import MODULE` in a gin file imports it, or gin_modules of the Task"
            self._fail(selector, "gin has no function of this name", place, near=near, fix=fix)
        return found

    def _may_bind(self, function: Any, argument: str, name: str, place: Origin) -> bool:
        cls = function.wrapped
        if inspect.isclass(cls) and (issubclass(cls, Config) or is_config_class(cls)):
            what = f"{function.name} is a section of the configuration, which gin never binds"
            self._fail(name, what, place, fix="set it in YAML, or with --set")
            return False
        if self._gin._might_have_parameter(function.wrapper, argument):
            return True
        arguments = [each for each in inspect.signature(function.wrapped).parameters if each != "self"]
        allowed = ", ".join([*arguments[:_SHOWN_ARGUMENTS], *["…"][: len(arguments) > _SHOWN_ARGUMENTS]])
        what = f"{function.name} has no argument '{argument}'"
        self._fail(name, what, place, allowed=allowed, near=best_match(argument, arguments))
        return False

    def _fail(self, path: str, what: str, place: Origin, **parts: Any) -> None:
        self._problems.append(Problem(what, path, origin=place, **parts))


def _one_line(message: object) -> str:
    return " ".join(str(message).split()).rstrip(".")


# Bindings without effect.


def operative() -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the arguments that gin has passed so far, by scope and function, including defaults that gin recorded."""
    gin = load_gin().config
    with gin._OPERATIVE_CONFIG_LOCK:
        return {key: dict(arguments) for key, arguments in gin._OPERATIVE_CONFIG.items()}


def _why_unused(key: Key, bound: Mapping[Key, Binding], called: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Returns why a binding has had no effect, or "" if it had one."""
    scope, selector, argument = key
    inside = [(around, name) for around, name in called if not scope or f"{around}/".startswith(f"{scope}/")]
    if scope and selector != _MACRO and not inside:
        return f"nothing that gin configures was called in a scope '{scope}'"
    calls = [around for around, name in inside if name == selector]
    if not calls:
        return "nothing refers to it" if selector == _MACRO else "nothing has called the function"
    deciding = []
    for around in calls:
        parts = around.split("/")
        scopes = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        innermost = next((each for each in scopes if (each, selector, argument) in bound), "")
        if innermost == scope:
            deciding.append(around)
    if not deciding:
        return "another binding takes precedence in every scope in which the function was called"
    if any(argument in called[around, selector] for around in deciding):
        return ""
    return "it is bound in gin but passed explicitly by the code that calls the function"
