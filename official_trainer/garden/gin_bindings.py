"""Arguments of library functions that gin binds, from `--gin_file` and `--gin_params`.

Owns: binding them for one block by gin's own parser, and restoring gin after it; what gin says of a mistake, with the
flag that names the text. Does not own: the files of bindings in a run directory (`runs/resume/config_changes.py`).

The config owns every hyperparameter; gin is for `@gin.configurable` functions that the config does not reach. gin is
imported only when one of the flags is given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import tokenize
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import ConfigError, Problem

FILE_FLAG, PARAMS_FLAG = "--gin_file", "--gin_params"

_REQUIREMENT = "gin-config>=0.5,<0.6"


@dataclasses.dataclass
class Bindings:
    """What the gin flags of a command bind.

    Attributes:
      files: paths, read first.
      params: bindings as text, one or more in each.
      bound: what is bound, values as gin writes them, by `scope/function.argument`; None until `in_force` binds it.
    """

    files: tuple[str, ...]
    params: tuple[str, ...]
    bound: Mapping[str, str] | None = None


def load_gin() -> types.ModuleType:
    """Imports gin.

    Raises:
      ConfigError: it is not installed.
    """
    try:
        import gin
    except ModuleNotFoundError as error:
        what = f"{FILE_FLAG} and {PARAMS_FLAG} need {error.name}, which is not installed"
        raise ConfigError([Problem(what, fix=f"pip install '{_REQUIREMENT}'")]) from error
    return gin


def read(gin_files: Sequence[str] | None, gin_params: Sequence[str] | None) -> Bindings | None:
    """Returns what the flags say, or None if both are empty; gin reads it once TensorFlow is imported.

    Args:
      gin_files: paths; relative ones start at the current directory, a package, or a search path of gin.
      gin_params: bindings, one per line.

    Raises:
      ConfigError: gin is not installed.
    """
    names, params = list(filter(None, gin_files or ())), list(filter(None, gin_params or ()))
    if not names and not params:
        return None
    load_gin()
    return Bindings(tuple(map(os.path.expanduser, names)), tuple(params))


@contextlib.contextmanager
def in_force(bindings: Bindings | None, modules: Sequence[str] = ()) -> Iterator[None]:
    """Binds for the block, and then gives gin back the bindings that Python code has made.

    Args:
      bindings: what to bind; with None, gin is not touched.
      modules: imported first, because gin knows functions only after their modules are imported.

    Raises:
      ConfigError: a file is not there, a text is not gin's syntax, or a function or an argument does not exist.
    """
    if bindings is None:
        yield
        return
    gin = load_gin()
    for module in modules:
        importlib.import_module(module)
    before = gin.config_str()
    _reset(gin, before)
    try:
        for name in bindings.files:
            with _explained(f"{FILE_FLAG}={name}"):
                if files.is_url(name):
                    gin.parse_config(files.read_text(name))
                else:
                    gin.parse_config_file(name)
        with _explained(PARAMS_FLAG):
            gin.parse_config_files_and_bindings([], bindings.params, skip_unknown=False)  # and locks gin
        bindings.bound = _values(gin.config_str())
        yield
    finally:
        _reset(gin, before)


def _reset(gin: Any, config: str) -> None:
    """Unlocks gin, clears the record of calls, and binds `config` alone."""
    gin.clear_config()
    gin.parse_config(config)


@contextlib.contextmanager
def _explained(flag: str) -> Iterator[None]:
    """Turns what gin raises into a problem of a flag; modules that it imports may raise any error."""
    try:
        yield
    except RecursionError as error:
        fix = "write fewer levels, and include no file in itself"
        raise ConfigError([Problem(f"{flag}: gin: brackets or files are nested too deep", fix=fix)]) from error
    except Exception as error:
        if isinstance(error, tokenize.TokenError):  # it names no place in its text
            message, (line, _) = error.args
            text = f"{message} (line {line})"
        else:
            text = " ".join(str(error).split())
        raise ConfigError([Problem(f"{flag}: gin: {text}")]) from error


class _Name(str):
    """A reference or a macro as it is written; the `repr` of a value that contains names is gin's syntax again."""

    __repr__ = str.__str__


class _Names:
    """Gives gin's parser names for references and macros, which it would look up."""

    def configurable_reference(self, name: str, evaluate: bool) -> _Name:
        return _Name(f"@{name}{'()' * evaluate}")

    def macro(self, name: str) -> _Name:
        return _Name(f"%{name}")


def _values(config: str) -> dict[str, str]:
    """Returns the values of gin's own text of what is bound, by `scope/function.argument`."""
    from gin import config_parser

    values: dict[str, str] = {}
    for statement in config_parser.ConfigParser(config, _Names()):
        if isinstance(statement, config_parser.BindingStatement):
            name = ".".join(filter(None, (statement.selector, statement.arg_name)))
            values["/".join(filter(None, (statement.scope, name)))] = repr(statement.value)
    return values
