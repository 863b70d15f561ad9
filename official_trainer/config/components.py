"""Sections whose class is chosen by `type`, the name of a file or of an entry point: actions, trackers, data sources.

Likewise learning rates and optimizers beside those that a one-of declares.

Owns: finding that module, in the package, in the folder of the same name in the workspace, or in an installed package,
and the class in it; a one-of with a branch for it.
Does not own: what components do (`actions/`, `tracking/`, `sources/`), which workspace it is (`tasks/registry.py`),
reading entry points (`installed.py`).

Only the module that is named is imported; none of them imports TensorFlow. Installed packages are asked only for a type
that has no file, because reading what they say takes as long as a third of a command.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from official_trainer.config import fields, installed
from official_trainer.config.declaration import Config, OneOf
from official_trainer.config.errors import ConfigError, Problem, best_match, line_of_class
from official_trainer.config.when import When
from official_trainer.shown import shorten

_PACKAGE = Path(__file__).parents[1]
FOLDERS = ("actions", "tracking", "sources", "schedules", "optimizers")
"""Folders of the package, and of a workspace, with a component in each file."""

_workspace: list[Path] = []


def use_workspace(folder: Path) -> None:
    """Adds the components of `folder`; its modules must be importable."""
    _workspace[:] = [folder]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plugin(Config):
    """A section whose class is found by a name. Subclasses declare the fields and `build` what they configure."""

    FOLDER: ClassVar[str] = ""
    """The folder of the files; set by the root of a family of plug-ins."""
    GROUP: ClassVar[str] = ""
    """The group of the entry points, likewise."""

    @classmethod
    def family(cls) -> Any:
        """Returns the root of the family: the class that names the folder."""
        return next(base for base in cls.__mro__ if "FOLDER" in vars(base))

    @classmethod
    def own_name(cls) -> str:
        """Returns the name that chooses this class: of its file, or of the entry point that names its module."""
        module = cls.__module__
        has_file = module.partition(".")[0] in (_PACKAGE.name, cls.FOLDER)
        points = () if has_file else installed.points(cls.GROUP)
        named = (point.name for point in points if point.value == module)
        return next(named, module.rpartition(".")[2])

    @classmethod
    def names(cls) -> dict[str, str]:
        """Returns all names, each with the module that defines it."""
        return {**{point.name: point.value for point in installed.points(cls.GROUP)}, **cls._with_file()}

    @classmethod
    def _with_file(cls, declared: Sequence[str] = ()) -> dict[str, str]:
        """Returns the names that a file of the package or of the workspace defines, each with its module.

        Args:
          declared: names that the package gives a meaning without a file.
        """
        root = cls.family()
        packaged = _packaged(root.FOLDER, root.__name__)
        added = _files(_workspace[0] / root.FOLDER, root.__name__) if _workspace else []
        if twice := sorted({*packaged, *declared} & {*added}):
            what = f"type '{twice[0]}' exists twice, in the package and in the workspace"
            raise ConfigError([Problem(what, fix=f"rename {root.FOLDER}/{twice[0]}.py")])
        return {
            **{name: f"official_trainer.{root.FOLDER}.{name}" for name in packaged},
            **{name: f"{root.FOLDER}.{name}" for name in added},
        }

    @classmethod
    def named(cls, name: str, declared: Sequence[str] = ()) -> Any:
        """Returns the class that a name chooses.

        Args:
          name: of a file, or of an entry point.
          declared: names that choose something else than a plug-in.

        Raises:
          ConfigError: there is no such name, or two, or its module cannot be imported.
        """
        root, with_file = cls.family(), cls._with_file(declared)
        file = f"{root.FOLDER}/{name}.py"
        try:
            if name in with_file:
                module: types.ModuleType | None = importlib.import_module(with_file[name])
            else:
                module = installed.load(root.GROUP, name, f"the type {name}")
        except Exception as error:
            text = f"{file} cannot be imported: {type(error).__name__}: {error}"
            raise ConfigError([Problem(str(error) if isinstance(error, installed.PackageError) else text)]) from error
        if module is None:
            names = [*declared, *sorted(cls.names())]
            fix = f"or add {file} to the workspace, or install its package" if name.isidentifier() else ""
            what, allowed = f"unknown type '{shorten(name)}'", ", ".join(names)
            raise ConfigError([Problem(what, allowed=allowed, near=best_match(name, names), fix=fix)])
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, root) and value.__module__ == module.__name__
        ]
        if len(classes) != 1:
            where = file if name in with_file else module.__name__
            what = f"{where} must define one {root.__name__}; it defines {len(classes)}"
            raise ConfigError([Problem(what)])
        return classes[0]

    def build(self, *_arguments: Any, **_options: Any) -> Any:
        """Returns what this configures; the root of the family documents the arguments."""
        raise NotImplementedError(f"{type(self).__name__} must define build()")


def with_branch(cls: type[OneOf], name: str) -> type[OneOf]:
    """Returns a one-of with a branch for what a name chooses: `cls` itself, or `cls` with that of a plug-in, too.

    Args:
      cls: a one-of that has `PLUGINS`.
      name: for its `type`.

    Raises:
      ConfigError: there is no such name, or two, or its class cannot be used.
    """
    root, one_of = cls.PLUGINS, typing.cast(Any, cls)
    declared = fields.choices(next(base for base in cls.__mro__ if "PLUGINS" in vars(base)))
    if name in declared:
        root._with_file(declared)
        return cls
    chosen: type[OneOf] = cls if name in fields.choices(cls) else _with_branch(one_of, name, root.named(name, declared))
    return chosen


def choosing(cls: type[OneOf], section: Plugin) -> OneOf:
    """Returns a one-of that chooses a section of a plug-in, for a configuration that Python code writes.

    Raises:
      ConfigError: the class of the section is not in a file or a package where its name is found.
    """
    name, root, section_class = section.own_name(), section.family(), typing.cast(Any, type(section))
    if name not in root.names() or root.named(name) is not section_class:
        what, fix = "is not found by a name", f"move the class to {root.FOLDER}/NAME.py"
        raise ConfigError([Problem(what, section_class.__name__, fix=fix, origin=line_of_class(section_class))])
    chosen: OneOf = _with_branch(typing.cast(Any, cls), name, section_class)(type=name, **{name: section})
    return chosen


@functools.cache
def _with_branch(cls: Any, name: str, section: Any) -> Any:
    if not name.isidentifier():
        what = f"the type '{name}' cannot be the name of a section"
        raise ConfigError([Problem(what, fix="name it with letters, digits and _ alone")])
    if needed := fields.required(section):
        what = f"field '{needed[0]}' needs a default, which may be None"
        raise ConfigError([Problem(what, origin=line_of_class(section, needed[0]))])
    namespace = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    branch = (name, section, section())
    return dataclasses.make_dataclass(
        cls.__name__, [branch], bases=(cls,), namespace=namespace, frozen=True, kw_only=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component(Plugin):
    """A plug-in that says itself, in its `type`, which one it is.

    Attributes:
      type: which component: the name of the file that defines it, or of the entry point that names its module.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ()
    """Modules that are not installed with this package."""
    INSTALL: ClassVar[str] = ""
    """The arguments of `pip install` that install them."""

    type: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.own_name())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionConfig(Component):
    """What happens at a step.

    `type` is the name of a file in `actions/`, of the package or of the workspace, or of an entry point
    `official_trainer.actions` of an installed package.

    Attributes:
      name: distinguishes actions of one type in messages and checkpoints; unset means the type.
      when: when it is due; unset means the default of the type.
      priority: the lowest is called first; negative ones are allowed; equal ones are called in the order of the list.
      on_error: what happens after an error in it. `fail` ends the run, `warn` logs a warning and continues, `disable`
        logs a warning and does not call it again.

    Example:
      A file `actions/stop_at.py` of the workspace, used by `trainer.actions=[{type: stop_at, accuracy: 0.99}]`:

      >>> import dataclasses
      >>> from official_trainer.actions import Action, Stop
      >>> from official_trainer.config import ActionConfig, Fraction, When
      >>> class StopAt(Action):
      ...     def __init__(self, accuracy):
      ...         self._accuracy = accuracy
      ...
      ...     def on_eval(self, run, logs):
      ...         return Stop(reason="good enough") if logs["accuracy"] >= self._accuracy else None
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class StopAtConfig(ActionConfig):
      ...     when: When | None = When(after_eval=True)
      ...     accuracy: Fraction = 0.95
      ...
      ...     def build(self):
      ...         return StopAt(self.accuracy)
      >>> StopAtConfig(accuracy=0.99).build().on_eval(run=None, logs={"accuracy": 0.995})
      Stop(reason='good enough')
    """

    FOLDER: ClassVar[str] = "actions"
    GROUP: ClassVar[str] = "official_trainer.actions"

    name: str | None = None
    when: When | None = None
    priority: int = 0
    on_error: Literal["fail", "warn", "disable"] = "fail"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackerConfig(Component):
    """Where metrics are written, in addition to the console and `metrics.jsonl`.

    `type` is the name of a file in `tracking/`, of the package or of the workspace, or of an entry point
    `official_trainer.trackers` of an installed package. Subclasses define `build(place)`, which takes a `Place` of
    `tracking/` and returns a `Tracker` that has opened nothing yet.

    Attributes:
      on_error: what happens after an error in it. `warn` logs one warning, and at the end how much is lost; `fail` ends
        the run.

    Example:
      A file `tracking/last.py` of the workspace, used by `trainer.trackers=[{type: last, file: newest.json}]`:

      >>> import dataclasses, json, os
      >>> from official_trainer.config import TrackerConfig
      >>> from official_trainer.tracking import Place, Tracker
      >>> class Last(Tracker):
      ...     def __init__(self, path):
      ...         self._path = path
      ...
      ...     def log(self, split, step, values):
      ...         with open(self._path, "w") as file:
      ...             json.dump({"step": step, split: values}, file)
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class LastConfig(TrackerConfig):
      ...     file: str = "last.json"
      ...
      ...     def build(self, place):
      ...         return Last(os.path.join(place.directory, self.file))
      >>> tracker = LastConfig().build(Place(directory=".", experiment="digits_cnn", name="run"))
      >>> tracker.log("train", 100, {"loss": 0.5})
      >>> print(open("last.json").read())
      {"step": 100, "train": {"loss": 0.5}}
    """

    FOLDER: ClassVar[str] = "tracking"
    GROUP: ClassVar[str] = "official_trainer.trackers"
    on_error: Literal["warn", "fail"] = "warn"


@functools.cache
def _packaged(folder: str, root: str) -> list[str]:
    return _files(_PACKAGE / folder, root)


def _files(folder: Path, root: str) -> list[str]:
    """Returns the names of the files in `folder` with a subclass of `root`, by their text."""
    paths = sorted(folder.glob("*.py")) if folder.is_dir() else []
    return [path.stem for path in paths if f"({root})" in path.read_text(encoding="utf-8")]
