"""What a user's module or factory did wrong when Python stopped it: the error in words, and what to do.

Owns: the causes that Python's own message does not explain to the author of an experiment, and the line of the user's.
Does not own: importing modules (`registry.py`, `sources.py`), errors while a run computes.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import inspect
import pkgutil
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from official_trainer.config import Config, Origin, Problem
from official_trainer.config.errors import best_match, line_of_code
from official_trainer.garden.spec import is_config_class
from official_trainer.nearest import mistyped
from official_trainer.shown import shorten, wrapped
from official_trainer.user_code import is_users

_WIDTH = 112
_GARDEN_DATACLASS = "@dataclasses.dataclass"
_DATACLASS = "@dataclasses.dataclass(frozen=True, kw_only=True)"
_KEYWORD = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_SAME_NAMES = "albumentations h5py matplotlib nltk pandas polars pyarrow scipy seaborn sentencepiece torch transformers"
_OF_TENSORFLOW = "datasets hub io model_optimization probability text"
_PACKAGES = {
    **{name: name for name in _SAME_NAMES.split()},
    **{f"tensorflow_{name}": f"tensorflow-{name.replace('_', '-')}" for name in _OF_TENSORFLOW.split()},
    "PIL": "pillow",
    "cv2": "opencv-python",
    "keras_hub": "'official-trainer[hub]'",
    "official": "tf-models-official",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow_models": "tf-models-official",
    "yaml": "pyyaml",
}
"""How well-known modules are installed."""
_ADDONS = (
    "TensorFlow Addons has ended and does not work with this TensorFlow; tf_keras and tf-models-official have most of "
    "what it had"
)
_UNKNOWN = re.compile(r"^Unknown type: <class '([\w.<>]+)'>")  # of Model Garden's Config
_ORDER = re.compile(r"non-default argument '(\w+)' follows default argument")
_MUTABLE = re.compile(r"mutable default <class '([\w.]+)'> for field (\w+) is not allowed")


def problem(what: str, error: BaseException, place: Origin) -> Problem:
    """Returns the problem that an exception of the user's code ended something.

    Args:
      what: what it ended, such as `cannot be imported`.
      error: the exception.
      place: the line of the user's.
    """
    if isinstance(error, SystemExit):
        return Problem(f"{what}: it ends the process", fix="raise an error instead", origin=place)
    frozen = _assigned_section(error)
    if frozen is not None:
        return _of_frozen(what, *frozen, place)
    cause = error.msg if isinstance(error, SyntaxError | ImportError) else str(error)
    cause = cause.partition(" (/")[0]  # the file of the module that is imported
    near, fix = _near(error), _fix(error)
    if isinstance(error, ModuleNotFoundError) and not near:
        fix = how_to_install(error.name or "")
    if near and f"'{near}'" in cause:  # Python says it itself
        near = ""
    return Problem(f"{what}: {type(error).__name__}: {cause}", near=near, fix=fix, origin=place)


def how_to_install(module: str) -> str:
    """Returns how a well-known module is installed; empty for any other, and for one inside of a package."""
    if module == "tensorflow_addons":
        return _ADDONS
    package = _PACKAGES.get(module, "")
    return f"pip install {package} installs it" if package else ""


def line_of(error: BaseException, module: str, workspace: Path | None) -> Origin | None:
    """Returns the innermost line in the traceback of an error that is the user's; None if none is.

    Args:
      error: what was raised.
      module: whose package is the user's, also where it is installed.
      workspace: from which its files are seen; None for the current folder.
    """
    frames = [(frame.filename, frame.lineno or 1, 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 1, error.offset or 0))
    own = [frame for frame in frames if is_users(frame[0], module)]
    if not own:
        return None
    file, line, column = own[-1]
    origin = dataclasses.replace(line_of_code(file, line), column=column)
    if workspace is not None and Path(file).is_relative_to(folder := workspace.resolve()):
        return dataclasses.replace(origin, name=str(Path(file).relative_to(folder)))
    return origin


def at_method(cls: type, method: str, what: str, fix: str = "", *, returns: bool = True) -> str:
    """Returns a message with the user's line.

    Args:
      cls: a class of the user's.
      method: where the message belongs; empty for the class.
      what: is wrong.
      fix: of it.
      returns: whether it is about what the method returns, in place of where it begins.
    """
    where = next((owner for owner in cls.__mro__ if method in vars(owner)), None)
    owner = where or cls
    thing = cls if where is None else inspect.unwrap(getattr(vars(where)[method], "__func__", vars(where)[method]))
    origin = Origin("file", f"{owner.__module__}.{owner.__qualname__}")
    with contextlib.suppress(OSError, TypeError):
        lines, first = inspect.getsourcelines(thing)
        origin = line_of_code(inspect.getsourcefile(thing) or "", first - 1 + _line_in(lines, returns=returns))
    return at_line(origin, method, f"{what}{'; ' + fix if fix else ''}")


def at_line(origin: Origin, method: str, what: str) -> str:
    """Returns a message with a line of the user's, in a method or in none."""
    text = wrapped(f"{origin.brief}{' in ' + method if method else ''}: {what}", _WIDTH)
    lines = origin.text.splitlines()
    if not 0 < origin.line <= len(lines):
        return text
    source = f"{origin.line:>5} | {lines[origin.line - 1]}"
    return f"{text}\n{source if len(source) <= _WIDTH else f'{source[: _WIDTH - 2]} …'}"


def _line_in(lines: list[str], *, returns: bool) -> int:
    """Returns the number, from 1, of the only `return` of a function, or that of its `def` or `class`."""
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:  # of a lambda, whose first line is part of a statement
        return 1
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)] if returns else []
    return found[0] if len(found) == 1 and not isinstance(tree.body[0], ast.ClassDef) else tree.body[0].lineno


def needs_arguments(function: Callable[..., Any]) -> bool:
    """Returns whether a function cannot be called without arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return any(each.default is inspect.Parameter.empty and each.kind not in variable for each in parameters)


def _assigned_section(error: BaseException) -> tuple[Config, str] | None:
    """Returns the section and the field that code tried to assign, if that is what the error is about."""
    if not isinstance(error, dataclasses.FrozenInstanceError):
        return None
    found = _innermost(error)
    values = found.f_locals if found is not None else {}
    section, name = values.get("self"), values.get("name")
    return (section, name) if isinstance(section, Config) and isinstance(name, str) else None


def _of_frozen(what: str, section: Config, name: str, place: Origin) -> Problem:
    known = [field.name for field in dataclasses.fields(section)]
    near = "" if name in known else best_match(name, known)
    whose = f"{type(section).__name__}.{name}"
    cause = f"{what}: {whose} cannot be assigned, a config is frozen"
    cause += "" if name in known else f", and {type(section).__name__} has no field '{name}'"
    meant = near or name
    fix = f"give {meant}=… to {type(section).__name__}(…), or use .replace({meant}=…), which returns a copy"
    return Problem(cause, near=near, fix=fix, origin=place)


def _near(error: BaseException) -> str:
    """Returns the name that was meant, if the error is about a name."""
    frame = _innermost(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        parent, _, missing = error.name.rpartition(".")
        folders = getattr(sys.modules.get(parent), "__path__", []) if parent else None
        known = {*(each.name for each in pkgutil.iter_modules(folders)), *(() if parent else sys.stdlib_module_names)}
        near = mistyped(missing, sorted(known))
        return f"{parent}.{near}" if parent and near else near
    if isinstance(error, ImportError) and (found := re.match(r"cannot import name '(\w+)'", str(error))):
        return best_match(found[1], _public(sys.modules.get(error.name or "")))
    if isinstance(error, AttributeError):
        return best_match(error.name, _public(error.obj)) if error.name and error.obj is not None else ""
    if isinstance(error, NameError) and frame is not None and error.name:
        return best_match(error.name, [*frame.f_locals, *frame.f_globals, *vars(builtins)])
    if (found := _KEYWORD.search(str(error))) and frame is not None:
        called: Any = frame.f_locals.get(found[1], frame.f_globals.get(found[1]))
        with contextlib.suppress(TypeError, ValueError):
            return best_match(found[2], list(inspect.signature(called).parameters))
    return ""


def _fix(error: BaseException) -> str:
    """Returns what to do about a dataclass that Python, or Model Garden, refuses."""
    message, cls = str(error), _declared(error)
    is_garden = is_config_class(cls)
    if found := _MUTABLE.search(message):
        return _default_of(cls, found[2], is_garden=is_garden)
    if found := _UNKNOWN.search(message):
        kind = found[1].rpartition(".")[2]
        held = "numbers, text, lists, dicts and subclasses of hyperparams.Config"
        return f"a config of Model Garden cannot contain a {kind}; allowed: {held}"
    if "cannot inherit frozen dataclass" in message:
        return f"write {_GARDEN_DATACLASS} above the class: Model Garden's Config is not frozen" if is_garden else ""
    if found := _ORDER.search(message):
        return f"give '{found[1]}' a default" if is_garden else f"write {_DATACLASS} above the class"
    return f"write {_DATACLASS} above the class" if "cannot inherit non-frozen dataclass" in message else ""


def _declared(error: BaseException) -> type | None:
    """Returns the class that Python was making a dataclass of, or None."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == dataclasses.__file__ and isinstance(frame.f_locals.get("cls"), type):
            found = frame.f_locals["cls"]
    return found


def _default_of(cls: type | None, name: str, *, is_garden: bool) -> str:
    """Returns what to write in place of a default that can change."""
    value = getattr(cls, name, None)
    kind = type(value)
    is_own = cls is not None and kind.__module__.partition(".")[0] == cls.__module__.partition(".")[0]
    if is_garden:
        factory = kind.__name__ if is_own or not value else f"lambda: {shorten(repr(value))}"
        also = "" if not is_own or is_config_class(kind) else f", and make {factory} a subclass of hyperparams.Config"
        return f"write {name}: … = dataclasses.field(default_factory={factory}){also}"
    if kind in (list, set):
        return f"a config is frozen, so give '{name}' a tuple: tuple[int, ...] = (1, 2)"
    if kind is dict:
        return f"a config is frozen, so give '{name}' config.FrozenDict(…)"
    if not is_own:
        return f"a configuration cannot contain a {kind.__name__}"
    base = "" if issubclass(kind, Config) else f"make {kind.__name__} a subclass of config.Config, and "
    return f"{base}write {_DATACLASS} above class {kind.__name__}"


def _innermost(error: BaseException) -> types.FrameType | None:
    trace, frame = error.__traceback__, None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    return frame


def _public(value: Any) -> Iterable[str]:
    inner = [each.name for each in pkgutil.iter_modules(getattr(value, "__path__", []))]
    return [name for name in (*dir(value), *inner) if not name.startswith("_")]
