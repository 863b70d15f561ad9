"""Names of experiments, and the Task class of each task config.

Owns: `register_config_factory`, `register_task_cls`, finding the workspace, the index of its experiments, imports.
Does not own: the experiments themselves (`experiments/`), or changing them (`config/`); modules of the user's outside
of a workspace (`sources.py`).

Names that are literals are read from the source, without an import; a module that computes names is imported when
another name is asked for. Getting one experiment imports its module, and what names its package. A module may register
with Model Garden's `exp_factory` instead, and a factory may return a configuration of Model Garden. Modules of a
workspace are called `experiments.…`, and a process has one workspace.

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
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from official_trainer.config import Config, ConfigError, Origin, Problem
from official_trainer.config.errors import calling_line, line_of_class, line_of_code, unregistered
from official_trainer.garden import index as garden_index
from official_trainer.garden.scan import DECORATOR, FOLDER, Experiment, Scanned, scan
from official_trainer.garden.spec import garden_class, is_config_class
from official_trainer.lazy import load, uses_keras
from official_trainer.nearest import nearest
from official_trainer.shown import first_few
from official_trainer.tasks import sources
from official_trainer.tasks.sources import NamedModule

if TYPE_CHECKING:
    from official_trainer.config import ExperimentConfig

_logger = logging.getLogger(__name__)
_IMPORTS_GARDEN = re.compile(rb"^(?:from|import)\s+official\b", re.MULTILINE)

Factory = Callable[[], "ExperimentConfig"]
F = TypeVar("F", bound=Callable[[], Any])
C = TypeVar("C", bound=type)


class UnknownExperimentError(ConfigError):
    """No experiment has this name."""


_factories: dict[str, Factory] = {}
_tasks: dict[type[Config], type] = {}


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
        what = "register_config_factory needs the name of the experiment"
        fix = f'write @register_config_factory("{getattr(name, "__name__", "NAME")}")'
        raise ConfigError([Problem(what, fix=fix, origin=calling_line())])
    if not isinstance(task_cls, type | None):
        what, fix = "task_cls is the class of a Task", "leave it out if the class of the task's config tells the Task"
        raise ConfigError([Problem(what, got=repr(task_cls), fix=fix, origin=calling_line())])

    def register(factory: F) -> F:
        try:
            inspect.signature(factory).bind()
        except TypeError as error:
            what = f"a factory is a function without arguments, and {getattr(factory, '__name__', factory)} is not one"
            fix = "read values from the configuration, inside the Task"
            raise ConfigError([Problem(what, fix=fix, origin=calling_line())]) from error
        except ValueError:  # a class of C does not say what it takes
            pass
        first = _factories.get(name, factory)
        if _identity(garden_index.function_of(first)) != _identity(garden_index.function_of(factory)):
            lines = sources.line_of(first), sources.line_of(factory)
            raise ConfigError([sources.registered_twice(f"experiment '{name}'", *lines)])
        if task_cls is not None:
            factory = _with_task(factory, task_cls)
        _factories[name] = factory
        return factory

    return register


def _with_task(factory: F, task_cls: type) -> F:
    """Returns a factory whose `TaskConfig` is of a class for `task_cls` alone, by which its Task is found."""

    @functools.wraps(factory)
    def with_config_cls() -> Any:
        config, config_cls = factory(), _config_cls_of(task_cls)
        section = getattr(config, "task", None)
        if type(section) in config_cls.__bases__:
            values = {field.name: getattr(section, field.name) for field in dataclasses.fields(config_cls)}
            return config.replace(task=config_cls(**values))
        if section is not None and type(section) is not config_cls:
            given = type(section).__name__
            what = f"task_cls={task_cls.__name__} needs a task=TaskConfig(…), and this one is a {given}"
            fix = f"leave out task_cls, and write @register_task_cls({given}) above class {task_cls.__name__}"
            raise ConfigError([Problem(what, fix=fix, origin=sources.line_of(factory))])
        return config

    return cast(F, with_config_cls)


@functools.cache
def _config_cls_of(task_cls: type) -> type[Config]:
    """Returns the class of the config of a Task that has none; it has no further fields."""
    from official_trainer.config import TaskConfig  # which a list of names does not need

    name = f"{task_cls.__name__}Config"
    config_cls = dataclasses.make_dataclass(name, (), bases=(TaskConfig,), frozen=True, kw_only=True)
    config_cls.__module__, config_cls.__doc__ = task_cls.__module__, f"Data and first weights of {task_cls.__name__}."
    register_task_cls(config_cls)(task_cls)
    return config_cls


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
        name = config_cls if isinstance(config_cls, str) else "CONFIG"
        what = "register_task_cls needs the class of the task's config"
        fix = f"write @register_task_cls({name}), with a subclass of config.TaskConfig"
        if isinstance(config_cls, type) and is_config_class(config_cls):
            name = config_cls.__name__
            fix = f"a config of Model Garden has its Task by @task_factory.register_task_cls({name}) of official.core"
        raise ConfigError([Problem(what, got=repr(config_cls), fix=fix, origin=calling_line())])

    def register(task_cls: C) -> C:
        first = _tasks.get(config_cls, task_cls)
        if _identity(first) != _identity(task_cls):
            lines = sources.line_of(first), sources.line_of(task_cls)
            raise ConfigError([sources.registered_twice(f"the Task of {config_cls.__name__}", *lines)])
        _tasks[config_cls] = task_cls
        return task_cls

    return register


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
            return _tasks[cls]
    name = type(task_config).__name__
    what = f"no Task class is registered for {type(task_config).__module__}.{name}"
    registered = first_few(sorted({cls.__name__ for cls in _tasks})) or "none"

    fix = unregistered(type(task_config), "@register_task_cls")
    fix = f"{fix or 'give the experiment the config class of a Task'}; registered: {registered}"
    raise ConfigError([Problem(what, path, fix=fix, origin=line_of_class(type(task_config)))])


def gin_modules(task_config: Config) -> Sequence[str]:
    """Returns the modules to import so that gin knows the functions that a task calls."""
    if name := garden_class(task_config):
        return (name.partition(":")[0],)  # this imports the package around it, and so all that the task calls
    # An optimizer of tf_keras is made by it, which is imported when it is needed.
    optimizers = ("official.modeling.optimization",) if uses_keras(2) else ()
    return (*optimizers, *getattr(get_task_cls(task_config), "gin_modules", ()))


def _identity(thing: Any) -> tuple[str, str, str]:
    """Returns an identity of a function or class that is the same after a module is imported again."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    return file, thing.__module__, thing.__qualname__


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
    here = (Path(start) if start is not None else Path.cwd()).resolve()
    folders = (here, *here.parents)
    return next((folder for folder in folders if (folder / FOLDER).is_dir() or sources.declares(folder)), None)


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
    return _by_name(_Index(workspace, imports).named)[0]


def listed(workspace: Path | None, imports: Sequence[str] = ()) -> tuple[dict[str, Experiment], list[Problem]]:
    """Returns all experiments but Model Garden's by name, and why some may be missing. It imports only `imports`.

    Args:
      workspace: the folder that contains `experiments/`, if there is one.
      imports: modules that `--import` names.

    Raises:
      ConfigError: a module that `--import` names cannot be imported.
    """
    _import(workspace, imports)
    index = _Index(workspace, imports)
    experiments, twice = _by_name([*index.named, *(_registered(index.named) if imports else ())])
    fix = "`official-trainer list --import={}` lists them"
    files = [file for file in index.computed if file.module not in sys.modules]
    computed = [Problem("it computes names", fix=fix.format(file.module), origin=file.origin) for file in files]
    return experiments, [*index.problems, *twice, *computed]


def _by_name(experiments: Iterable[Experiment]) -> tuple[dict[str, Experiment], list[Problem]]:
    """Returns experiments by name, and those names that two lines have."""
    by_name: dict[str, Experiment] = {}
    problems: list[Problem] = []
    for experiment in experiments:
        first = by_name.setdefault(experiment.name, experiment)
        if (os.path.realpath(first.path), first.line) != (os.path.realpath(experiment.path), experiment.line):
            problems.append(sources.registered_twice(f"experiment '{first.name}'", first.origin, experiment.origin))
    return by_name, problems


class _Index(Scanned):
    """What the source of a workspace, and of the packages that belong to it, says.

    Attributes:
      modules: what to import for the experiments of each package that is none of the workspace's own.
      problems: why experiments of files, or of modules that `pyproject.toml` and entry points name, are missing.
    """

    def __init__(self, workspace: Path | None, imports: Iterable[str]) -> None:
        super().__init__()
        if workspace is not None and (workspace / FOLDER).is_dir():
            self.add(scan(workspace / FOLDER, FOLDER))
        self.modules: dict[str, list[NamedModule]] = {}
        declared, self.problems = sources.declared(workspace)
        for module in [*sources.given(imports), *declared]:
            try:
                scanned = sources.read(module, workspace)
            except ConfigError as error:
                self.problems += error.problems
                continue
            if module.package not in self.modules:
                self.add(scanned)
            self.modules.setdefault(module.package, []).append(module)
        for file in self.broken:
            self.problems.append(Problem(f"its experiments are not listed: {file.summary}", origin=file.origin))

    def load(self, experiment: Experiment) -> None:
        """Imports the module of an experiment, after those that name its package: they may register Tasks, too."""
        package = experiment.module.partition(".")[0]
        for module in [*self.modules.get(package, ()), NamedModule(experiment.module, experiment.origin)]:
            sources.load(module)

    def load_computed(self, name: str) -> None:
        """Imports the modules that compute names; those that fail become problems.

        Raises:
          ConfigError: two modules register `name`, or Python cannot read the file that has it.
        """
        quoted = re.compile(rf"[\"']{re.escape(name)}[\"']")
        has_name = [file for file in self.broken if quoted.search(file.path.read_text("utf-8", "replace"))]
        for module in [*has_name, *self.computed]:
            try:
                self.load(module)
            except ConfigError as error:
                if module in has_name or any(f"experiment '{name}' is" in problem.what for problem in error.problems):
                    raise
                self.problems += error.problems


def _factories_by_name() -> dict[str, Factory]:
    """Returns the factories that imported modules have registered, with us or with Model Garden."""
    return {**garden_index.imported(), **_factories}


def _registered(read: Iterable[Experiment]) -> list[Experiment]:
    """Returns what imported modules have registered, by rising name, without what was read in their source."""
    in_source = {(experiment.name, os.path.realpath(experiment.path)) for experiment in read}
    experiments = []
    for name, factory in sorted(_factories_by_name().items()):
        function, line = garden_index.function_of(factory), sources.line_of(factory)
        if (name, os.path.realpath(line.name)) in in_source:
            continue
        summary = (function.__doc__ or "").strip().partition("\n")[0]
        experiments.append(Experiment(name, function.__module__, Path(line.name), line.line, summary))
    return experiments


# Getting.


def get_config(name: str, workspace: Path | None = None, imports: Sequence[str] = ()) -> ExperimentConfig:
    """Returns the configuration of an experiment as its factory made it.

    Args:
      name: a name in the workspace, or one that imported code has registered.
      workspace: the folder that contains `experiments/`; None finds only registered names, and those of packages.
      imports: modules to import first, as `--import` does.

    Raises:
      UnknownExperimentError: no such name.
      ConfigError: its module or factory fails, or this process has used another workspace.

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
    if workspace is not None:
        enter(workspace)
    _import(workspace, imports)
    index = _Index(workspace, imports)
    experiment = _find(name, index)
    if experiment is None:
        index.load_computed(name)
        experiment = _find(name, index)
    if experiment is None:
        raise UnknownExperimentError([_unknown(name, index, workspace)])
    for problem in index.problems:
        _logger.warning("%s", problem.message)
    if experiment in index.named:
        if _IMPORTS_GARDEN.search(experiment.path.read_bytes()):
            load("tensorflow")  # before any other import of it, so that it comes without Keras 3
        index.load(experiment)
    elif experiment is garden_index.entries().get(name):
        return garden_index.experiment(name)
    factory = _factories_by_name().get(name)
    if factory is None:
        what = f"importing it does not register '{name}'"
        raise ConfigError([Problem(what, fix="check whether the factory is inside an 'if'", origin=experiment.origin)])
    return _call(name, factory, experiment.origin)


def _find(name: str, index: _Index) -> Experiment | None:
    """Returns the experiment of a name: in the source, registered by imported modules, or of Model Garden.

    Raises:
      ConfigError: two lines have the name.
    """
    candidates = [*index.named, *_registered(index.named), *garden_index.entries().values()]
    experiments, twice = _by_name(candidate for candidate in candidates if candidate.name == name)
    if twice:
        raise ConfigError(twice)
    return experiments.get(name)


def _import(workspace: Path | None, imports: Sequence[str]) -> None:
    """Imports the modules that `--import` names."""
    for module in sources.given(imports):
        enter(workspace)
        sources.load(module)


def _call(name: str, factory: Factory, origin: Origin) -> ExperimentConfig:
    from official_trainer.config import ExperimentConfig  # with all sections, which a list of names does not need

    module = garden_index.function_of(factory).__module__
    try:
        config = factory()
    except ConfigError:
        raise
    except Exception as error:
        from official_trainer.tasks import contract  # likewise

        what = f"the factory of experiment '{name}' failed"
        raise ConfigError([contract.failure(what, error, module, origin)]) from error
    if garden_index.is_experiment(config):
        config = garden_index.from_object(config, module)
    if not isinstance(config, ExperimentConfig):
        what = f"the factory of experiment '{name}' must return an ExperimentConfig"
        got = "nothing" if config is None else f"a {type(config).__name__}"
        fix = f"write `return` before the config at the end of {factory.__name__}()" if config is None else ""
        raise ConfigError([Problem(what, got=got, fix=fix, origin=origin)])
    return config


def _unknown(name: str, index: _Index, workspace: Path | None) -> Problem:
    names = list(dict.fromkeys([*(experiment.name for experiment in index.named), *_factories_by_name()]))
    near = nearest(name, [*names, *garden_index.entries()])
    what = f"unknown experiment '{name}'"
    reasons = [problem.message for problem in index.problems]
    if workspace is not None and (place := _unregistered(name, workspace)):
        return Problem(what, fix=place)
    if not names:
        empty = f"'{FOLDER}' registers no experiment"
        if workspace is None:
            empty = f"no folder '{FOLDER}' here or above, and no --import=MODULE that registers it"
        return Problem(what, fix="; ".join([empty, *reasons]), near=near[0] if near else "")
    allowed = ", ".join(sorted(names)) if len(names) <= 12 else ", ".join(near)
    return Problem(what, allowed=allowed, near=near[0] if near else "", fix="; ".join(reasons))


def _unregistered(name: str, workspace: Path) -> str:
    """Says which file of a workspace nearly has an experiment: without the decorator, or outside of its folder."""
    definition = re.compile(rf"^def {re.escape(name)}\(\)", re.MULTILINE)
    registered = re.compile(rf"{DECORATOR}\(\s*[\"']{re.escape(name)}[\"']")
    for path in [*workspace.glob(f"{FOLDER}/**/*.py"), *workspace.glob("*.py"), *workspace.glob("*/*.py")]:
        text, relative = path.read_text(encoding="utf-8", errors="replace"), path.relative_to(workspace)
        if relative.parts[0] != FOLDER and registered.search(text):
            return f"{relative} registers it and is not in {FOLDER}/: move the file there, or give --import={path.stem}"
        if relative.parts[0] == FOLDER and definition.search(text):
            return f'write @{DECORATOR}("{name}") above `def {name}()` in {relative}'
    return ""


def with_lines(error: ConfigError, name: str, workspace: Path | None) -> ConfigError:
    """Returns an error whose problems of the values of an experiment name the line at which its factory begins."""
    if (experiment := named(workspace).get(name)) is None:
        return error
    origin = line_of_code(str(experiment.path), experiment.line)
    of_factory = [problem.origin is not None and problem.origin.kind == "experiment" for problem in error.problems]
    both = zip(error.problems, of_factory, strict=True)
    return ConfigError([dataclasses.replace(problem, origin=origin) if moves else problem for problem, moves in both])


def enter(workspace: Path | None) -> None:
    """Makes the modules of a workspace importable, or without one those of the current folder.

    Raises:
      ConfigError: the process has imported `experiments` from elsewhere. A process has one workspace.
    """
    if workspace is None:
        sources.make_importable(Path.cwd())
        return
    workspace = workspace.resolve()
    folders = [Path(path).resolve() for path in getattr(sys.modules.get(FOLDER), "__path__", ())]
    if folders and workspace / FOLDER not in folders:
        what = f"this process has imported '{FOLDER}' of {folders[0].parent}"
        raise ConfigError([Problem(what, fix=f"use the experiments of {workspace} in another process")])
    from official_trainer.config import components  # which `list` need not import

    components.use_workspace(workspace)
    sources.make_importable(workspace)
