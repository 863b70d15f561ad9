"""The way back: Model Garden's own objects with the values of a mirrored configuration.

Owns: what is handed to code of Model Garden, and finding its Task classes. Imports `official`, and with it TensorFlow,
when called. Does not own: the mirrored classes (`mirror.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
from typing import Any

from official_trainer.config import Config, fields
from official_trainer.errors import ExitCode, UserError
from official_trainer.garden.sections import garden_class
from official_trainer.garden.spec import CONFIG, is_config_class
from official_trainer.lazy import load


def as_read(config: Any) -> Any:
    """Returns an experiment as its Task, and the Trainer, are to read it.

    Task and optimizer of a mirrored experiment are Model Garden's own, locked as there; all else is as it was.
    """
    if not garden_class(config):
        return config
    _register(config.MODULE)
    trainer = config.trainer.replace(optimizer_config=build(config.trainer.optimizer_config))
    return config.replace(task=build(config.task), trainer=trainer)


class UnregisteredTaskError(UserError, LookupError):
    """Nothing that was imported registers a Task for a task config of Model Garden's."""

    exit_code = ExitCode.CONFIG


def build_task(config: Any, logging_dir: str | None = None, name: str = "") -> Any:
    """Returns the Task of Model Garden for a task config of theirs, live or mirrored.

    Raises:
      UnregisteredTaskError: there is none.
    """
    live = build(config)
    from official.core import task_factory

    try:
        task_factory.get_task_cls(type(live))
    except LookupError as error:
        kind = f"{type(live).__module__}.{type(live).__qualname__}"
        raise UnregisteredTaskError(
            f"task: no Task of Model Garden is registered for {kind}; import the module of its Task in a file of "
            "experiments/, which also says what that needs installed"
        ) from error
    return task_factory.get_task(live, logging_dir=logging_dir, **({"name": name} if name else {}))


def create_optimizer(task: Any, config: Any) -> Any:
    """Returns the optimizer that Model Garden's driver would have a task create, differential privacy included.

    Args:
      task: the task.
      config: a live experiment, or one as it is read.
    """
    from official.core import train_utils

    return train_utils.create_optimizer(task, config)


def _register(module: str) -> None:
    """Imports what registers the tasks of a project of theirs, and the parts of models, as its driver does."""
    if module:
        importlib.import_module(module)
    parts = module.split(".")
    depths = range(3, len(parts)) if module.startswith("official.projects.") else ()
    packages = [".".join(parts[:depth]) for depth in depths]
    for package in packages:
        for name in (f"{package}.registry_imports", f"{package}.common.registry_imports", f"{package}.train"):
            if _is_there(name):
                importlib.import_module(name)
                break


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False


def build(section: Any) -> Any:
    """Returns Model Garden's object for a mirrored section; what is none is returned as it is."""
    if not garden_class(section):
        return section
    live = _section(section)
    live.lock()  # not the sections in it: a builder of theirs completes its own, as that of vision transformers does
    return live


def _section(section: Config) -> Any:
    cls = _class(garden_class(section))
    live = cls()
    own = vars(live)
    for name in fields.hints(type(section)):
        value = getattr(section, name)
        # What is unset with us has a word for that with them, such as -1.
        if name not in section.OURS and not (value is None and section.OURS):
            own[name] = _value(value, own.get(name))
    return live


def _value(value: Any, before: Any) -> Any:
    """Returns a value as Model Garden holds it: lists, and mappings as sections without a class."""
    if garden_class(value):
        return _section(value)
    if isinstance(value, dict):  # of a section whose keys are no names of fields, the class is known by its default
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
    return operator.attrgetter(qualname)(importlib.import_module(module))
