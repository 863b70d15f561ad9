"""Model Garden's own objects and Tasks, made from our sections for `runs/build.py`, which trains such a Task as it is.

Owns: the objects that are passed to code of Model Garden, finding its Task classes. Its functions import `official`,
and with it TensorFlow. Does not own: the opposite direction (`from_garden.py`), several tasks as one
(`tasks/multi_task/garden.py`).
"""

from __future__ import annotations

import importlib.util
import operator
from typing import Any

from official_trainer.config import Config, ConfigError, Problem, fields
from official_trainer.config.errors import line_of_class, unregistered
from official_trainer.errors import ExitCode, UserError
from official_trainer.garden import index
from official_trainer.garden.importing import import_module
from official_trainer.garden.spec import CONFIG, garden_class, is_config_class
from official_trainer.lazy import load


def with_garden_objects(config: Any) -> Any:
    """Returns an experiment as its Task and the Trainer read it.

    In an experiment of Model Garden, `task` and `optimizer_config` become Model Garden's objects, locked as its driver
    locks them. The other sections, and all other experiments, are returned unchanged.
    """
    if not garden_class(config):
        return config
    _register(config.MODULE)
    trainer = config.trainer.replace(optimizer_config=to_object(config.trainer.optimizer_config))
    return config.replace(task=to_object(config.task), trainer=trainer)


class UnregisteredTaskError(UserError, LookupError):
    """No imported module registers a Task for a task config of Model Garden."""

    exit_code = ExitCode.CONFIG


def build_task(config: Any, logging_dir: str | None = None, name: str = "") -> Any:
    """Returns the Task of Model Garden for a task config, which is Model Garden's object or our section for it.

    Raises:
      UnregisteredTaskError: no Task is registered for it.
    """
    task_config = to_object(config)
    from official.core import task_factory

    try:
        if task_config.BUILDER is None:  # no Task is bound to the class itself
            task_factory.get_task_cls(type(task_config))
    except LookupError as error:
        class_name = f"{type(task_config).__module__}.{type(task_config).__qualname__}"
        fix = unregistered(type(task_config), "@task_factory.register_task_cls")
        origin = line_of_class(type(task_config)) if fix else None
        fix = fix or (
            "import the module of its Task in a file of experiments/, where an import error also shows which packages "
            "are missing"
        )
        what = f"no Task of Model Garden is registered for {class_name}"
        raise UnregisteredTaskError(str(Problem(what, "task", fix=fix, origin=origin))) from error
    return task_factory.get_task(task_config, logging_dir=logging_dir, **({"name": name} if name else {}))


def create_optimizer(task: Any, config: Any, model: Any) -> Any:
    """Returns the optimizer that Model Garden's driver creates with a task, including differential privacy.

    Args:
      task: the task.
      config: an experiment of Model Garden, or the result of `with_garden_objects`.
      model: a Task that creates no optimizer has compiled it with one; else its optimizer is None.
    """
    from official.core import train_utils

    return train_utils.create_optimizer(task, config) or getattr(model, "optimizer", None)


def _register(module: str) -> None:
    """Imports the modules that register the tasks and model parts of a project of Model Garden, as its driver does.

    Raises:
      ConfigError: the installed release lacks one of its own modules, or another package.
    """
    if module:
        import_module(module)
    segments = module.split(".")
    depths = range(3, len(segments)) if module.startswith("official.projects.") else ()
    for package in (".".join(segments[:depth]) for depth in depths):
        candidates = (f"{package}.{name}" for name in ("registry_imports", "common.registry_imports", "train"))
        if (name := next(filter(_exists, candidates), None)) is not None:
            try:
                import_module(name)
            except ModuleNotFoundError as error:
                raise ConfigError([index.cannot_load(f"the Task of {module}", error)]) from error


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it does not exist either
        return False


def to_object(section: Any) -> Any:
    """Returns Model Garden's object for our section of one of its classes; other values are returned unchanged."""
    if not garden_class(section):
        return section
    converted = _section(section)
    converted.lock()  # not its subsections: some builders of Model Garden, as of vision transformers, change their own
    return converted


def _section(section: Config) -> Any:
    cls = _class(garden_class(section))
    converted = cls()
    values = vars(converted)
    for name in fields.hints(type(section)):
        value = getattr(section, name)
        # A value that is unset here has another value there, such as -1: keep their default.
        if name not in section.OURS and not (value is None and section.OURS):
            values[name] = _value(value, values.get(name))
    return converted


def _value(value: Any, before: Any) -> Any:
    """Returns a value in Model Garden's form: tuples as lists, mappings as sections without a class."""
    if garden_class(value):
        return _section(value)
    if isinstance(value, dict):  # the default gives the class of a section whose keys are not names of fields
        cls = type(before) if is_config_class(type(before)) else _class(CONFIG)
        held = cls()
        vars(held).update({key: _value(part, None) for key, part in value.items()})
        return held
    if isinstance(value, tuple):
        items = [_value(item, None) for item in value]
        return tuple(items) if isinstance(before, tuple) and list(before) == items else items
    return value


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    load("tensorflow")  # chooses Keras 2 before anything of theirs is imported
    return operator.attrgetter(qualname)(import_module(module))
