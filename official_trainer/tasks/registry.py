"""Names of experiments, and the Task class of each task config.

Owns: `register_config_factory`, `register_task_cls`, finding the workspace, the index of its experiments, imports.
Does not own: the experiments themselves (`experiments/`), or changing them (`config/`); modules of the user's outside
of a workspace (`sources.py`).

Names that are literals are read from the source, without an import; a module that computes names is imported when
another name is asked for. Getting one experiment imports its module, and what names its package. A module may register
with Model Garden's `exp_factory` instead, and a factory may return a configuration of Model Garden. Modules of a
workspace are called `experiments.…`; those of another workspace leave `sys.modules` while one is in use.

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
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from official_trainer.config import Config, ConfigError, Origin, Problem, components, fields
from official_trainer.config.errors import calling_line, line_of_class, line_of_code, unregistered
from official_trainer.garden import index as garden_index
from official_trainer.garden.scan import FOLDER, Experiment, Scanned, scan
from official_trainer.garden.spec import garden_class, is_config_class
from official_trainer.lazy import load, uses_keras
from official_trainer.nearest import nearest
from official_trainer.shown import first_few
from official_trainer.tasks import explained, sources
from official_trainer.tasks.sources import Source

if TYPE_CHECKING:
    from official_trainer.config import ExperimentConfig

_logger = logging.getLogger(__name__)
_IMPORTS_GARDEN = re.compile(rb"^(?:from|import)\s+official\b", re.MULTILINE)

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


def register_config_factory(name: str, task_cls: type | None = None) -> Callable[[F], F]:
    """Registers a function without arguments that returns the `ExperimentConfig` called `name`.

    Args:
      name: the name for `--experiment`. A literal is listed without an import of the module.
      task_cls: the experiment's Task, if that has no fields of its own: then `TaskConfig` is its config, and neither a
        subclass of that nor `register_task_cls` is needed. None if the class of the config tells the Task.

    Returns:
      The decorator; it returns the function as it is, and with `task_cls` one whose configs belong to that Task. The
      first line of the function's docstring is listed.

    Raises:
      ConfigError: another function has the name; this is not a name, no class, or what is decorated not such a
        function.

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
    if not isinstance(task_cls, type | None):
        what, fix = "task_cls is the class of a Task", "leave it out if the class of the task's config tells the Task"
        raise ConfigError([Problem(what, got=repr(task_cls), fix=fix, origin=calling_line())])

    def register(factory: F) -> F:
        if not callable(factory) or explained.needs_arguments(factory):
            what = f"a factory is a function without arguments, and {getattr(factory, '__name__', factory)} is not one"
            fix = "read values from the configuration, inside the Task"
            raise ConfigError([Problem(what, fix=fix, origin=calling_line())])
        function, origin = garden_index.function_of(factory), sources.place_of(factory)
        key = _workspace_of(function), name
        known = _factories.get(key)
        if known is not None and _place(garden_index.function_of(known.value)) != _place(function):
            raise ConfigError([sources.registered_twice(f"experiment '{name}'", known.origin, origin)])
        if task_cls is not None:
            factory = _with_task(factory, task_cls)
        _factories[key] = _Registered(factory, function.__module__, origin)
        return factory

    return register


def _with_task(factory: F, task_cls: type) -> F:
    """Returns a factory whose `TaskConfig` is of a class for `task_cls` alone, by which its Task is found."""

    @functools.wraps(factory)
    def made() -> Any:
        config, own = factory(), _config_cls_of(task_cls)
        section = getattr(config, "task", None)
        if type(section) in own.__bases__:
            names = [each.name for each in dataclasses.fields(own)]
            return config.replace(task=own(**{each: getattr(section, each) for each in names}))
        if section is not None and type(section) is not own:
            given = type(section).__name__
            what = f"task_cls={task_cls.__name__} needs a task=TaskConfig(…), and this one is a {given}"
            fix = f"leave out task_cls, and write @register_task_cls({given}) above class {task_cls.__name__}"
            raise ConfigError([Problem(what, fix=fix, origin=sources.place_of(factory))])
        return config

    return cast(F, made)


@functools.cache
def _config_cls_of(task_cls: type) -> type[Config]:
    """Returns the class of the config of a Task that has none; it has no further fields."""
    from official_trainer.config import TaskConfig  # which a list of names does not need

    name = f"{task_cls.__name__}Config"
    own = dataclasses.make_dataclass(name, (), bases=(TaskConfig,), frozen=True, kw_only=True)
    own.__module__, own.__doc__ = task_cls.__module__, f"Data and first weights of {task_cls.__name__}."
    register_task_cls(own)(task_cls)
    return own


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
    # An optimizer of tf_keras is made by it, which is imported when it is needed.
    optimizers = ("official.modeling.optimization",) if uses_keras(2) else ()
    return (*optimizers, *getattr(get_task_cls(task_config), "gin_modules", ()))


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


def named(workspace: Path | None, imports: Iterable[str] = ()) -> dict[str, Experiment]:
    r"""Returns all experiments but Model Garden's whose names the source has, without an import.

    Args:
      workspace: the folder that contains `experiments/`, if there is one.
      imports: modules that `--import` names.

    Example:
      >>> from pathlib import Path
      >>> from official_trainer import registry
      >>> Path("experiments").mkdir()
      >>> _ = Path("experiments/digits.py").write_text(
      ...     '@register_config_factory("digits_small")\n'
      ...     'def digits_small():\n'
      ...     '    "Handwritten digits, a thousand steps."\n'
      ... )
      >>> for experiment in registry.named(Path(".")).values():
      ...     print(f"{experiment.name}: {experiment.summary} (line {experiment.line} of {experiment.path})")
      digits_small: Handwritten digits, a thousand steps. (line 2 of experiments/digits.py)
    """
    return _by_name(_Index(workspace, imports).found)[0]


def _by_name(experiments: Iterable[Experiment]) -> tuple[dict[str, Experiment], list[Problem]]:
    """Returns experiments by name, and those names that two places have."""
    index: dict[str, Experiment] = {}
    problems: list[Problem] = []
    for each in experiments:
        first = index.setdefault(each.name, each)
        if (os.path.realpath(first.path), first.line) != (os.path.realpath(each.path), each.line):
            problems.append(sources.registered_twice(f"experiment '{each.name}'", first.origin, each.origin))
    return index, problems


def listed(workspace: Path | None, imports: Sequence[str] = ()) -> tuple[dict[str, Experiment], list[Problem]]:
    """Returns all experiments but Model Garden's by name, and why some may be missing. It imports only `imports`.

    Args:
      workspace: the folder that contains `experiments/`, if there is one.
      imports: modules that `--import` names.

    Raises:
      ConfigError: a module that `--import` names cannot be imported.
    """
    _load_given(workspace, imports)
    index = _Index(workspace, imports)
    names = {each.name for each in index.found}
    imported = [_of_factory(*each) for each in sorted(_imported(workspace).items()) if imports and each[0] not in names]
    found, twice = _by_name([*index.found, *imported])
    computed = [
        Problem(
            "it computes names",
            fix=f"`official-trainer list --import={each.module}` lists them",
            origin=each.origin,
        )
        for each in index.computed
        if each.module not in sys.modules
    ]
    return found, [*index.unread, *twice, *computed, *index.problems, *([] if imported else index.silent)]


def _of_factory(name: str, factory: Factory) -> Experiment:
    place, function = sources.place_of(factory), garden_index.function_of(factory)
    summary = (function.__doc__ or "").strip().partition("\n")[0]
    return Experiment(name, function.__module__, Path(place.name), place.line, summary)


class _Index(Scanned):
    """What the source of a workspace, and of the packages that belong to it, says.

    Attributes:
      modules: what to import for the experiments of each package that is none of the workspace's own.
      problems: what is wrong with the modules that `pyproject.toml` and entry points name.
      silent: packages that register nothing.
    """

    def __init__(self, workspace: Path | None, imports: Iterable[str]) -> None:
        super().__init__()
        if workspace is not None and (workspace / FOLDER).is_dir():
            self.add(scan(workspace / FOLDER, FOLDER))
        self.modules: dict[str, list[Source]] = {}
        declared, self.problems = sources.declared(workspace)
        self.silent: list[Problem] = []
        named = [*sources.given(imports), *declared]
        for source in [*named, *(sources.imported_by(workspace) if workspace is not None else ())]:
            try:
                said = sources.read(source, workspace)
            except ConfigError as error:
                self.problems += error.problems
                continue
            if source.package not in self.modules:
                self.add(said)
            self.modules.setdefault(source.package, []).append(source)
            if source in named and not (said.found or said.computed or said.broken):
                self.silent.append(sources.registers_nothing(source))

    @property
    def unread(self) -> list[Problem]:
        """Why experiments of files are not known."""
        return [Problem(f"its experiments are not listed: {each.summary}", origin=each.origin) for each in self.broken]


def _load_given(workspace: Path | None, imports: Sequence[str]) -> None:
    """Imports the modules that `--import` names."""
    for source in sources.given(imports):
        enter_for(workspace)
        sources.load(source, workspace)


def _imported(workspace: Path | None) -> dict[str, Factory]:
    """Returns the factories that imported modules have registered, with us or with Model Garden, by name."""
    return {**garden_index.imported(), **registered(workspace)}


# Getting.


def get_config(name: str, workspace: Path | None = None, imports: Sequence[str] = ()) -> ExperimentConfig:
    """Returns the configuration of an experiment as its factory made it.

    Args:
      name: a name in the workspace, or one that imported code has registered.
      workspace: the folder that contains `experiments/`; None finds only registered names, and those of packages.
      imports: modules to import first, as `--import` does.

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
    workspace = Path(workspace) if workspace is not None else None
    _load_given(workspace, imports)
    index = _Index(workspace, imports)
    own, twice = _by_name(each for each in index.found if each.name == name)
    if twice:
        raise ConfigError(twice)
    places: dict[str, tuple[Origin, Factory]] = {}  # of each file, the place, and what returns the experiment
    for each in own.values():
        get: Factory = functools.partial(_from_source, each, index, workspace)
        places[os.path.realpath(each.path)] = each.origin, get
    is_of_package = any(not _is_own(each) for each in own.values())  # importing it refuses what another has registered
    if not is_of_package and (factory := (_imported(None) if imports else registered(None)).get(name)) is not None:
        place = sources.place_of(factory)
        get = functools.partial(_call, name, factory, place, workspace)
        places.setdefault(os.path.realpath(place.name), (place, get))
    if (theirs := garden_index.entries().get(name)) is not None:
        get = functools.partial(garden_index.experiment, name)
        places.setdefault(os.path.realpath(theirs.path), (theirs.origin, get))
    if not places and (factory := _computed(name, index, workspace)) is not None:
        return _call(name, factory, sources.place_of(factory), workspace)
    if len(places) > 1:
        first, *_, last = [origin for origin, _ in places.values()]
        raise ConfigError([sources.registered_twice(f"experiment '{name}'", first, last)])
    for _, get in places.values():
        for problem in index.problems:
            _logger.warning("%s", problem.message)
        return get()
    known = _imported(workspace) if imports or index.computed else registered(workspace)
    raise UnknownExperimentError([_unknown(name, index, known, workspace)])


def _computed(name: str, index: _Index, workspace: Path | None) -> Factory | None:
    """Imports the modules that compute names; returns the factory that one registers under the name.

    Raises:
      ConfigError: another one registers the name, too; or Python cannot read the file that has the name.
    """
    named_in = [
        each
        for each in index.broken
        if re.search(rf"[\"']{re.escape(name)}[\"']", each.path.read_text("utf-8", "replace"))
    ]
    for each in [*named_in, *index.computed]:
        package = each.module.partition(".")[0]
        try:
            enter_for(workspace)
            for source in [*index.modules.get(package, ()), Source(each.module, each.origin, package)]:
                sources.load(source, workspace)
        except ConfigError as error:
            if each in named_in or any(f"experiment '{name}' is" in problem.what for problem in error.problems):
                raise
            index.problems += error.problems
    return _imported(workspace).get(name) if index.computed else None


def with_lines(error: ConfigError, name: str, workspace: Path | None) -> ConfigError:
    """Returns an error whose problems of the values of an experiment name the line at which its factory begins."""
    if (found := named(workspace).get(name)) is None:
        return error
    place = line_of_code(str(found.path), found.line)
    is_of_factory = (each.origin is not None and each.origin.kind == "experiment" for each in error.problems)
    both = zip(error.problems, is_of_factory, strict=True)
    return ConfigError([dataclasses.replace(each, origin=place) if is_own else each for each, is_own in both])


def registered(workspace: Path | None) -> dict[str, Factory]:
    """Returns the factories that imported modules have registered, in or outside of a workspace, by name."""
    return {
        name: each.value
        for (place, name), each in _factories.items()
        if place is None or (workspace is not None and place.resolve() == workspace.resolve())
    }


def _unknown(name: str, index: _Index, imported: Mapping[str, Factory], workspace: Path | None) -> Problem:
    names = list(dict.fromkeys([*(each.name for each in index.found), *imported]))
    near = nearest(name, [*names, *garden_index.entries()])
    what = f"unknown experiment '{name}'"
    known = ", ".join(sorted(names)) if len(names) <= 12 else ", ".join(near)
    reasons = [each.message for each in [*index.unread, *index.problems, *([] if imported else index.silent)]]
    if not names:
        empty = f"'{FOLDER}' registers no experiment"
        if workspace is None:
            empty = f"no folder '{FOLDER}' here or above, and no --import=MODULE that registers it"
        return Problem(what, fix="; ".join([empty, *reasons]), near=near[0] if near else "")
    return Problem(what, allowed=known, near=near[0] if near else "", fix="; ".join(reasons))


def _is_own(experiment: Experiment) -> bool:
    return experiment.module.partition(".")[0] == FOLDER


def _from_source(experiment: Experiment, index: _Index, workspace: Path | None) -> ExperimentConfig:
    """Imports what registers an experiment, and calls its factory."""
    enter_for(workspace)
    if _IMPORTS_GARDEN.search(experiment.path.read_bytes()):
        load("tensorflow")  # before any other import of it, so that it comes without Keras 3
    package = experiment.module.partition(".")[0]
    for source in [*index.modules.get(package, ()), Source(experiment.module, experiment.origin, package)]:
        sources.load(source, workspace)  # what names the package first: it may register Tasks, too
    factory = _imported(workspace).get(experiment.name)
    if _is_own(experiment) and experiment.name not in registered(workspace):  # Model Garden has it from any module
        factory = factory if garden_index.function_of(factory).__module__ == experiment.module else None
    if factory is None:
        what = f"importing it does not register '{experiment.name}'"
        raise ConfigError([Problem(what, fix="check whether the factory is inside an 'if'", origin=experiment.origin)])
    return _call(experiment.name, factory, experiment.origin, workspace)


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
        own = [name for name in sys.modules if name.partition(".")[0] in (FOLDER, *components.FOLDERS)]
        _other_workspaces[current[0].parent] = {name: sys.modules.pop(name) for name in own}
        sys.path[:] = [path for path in sys.path if path != str(current[0].parent)]
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


def _call(name: str, factory: Factory, origin: Origin, workspace: Path | None) -> ExperimentConfig:
    from official_trainer.config import ExperimentConfig  # with all sections, which a list of names does not need

    module = garden_index.function_of(factory).__module__
    try:
        config = factory()
    except ConfigError:
        raise
    except Exception as error:
        what = f"the factory of experiment '{name}' failed"
        place = explained.line_of(error, module, workspace) or origin
        raise ConfigError([explained.problem(what, error, place)]) from error
    if garden_index.is_experiment(config):
        config = garden_index.from_object(config, module)
    if not isinstance(config, ExperimentConfig):
        what = f"the factory of experiment '{name}' must return an ExperimentConfig"
        got = "nothing" if config is None else f"a {type(config).__name__}"
        fix = f"write `return` before the config at the end of {factory.__name__}()" if config is None else ""
        raise ConfigError([Problem(what, got=got, fix=fix, origin=origin)])
    for _, part in fields.walk(config):
        if fields.is_section(part):
            fields.hints(type(part))  # cached now, while names in annotations are looked up in this workspace's modules
    return config
