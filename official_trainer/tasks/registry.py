"""Names of experiments, and the Task class of each task config.

Owns: `register_config_factory`, `register_task_cls`, finding the workspace, the index of its experiments, imports.
Does not own: the experiments themselves (`experiments/`), or changing them (`config/`); modules of the user's outside
of a workspace (`sources.py`), and what they register (`listings.py`).

The index of a workspace reads decorators from the source, without an import; a file whose names are computed, or that
only imports a package, is imported by another process. Getting one experiment imports only its module. A
module may register with Model Garden's `exp_factory` instead, and a factory may return a configuration of Model Garden.
Modules of a workspace are called `experiments.…`; those of another workspace leave `sys.modules` while one is in use.

Example:
  >>> from official_trainer import registry
  >>> from official_trainer.config import ExperimentConfig, TrainerConfig
  >>> @registry.register_config_factory("tiny")
  ... def tiny():
  ...     return ExperimentConfig(trainer=TrainerConfig(train_steps=100))
  >>> registry.get_config("tiny").trainer.train_steps
  100
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from official_trainer.config import Config, ConfigError, Origin, Problem, components, fields
from official_trainer.config.errors import calling_line, line_of_class, line_of_code, unregistered
from official_trainer.garden import index as garden
from official_trainer.garden.spec import garden_class, is_config_class
from official_trainer.lazy import load
from official_trainer.nearest import nearest
from official_trainer.shown import first_few
from official_trainer.tasks import explained, listings, sources
from official_trainer.tasks.scan import FOLDER, Scanned, scan
from official_trainer.tasks.sources import Experiment, Source

if TYPE_CHECKING:
    from official_trainer.config import ExperimentConfig

_logger = logging.getLogger(__name__)

Factory = Callable[[], "ExperimentConfig"]
F = TypeVar("F", bound=Callable[[], Any])
C = TypeVar("C", bound=type)


class UnknownExperimentError(ConfigError):
    """No experiment has this name."""


@dataclasses.dataclass(frozen=True)
class _Registered:
    value: Any
    module: str
    origin: Origin


_factories: dict[tuple[Path | None, str], _Registered] = {}
_tasks: dict[type[Config], _Registered] = {}
_other_workspaces: dict[Path, dict[str, types.ModuleType]] = {}


# Registering.


def register_config_factory(name: str) -> Callable[[F], F]:
    """Registers a function without arguments that returns the `ExperimentConfig` called `name`.

    Args:
      name: the name for `--experiment`. A literal is listed without an import of the module.

    Returns:
      The decorator; it returns the function as it is. The first line of the function's docstring is listed.

    Raises:
      ConfigError: another function has the name; this is not a name, or what is decorated not such a function.

    Example:
      >>> from official_trainer import register_config_factory
      >>> from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig
      >>> @register_config_factory("digits_small")
      ... def digits_small():
      ...     '''Handwritten digits, a thousand steps.'''
      ...     return ExperimentConfig(
      ...         task=TaskConfig(train_data=DataConfig(global_batch_size=64)),
      ...         trainer=TrainerConfig(train_steps=1000, validation_interval=200),
      ...     )
      >>> digits_small().trainer.train_steps
      1000
    """
    if not isinstance(name, str):
        raise ConfigError([_no_name(name)])

    def register(factory: F) -> F:
        if not callable(factory) or explained.needs_arguments(factory):
            what = f"a factory is a function without arguments, and {getattr(factory, '__name__', factory)} is not one"
            fix = "read values from the configuration, inside the Task"
            raise ConfigError([Problem(what, fix=fix, origin=calling_line())])
        function, origin = garden.function_of(factory), sources.place_of(factory)
        key = _workspace_of(function), name
        known = _factories.get(key)
        if known is not None and _place(garden.function_of(known.value)) != _place(function):
            raise ConfigError([sources.registered_twice(f"experiment '{name}'", known.origin, origin)])
        _factories[key] = _Registered(factory, function.__module__, origin)
        return factory

    return register


def register_task_cls(config_cls: type[Config]) -> Callable[[C], C]:
    """Registers the decorated Task class for task configs of class `config_cls`.

    Args:
      config_cls: a subclass of `TaskConfig`. Its own subclasses have the same Task, unless they register another.

    Returns:
      The decorator; it returns the class as it is.

    Raises:
      ConfigError: another Task class is registered for it, or this is no class of a config.

    Example:
      >>> import dataclasses
      >>> from official_trainer import Task, register_task_cls, registry
      >>> from official_trainer.config import TaskConfig
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class DigitsConfig(TaskConfig):
      ...     num_classes: int = 10
      >>> @register_task_cls(DigitsConfig)
      ... class DigitsTask(Task):
      ...     '''Says which digit an image shows.'''
      >>> registry.get_task_cls(DigitsConfig()) is DigitsTask
      True
    """
    if not (isinstance(config_cls, type) and issubclass(config_cls, Config)):
        raise ConfigError([_no_config_class(config_cls)])

    def register(task_cls: C) -> C:
        known = _tasks.get(config_cls)
        origin = Origin("file", f"{task_cls.__module__}.{task_cls.__qualname__}")
        if known is not None and _place(known.value) != _place(task_cls):
            places = line_of_class(known.value) or known.origin, line_of_class(task_cls) or origin
            raise ConfigError([sources.registered_twice(f"the Task of {config_cls.__name__}", *places)])
        _tasks[config_cls] = _Registered(task_cls, task_cls.__module__, origin)
        return task_cls

    return register


def _no_name(given: Any) -> Problem:
    what, decorator = "register_config_factory needs the name of the experiment", "@register_config_factory"
    if callable(given):
        name = getattr(given, "__name__", "NAME")
        code = getattr(given, "__code__", None)
        place = line_of_code(code.co_filename, code.co_firstlineno) if code else calling_line()
        return Problem(what, fix=f'write {decorator}("{name}")', origin=place)
    return Problem(what, got=repr(given), fix=f'such as {decorator}("my_experiment")', origin=calling_line())


def _no_config_class(given: Any) -> Problem:
    decorator = "@register_task_cls"
    what = "register_task_cls needs the class of the task's config"
    if isinstance(given, str):
        return Problem(what, got=f"the text {given!r}", fix=f"write {decorator}({given})", origin=calling_line())
    if not isinstance(given, type):
        fix = f"write {decorator}({type(given).__name__})" if isinstance(given, Config) else ""
        return Problem(what, got=repr(given), fix=fix, origin=calling_line())
    if is_config_class(given):
        right = f"@task_factory.register_task_cls({given.__name__})"
        fix = f"a config of Model Garden has its Task by {right} of official.core"
    elif dataclasses.is_dataclass(given):
        fix = f"make {given.__name__} a subclass of config.TaskConfig"
    else:
        fix = f"write {decorator}(CONFIG), with the config class of {given.__name__} for CONFIG"
    return Problem(what, got=f"the class {given.__name__}", fix=fix, origin=calling_line())


def get_task_cls(task_config: Config, path: str = "task") -> Callable[..., Any]:
    """Returns the Task class registered for the class of `task_config`, or for its nearest base.

    For a task of Model Garden it returns the function that finds the class there.

    Args:
      task_config: the section.
      path: its path in the config.

    Raises:
      ConfigError: no class is registered; names the config class.

    Example:
      >>> import dataclasses
      >>> from official_trainer import Task, registry
      >>> from official_trainer.config import TaskConfig
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class LineConfig(TaskConfig):
      ...     slope: float = 2.0
      >>> @registry.register_task_cls(LineConfig)
      ... class LineTask(Task):
      ...     '''Learns the slope of a line.'''
      >>> config = LineConfig(slope=0.5)
      >>> registry.get_task_cls(config)(config).task_config.slope
      0.5
    """
    if garden_class(task_config) or is_config_class(type(task_config)):
        from official_trainer.garden.to_garden import build_task

        return build_task
    for cls in type(task_config).__mro__:
        if cls in _tasks:
            return _tasks[cls].value
    name = type(task_config).__name__
    what = f"no Task class is registered for {type(task_config).__module__}.{name}"
    known = first_few(sorted({cls.__name__ for cls in _tasks})) or "none"
    from official_trainer.tasks.task import Task  # which finding experiments does not need

    fix = unregistered(type(task_config), Task, "@register_task_cls", [each.value for each in _tasks.values()])
    fix = f"{fix or 'give the experiment the config class of a Task'}; registered: {known}"
    raise ConfigError([Problem(what, path, fix=fix, origin=line_of_class(type(task_config)))])


def gin_modules(task_config: Config) -> Sequence[str]:
    """Returns the modules to import so that gin knows the functions that a task calls."""
    if name := garden_class(task_config):
        return (name.partition(":")[0],)  # this imports the package around it, and so all that the task calls
    return getattr(get_task_cls(task_config), "gin_modules", ())


def _place(thing: Any) -> tuple[str, str, str]:
    """Returns an identity of a function or class that is the same after a module is imported again."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    return file, thing.__module__, thing.__qualname__


def _workspace_of(factory: Callable[[], Any]) -> Path | None:
    """Returns the workspace whose module defines `factory`, from the module's name and file; reads no file."""
    module = sys.modules.get(factory.__module__)
    parts = factory.__module__.split(".")
    file = getattr(module, "__file__", None)
    if parts[0] != FOLDER or file is None:
        return None
    up = len(parts) + (Path(file).name == "__init__.py")
    return Path(file).parents[up - 1]


# Finding.


def find_workspace(start: str | Path | None = None) -> Path | None:
    """Returns the nearest folder that holds `experiments/`, from a folder upwards; None without one.

    A folder whose `pyproject.toml` has a table `[tool.official-trainer]` counts too.

    Args:
      start: where to begin; None means the current folder.

    Example:
      >>> from pathlib import Path
      >>> from official_trainer import registry
      >>> Path("digits/experiments/vision").mkdir(parents=True)
      >>> registry.find_workspace("digits/experiments/vision").name
      'digits'
    """
    here = Path(start) if start is not None else Path.cwd()
    folders = (here.resolve(), *here.resolve().parents)
    return next((each for each in folders if (each / FOLDER).is_dir() or sources.declares(each)), None)


def experiments(workspace: Path) -> dict[str, Experiment]:
    r"""Returns the experiments of a workspace by name, from their source.

    Args:
      workspace: the folder that contains `experiments/`.

    Raises:
      ConfigError: two have the same name.

    Example:
      >>> from pathlib import Path
      >>> from official_trainer import registry
      >>> Path("experiments").mkdir()
      >>> _ = Path("experiments/digits.py").write_text(
      ...     '@register_config_factory("digits_small")\n'
      ...     'def digits_small():\n'
      ...     '    "Handwritten digits, a thousand steps."\n'
      ... )
      >>> for experiment in registry.experiments(Path(".")).values():
      ...     print(f"{experiment.name}: {experiment.summary} (line {experiment.line} of {experiment.path})")
      digits_small: Handwritten digits, a thousand steps. (line 2 of experiments/digits.py)
    """
    return _by_name(scan(Path(workspace)))


def _by_name(scanned: Scanned) -> dict[str, Experiment]:
    """Returns the experiments that the files of a workspace name, by name; fails as `experiments` does."""
    index: dict[str, Experiment] = {}
    problems: list[Problem] = []
    for experiment in scanned.found:
        first = index.setdefault(experiment.name, experiment)
        if first is not experiment:
            problems.append(sources.registered_twice(f"experiment '{first.name}'", _origin(first), _origin(experiment)))
    if problems:
        raise ConfigError(problems)
    return dict(sorted(index.items()))


def listed(
    workspace: Path | None, imports: Iterable[str] = (), *, finds_out: bool = True
) -> tuple[dict[str, Experiment], list[Problem]]:
    """Returns all experiments but Model Garden's by name, and why some may be missing.

    Args:
      workspace: the folder that contains `experiments/`, if there is one.
      imports: modules that `--import` names.
      finds_out: whether another process imports the modules of which nothing is kept; False is quick, and may miss
        some.

    Raises:
      ConfigError: two files of the workspace have the same name; a module that `--import` names cannot be imported.
    """
    scanned = scan(workspace) if workspace is not None else Scanned()
    found = _by_name(scanned)
    problems, given, computed = list(scanned.problems), sources.given(imports), scanned.all_computed
    declared, wrong = sources.declared(workspace)
    for source in [*given, *declared, *computed]:
        enter_for(workspace)
        listing = _listing(source, workspace, finds_out)
        if listing.problem is not None and source in given:
            raise ConfigError([listing.problem])
        problems += [listing.problem] if listing.problem is not None else []
        for each in listing.experiments:
            first = found.setdefault(each.name, each)
            if not _is_same(first.path, each.path):
                what = f"experiment '{each.name}'"
                problems.append(sources.registered_twice(what, _absolute(first), _absolute(each)))
        if finds_out and not listing.experiments and not listing.problem and source not in computed:
            problems.append(sources.registers_nothing(source))
    return found, [*problems, *wrong]


def _listing(source: Source, workspace: Path | None, finds_out: bool) -> listings.Listing:
    return listings.listing(source, workspace) if finds_out else listings.kept(source) or listings.Listing()


def _origin(experiment: Experiment) -> Origin:
    """Returns the place of the factory, with the file as seen from the workspace."""
    up = experiment.module.count(".") + (experiment.path.name == "__init__.py")
    return Origin("file", str(experiment.path.relative_to(experiment.path.parents[up])), experiment.line)


# Getting.


def get_config(
    name: str, workspace: Path | None = None, imports: Sequence[str] = (), *, finds_out: bool = True
) -> ExperimentConfig:
    """Returns the configuration of an experiment as its factory made it.

    Args:
      name: a name in the workspace, or one that imported code has registered.
      workspace: the folder that contains `experiments/`; None finds only registered names, and those of packages.
      imports: modules to import first, as `--import` does.
      finds_out: as in `listed`.

    Raises:
      UnknownExperimentError: no such name.
      ConfigError: its module or factory fails.

    Example:
      An experiment of the workspace would be `registry.get_config("digits_small", registry.find_workspace())`.

      >>> from official_trainer import registry
      >>> from official_trainer.config import ExperimentConfig, RuntimeConfig, resolve
      >>> @registry.register_config_factory("seeded")
      ... def seeded():
      ...     return ExperimentConfig(runtime=RuntimeConfig(seed=7))
      >>> resolve(registry.get_config("seeded"), sets=["trainer.train_steps=10"]).config.runtime.seed
      7
    """
    given = sources.given(imports)
    for source in given:
        enter_for(workspace)
        sources.load(source)
    search = _Search(name, workspace, bool(given), finds_out)
    search.look_in(search.scanned.computed)
    if not search.places:
        search.look_in(search.scanned.importing)
    if not search.places:
        search.look_in_broken()
    if len(search.places) > 1:
        first, *_, last = [origin for origin, _ in search.places.values()]
        raise ConfigError([sources.registered_twice(f"experiment '{name}'", first, last)])
    for _, get in search.places.values():
        for problem in search.problems:
            _logger.warning("%s", problem.message)
        return get()
    silent = [] if registered(None) or garden.imported() else [sources.registers_nothing(source) for source in given]
    raise UnknownExperimentError([_unknown(name, search, silent)])


def with_lines(error: ConfigError, name: str, workspace: Path | None) -> ConfigError:
    """Returns an error whose problems of the values of an experiment name the line at which its factory begins."""
    found = experiments(workspace).get(name) if workspace is not None else None
    if found is None:
        return error
    place = line_of_code(str(found.path), found.line)
    of_factory = [each.origin is not None and each.origin.kind == "experiment" for each in error.problems]
    return ConfigError(
        [
            dataclasses.replace(each, origin=place) if is_own else each
            for each, is_own in zip(error.problems, of_factory, strict=True)
        ]
    )


class _Search:
    """The places that register an experiment.

    Attributes:
      workspace: the folder that contains `experiments/`, if there is one.
      scanned: what the files of the workspace say.
      places: of each file, the place, and what returns the experiment.
      names: other names there are.
      problems: why some places are not known.
    """

    def __init__(self, name: str, workspace: Path | None, has_imports: bool, finds_out: bool) -> None:
        self._name, self.workspace, self._finds_out = name, workspace, finds_out
        self.scanned = scan(workspace) if workspace is not None else Scanned()
        self.places: dict[str, tuple[Origin, Factory]] = {}
        self.problems: list[Problem] = []
        index = _by_name(self.scanned)
        imported = {**registered(None), **(garden.imported() if has_imports else {})}
        self.names = [*index, *imported]
        if (own := index.get(name)) is not None:
            assert workspace is not None
            self._add(own.path, _origin(own), lambda: _from_workspace(own, Path(workspace)))
        if (factory := imported.get(name)) is not None:
            place, module = sources.place_of(factory), garden.function_of(factory).__module__
            self._add(Path(place.name), place, lambda: _call(name, _Registered(factory, module, place)))
        if (theirs := garden.entries().get(name)) is not None:
            where = Origin("file", theirs.path, theirs.line)
            self._add(Path(theirs.path), where, lambda: garden.experiment(name))
        declared, wrong = sources.declared(workspace)
        self.problems += wrong
        self.look_in(declared)

    def look_in(self, modules: Iterable[Source]) -> None:
        """Adds what modules register."""
        for source in modules:
            enter_for(self.workspace)
            listing = _listing(source, self.workspace, self._finds_out)
            self.problems += [listing.problem] if listing.problem is not None else []
            for each in listing.experiments:
                self.names.append(each.name)
                if each.name == self._name:
                    get = functools.partial(_from_source, each, source, self.workspace)
                    self._add(each.path, _absolute(each), get)

    def look_in_broken(self) -> None:
        """Adds a file that Python cannot read and whose text has the name: importing it tells why."""
        for source, path, text in self.scanned.broken:
            if self.workspace is not None and any(f"{quote}{self._name}{quote}" in text for quote in "\"'"):
                broken = Experiment(self._name, source.module, path, source.named_by.line, "")
                self._add(path, source.named_by, functools.partial(_from_workspace, broken, Path(self.workspace)))

    def _add(self, path: Path, place: Origin, get: Factory) -> None:
        self.places.setdefault(os.path.realpath(path), (place, get))


def registered(workspace: Path | None) -> dict[str, Factory]:
    """Returns the factories that imported modules have registered, in or outside of a workspace, by name."""
    return {
        name: each.value
        for (place, name), each in _factories.items()
        if place is None or (workspace is not None and _is_same(place, workspace))
    }


def _unknown(name: str, search: _Search, silent: list[Problem]) -> Problem:
    names, workspace = list(dict.fromkeys(search.names)), search.workspace
    near = nearest(name, [*names, *garden.entries()])
    what = f"unknown experiment '{name}'"
    known = ", ".join(sorted(names)) if len(names) <= 12 else ", ".join(near)
    reasons = [problem.message for problem in [*search.scanned.problems, *search.problems, *silent]]
    if not names and not near:
        empty = f"no folder '{FOLDER}' here or above" if workspace is None else f"'{FOLDER}' registers no experiment"
        return Problem(what, fix="; ".join([empty, *reasons]))
    return Problem(what, allowed=known, near=near[0] if near else "", fix="; ".join(reasons))


def _from_source(experiment: Experiment, source: Source, workspace: Path | None) -> ExperimentConfig:
    """Imports the module that registers an experiment, and calls its factory."""
    enter_for(workspace)
    sources.load(source)
    factory = {**garden.imported(), **registered(workspace)}.get(experiment.name)
    if factory is None:
        raise ConfigError([Problem(f"importing it does not register '{experiment.name}'", origin=source.named_by)])
    return _call(experiment.name, _Registered(factory, source.module, sources.place_of(factory)))


def _absolute(experiment: Experiment) -> Origin:
    return Origin("file", str(experiment.path), experiment.line)


def _from_workspace(experiment: Experiment, workspace: Path) -> ExperimentConfig:
    enter(workspace)
    where = _origin(experiment)
    if experiment.imports_garden:
        load("tensorflow")  # before any other import of it, so that it comes without Keras 3
    try:
        importlib.import_module(experiment.module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if (again := garden.taken(error)) is not None:
            first = sources.place_of(again[1])
            raise ConfigError([sources.registered_twice(f"experiment '{again[0]}'", first, where)]) from error
        place = _deepest(error, _Registered(None, experiment.module, where), workspace)
        raise ConfigError([explained.problem("cannot be imported", error, place)]) from error
    found = [r for (place, name), r in _factories.items() if name == experiment.name and _is_same(place, workspace)]
    theirs = None if found else garden.registered(experiment.name, experiment.module)
    if theirs is not None:
        found = [_Registered(theirs, experiment.module, where)]
    if not found:
        what = f"importing it does not register '{experiment.name}'"
        raise ConfigError([Problem(what, fix="check whether the factory is inside an 'if'", origin=where)])
    return _call(experiment.name, dataclasses.replace(found[0], origin=where), workspace)


def _is_same(place: Path | None, workspace: Path) -> bool:
    return place is not None and place.resolve() == workspace.resolve()


def enter_for(workspace: Path | None) -> None:
    """Makes the modules of a workspace importable; without one, those of the current folder."""
    if workspace is not None:
        enter(Path(workspace))
    else:
        sources.enter_here()


def enter(workspace: Path) -> None:
    """Makes later imports of `experiments`, `actions` and `tracking` find the folders of this workspace."""
    workspace = workspace.resolve()
    components.use_workspace(workspace)
    folder = workspace / FOLDER
    package = sys.modules.get(FOLDER)
    current = [Path(path).resolve() for path in getattr(package, "__path__", [])]
    if folder in current[:1]:
        return
    if current:
        _other_workspaces[current[0].parent] = {name: sys.modules.pop(name) for name in _own_modules()}
        sys.path[:] = [path for path in sys.path if path != str(current[0].parent)]
    from official_trainer.tracking import code_files  # which a list of names does not need

    if (code := code_files.at(workspace)) is not None:  # PYTHONPATH may name the folders that it is a copy of
        sys.path[:] = [path and code.place_of(path) for path in sys.path]
    sys.path.insert(0, str(workspace))
    importlib.invalidate_caches()
    if workspace in _other_workspaces:
        sys.modules.update(_other_workspaces.pop(workspace))
        return
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(FOLDER, init, submodule_search_locations=[str(folder)])
    if not init.is_file():
        spec = importlib.machinery.ModuleSpec(FOLDER, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    assert spec is not None
    sys.modules[FOLDER] = importlib.util.module_from_spec(spec)
    if spec.loader is not None:
        spec.loader.exec_module(sys.modules[FOLDER])


def _own_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in (FOLDER, *components.FOLDERS)]


def _call(name: str, registered: _Registered, workspace: Path | None = None) -> ExperimentConfig:
    from official_trainer.config import ExperimentConfig  # with all sections, which a list of names does not need

    try:
        config = registered.value()
    except ConfigError:
        raise
    except Exception as error:
        what = f"the factory of experiment '{name}' failed"
        raise ConfigError([explained.problem(what, error, _deepest(error, registered, workspace))]) from error
    if garden.is_experiment(config):
        config = garden.from_object(config, registered.module)
    if not isinstance(config, ExperimentConfig):
        what = f"the factory of experiment '{name}' must return an ExperimentConfig"
        got = "nothing" if config is None else f"a {type(config).__name__}"
        fix = f"write `return` before the config at the end of {registered.value.__name__}()" if config is None else ""
        raise ConfigError([Problem(what, got=got, fix=fix, origin=registered.origin)])
    for _, part in fields.walk(config):
        if fields.is_section(part):
            fields.hints(type(part))  # cached now, while names in annotations are looked up in this workspace's modules
    return config


def _deepest(error: BaseException, registered: _Registered, workspace: Path | None) -> Origin:
    """Returns the innermost line of the workspace in the traceback of the error."""
    if workspace is None:
        return sources.line_of(error, registered.module) or registered.origin
    return explained.line_in(workspace.resolve(), error) or registered.origin
