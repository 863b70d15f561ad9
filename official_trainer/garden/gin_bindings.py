"""Arguments of library functions that gin binds, from `--gin_file` and `--gin_params`.

Owns: when gin's process-wide state is set and given back, what may be bound, which bindings came to nothing.
Does not own: gin's syntax (`gin_syntax.py`), what a run keeps of its bindings (`runs/resume/config_files.py`).

The config owns every hyperparameter; gin is for `@gin.configurable` functions that the config does not reach. Nobody
imports gin here before one of the flags is given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import Config, ConfigError, Origin, Problem
from official_trainer.errors import nearest
from official_trainer.garden import gin_syntax
from official_trainer.garden.gin_syntax import Macro, Reference, Source
from official_trainer.garden.spec import is_config_class

_logger = logging.getLogger(__name__)

_MACRO = "gin.macro"
_SHOWN_ARGUMENTS = 12

Key = tuple[str, str, str]
"""Scope (`""` for none), whole name of the function, argument."""


@dataclasses.dataclass(frozen=True)
class Binding:
    """One argument that is bound.

    Attributes:
      name: as gin writes it, with the whole name of the function: `scope/module.function.argument`.
      value: as it was written.
      written: the name as it was written.
      origin: the last place that binds it.
    """

    name: str
    value: str
    written: str
    origin: Origin


class Bindings:
    """What the gin flags of a command bind; `in_force` tells what that is in full.

    Attributes:
      bound: the bindings by their keys; None before they were in force.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self.bound: Mapping[Key, Binding] | None = None

    @property
    def plain(self) -> dict[str, str]:
        """The values by name, once the bindings were in force."""
        assert self.bound is not None
        return {binding.name: binding.value for _, binding in sorted(self.bound.items())}


def read(gin_files: Sequence[str] | None, gin_params: Sequence[str] | None) -> Bindings | None:
    """Returns what the flags bind, read but not looked up; None if they say nothing. Empty values say nothing.

    Raises:
      ConfigError: see `gin_syntax.read`.
    """
    named, params = list(filter(None, gin_files or ())), list(filter(None, gin_params or ()))
    return Bindings(gin_syntax.read(named, params)) if named or params else None


@contextlib.contextmanager
def in_force(bindings: Bindings | None, modules: Sequence[str] = (), *, reports: bool = True) -> Iterator[None]:
    """Binds for the block, and then gives gin back as it was; says what came to nothing if the block ends well.

    Args:
      bindings: what to bind; None leaves gin alone.
      modules: imported first, because gin knows functions only once their modules are.
      reports: whether this process speaks for the run.

    Raises:
      ConfigError: there is no such function or argument, or it may not be bound.
    """
    if bindings is None:
        yield
        return
    gin = gin_syntax.load_gin().config
    for module in modules:
        importlib.import_module(module)
    before = {key: dict(arguments) for key, arguments in gin._CONFIG.items()}
    _reset(gin, before)
    try:
        bindings.bound = _Binder(gin).bind(bindings.sources)
        yield
        if reports:
            for line in unused(bindings.bound):
                _logger.warning("%s", line)
    finally:
        _reset(gin, before)


def _reset(gin: Any, config: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Unlocks gin and forgets what was called; what code has bound by itself stays."""
    gin.clear_config()
    gin._CONFIG.update({key: dict(arguments) for key, arguments in config.items()})


class _Binder:
    """Binds statement by statement, as gin's parser does, but notes everything that is wrong, with its place."""

    def __init__(self, gin: Any) -> None:
        self._gin = gin
        self._problems: list[Problem] = []
        self._bound: dict[Key, Binding] = {}
        self._macros: list[tuple[str, Origin]] = []

    def bind(self, sources: Sequence[Source]) -> dict[Key, Binding]:
        for source in sources:
            self._source(source)
        for name, place in self._macros:
            if (name, _MACRO) not in self._gin._CONFIG:
                fix = f"write {name} = VALUE somewhere"
                self._note(f"%{name}", "no macro or constant has this name", place, fix=fix)
        if not self._problems:
            self._lock()
        if self._problems:
            raise ConfigError(self._problems)
        return self._bound

    def _lock(self) -> None:
        try:
            self._gin.finalize()
        except ValueError as error:  # of a hook: gin has some, and code may add others
            self._problems.append(Problem(f"gin: {_said(error)}"))

    def _source(self, source: Source) -> None:
        with self._gin._parse_scope() as context:  # what a source imports, its statements alone may use
            for statement, place in source.statements:
                if isinstance(statement, Source):
                    self._source(statement)
                elif hasattr(statement, "module"):
                    self._import(context, statement, place)
                else:
                    self._binding(context, statement, place)
            self._gin._IMPORTS.update(context.imports)

    def _import(self, context: Any, statement: Any, place: Origin) -> None:
        try:
            context.process_import(statement)
        except Exception as error:  # whatever the module does
            self._note("", f"cannot be imported: {type(error).__name__}: {_said(error)}", place)

    def _binding(self, context: Any, statement: Any, place: Origin) -> None:
        scope, selector, argument = statement.scope, statement.selector, statement.arg_name
        if argument:
            name, function = f"{selector}.{argument}", self._function(context, selector, place)
            name = f"{scope}/{name}" if scope else name
        else:  # `name = value` is a macro
            scope, selector, argument = f"{scope}/{selector}" if scope else selector, _MACRO, "value"
            name, function = scope, self._gin._REGISTRY[_MACRO]
        value = self._value(context, statement.value, place)
        if function is None or not self._may_bind(function, argument, name, place):
            return
        key = (scope, function.selector, argument)
        try:
            self._gin.bind_parameter((scope, selector, argument), value)
        except ValueError as error:
            self._note(name, _said(error), place)
            return
        self._bound[key] = Binding(_name(key), repr(statement.value), name, place)

    def _function(self, context: Any, selector: str, place: Origin) -> Any:
        """Returns what gin knows about a function, or None once it is noted that there is none."""
        registry = self._gin._REGISTRY
        try:
            found = context.get_configurable(selector)
        except KeyError:
            matching = ", ".join(sorted(registry.matching_selectors(selector)))
            self._note(selector, "several functions have this name", place, allowed=matching)
            return None
        except (NameError, AttributeError) as error:  # only where the source has enabled dynamic registration
            self._note(selector, _said(error), place)
            return None
        if found is None:
            known = {whole.rpartition(".")[2]: None for whole, _ in registry.items()}
            near = nearest(selector.rpartition(".")[2], known)
            fix = "is its module imported? `import MODULE` in a gin file does it, or gin_modules of the Task"
            self._note(selector, "gin knows no such function", place, near=near[0] if near else "", fix=fix)
        return found

    def _may_bind(self, function: Any, argument: str, name: str, place: Origin) -> bool:
        if inspect.isclass(function.wrapped) and _is_config(function.wrapped):
            fix = "set it in YAML, or with --set"
            self._note(
                name, f"{function.name} is a section of the configuration, which gin never binds", place, fix=fix
            )
            return False
        if self._gin._might_have_parameter(function.wrapper, argument):
            return True
        arguments = [name for name in inspect.signature(function.wrapped).parameters if name != "self"]
        near = nearest(argument, arguments)
        shown = [*arguments[:_SHOWN_ARGUMENTS], *["…"][: len(arguments) > _SHOWN_ARGUMENTS]]
        what = f"{function.name} has no argument '{argument}'"
        self._note(name, what, place, allowed=", ".join(shown), near=near[0] if near else "")
        return False

    def _value(self, context: Any, value: Any, place: Origin) -> Any:
        """Returns a value with gin's objects for its references; what is wrong with them is noted."""
        if isinstance(value, Reference):
            selector = value.name.rpartition("/")[2]
            if self._function(context, selector, place) is None:
                return None
            return self._gin.ConfigurableReference(value.name, value.is_called)
        if isinstance(value, Macro):
            return self._macro(value, place)
        if isinstance(value, dict):
            parts = [
                (self._value(context, key, place), self._value(context, part, place)) for key, part in value.items()
            ]
            return dict(parts)
        if isinstance(value, list | tuple):
            return type(value)(self._value(context, part, place) for part in value)
        return value

    def _macro(self, macro: Macro, place: Origin) -> Any:
        try:
            reference = self._gin.ParserDelegate().macro(macro.name)
        except ValueError as error:
            self._note(str(macro), _said(error), place)
            return None
        if reference.selector == _MACRO:
            self._macros.append((macro.name, place))
        return reference

    def _note(self, path: str, what: str, place: Origin, **more: Any) -> None:
        self._problems.append(Problem(what, path, origin=place, **more))


def _name(key: Key) -> str:
    scope, selector, argument = key
    if selector == _MACRO:
        return scope
    return f"{scope}/{selector}.{argument}" if scope else f"{selector}.{argument}"


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _is_config(cls: type) -> bool:
    return issubclass(cls, Config) or is_config_class(cls)


def operative() -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the arguments that gin has given so far, by scope and function; defaults that gin saw are among them."""
    gin = gin_syntax.load_gin().config
    with gin._OPERATIVE_CONFIG_LOCK:
        return {key: dict(arguments) for key, arguments in gin._OPERATIVE_CONFIG.items()}


def unused(bound: Mapping[Key, Binding]) -> list[str]:
    """Returns a line for each binding that has changed nothing so far, in the order of the flags."""
    called = operative()
    return [
        f"{binding.origin.brief}: gin binding {binding.written} = {binding.value} had no effect: {reason}"
        for key, binding in bound.items()
        if (reason := _why_unused(key, bound, called))
    ]


def _why_unused(key: Key, bound: Mapping[Key, Binding], called: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Returns why a binding has changed nothing, or "" if it has."""
    scope, selector, argument = key
    calls = [around for around, name in called if name == selector and _is_within(around, scope)]
    if scope and selector != _MACRO and not any(_is_within(around, scope) for around, _ in called):
        return f"nothing that gin configures was called in a scope '{scope}'"
    if not calls:
        return "nothing refers to it" if selector == _MACRO else "nothing has called the function"
    deciding = [around for around in calls if _scope_that_binds(around, selector, argument, bound) == scope]
    if not deciding:
        return "in all scopes in which the function was called, another binding comes first"
    if any(argument in called[around, selector] for around in deciding):
        return ""
    return "it is bound in gin but passed explicitly by the code that calls the function"


def _is_within(around: str, scope: str) -> bool:
    return not scope or around == scope or around.startswith(f"{scope}/")


def _scope_that_binds(around: str, selector: str, argument: str, bound: Mapping[Key, Binding]) -> str:
    """Returns the innermost scope around a call that binds the argument."""
    parts = around.split("/")
    scopes = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((scope for scope in scopes if (scope, selector, argument) in bound), "")
