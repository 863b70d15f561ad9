"""N37: a Task whose config has no fields of its own is registered with its experiment."""

import re

import pytest

from official_trainer import Task, register_config_factory, register_task_cls, registry
from official_trainer.config import Config, ConfigError, DataConfig, ExperimentConfig, TaskConfig, dump, resolve


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    for name in ("_factories", "_tasks"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


class Lines(Task):
    """Learns lines."""


class Circles(Task):
    """Learns circles."""


def config(task):
    return ExperimentConfig(task=task)


def factory():
    """Lines, a few steps."""
    return config(TaskConfig(train_data=DataConfig(global_batch_size=8)))


def test_two_tasks_without_config_classes_are_told_apart():
    """N37: by name, by calling the function, and after a file of the config was read back."""
    lines = register_config_factory("lines", task_cls=Lines)(factory)
    register_config_factory("circles", Circles)(factory)
    for made, cls in (
        (registry.get_config("lines"), Lines),
        (lines(), Lines),
        (registry.get_config("circles"), Circles),
        (resolve(lines(), sets=["task.train_data.global_batch_size=4"]).config, Lines),
    ):
        assert registry.get_task_cls(made.task) is cls
    assert registry.get_config("lines").task.train_data.global_batch_size == 8
    assert dump(registry.get_config("lines")) == dump(factory())
    assert type(factory().task) is TaskConfig


def test_experiments_of_one_task():
    """N37: one factory may start from the other, and equal configs are equal."""
    lines = register_config_factory("lines", task_cls=Lines)(factory)
    register_config_factory("same", task_cls=Lines)(factory)

    @register_config_factory("more", task_cls=Lines)
    def more():
        return lines().replace(runtime=lines().runtime.replace(seed=3))

    assert registry.get_config("more").runtime.seed == 3
    assert registry.get_config("same") == registry.get_config("lines")


def test_the_function_keeps_its_name_and_line():
    """N37: for `list`, and for messages."""
    from official_trainer.tasks import sources

    made = register_config_factory("lines", task_cls=Lines)(factory)
    assert (made.__name__, made.__doc__) == ("factory", "Lines, a few steps.")
    assert sources.line_of(made) == sources.line_of(factory)


def test_mistakes_name_the_class():
    """N37: a field that is not there, a config class that tells its Task, and what is no class."""

    class CirclesConfig(TaskConfig):
        """Circles."""

    register_task_cls(CirclesConfig)(Circles)
    made = register_config_factory("lines", task_cls=Lines)(factory)
    with pytest.raises(ConfigError, match=r"task\.units: unknown field of LinesConfig"):
        resolve(made(), sets=["task.units=3"])
    both = register_config_factory("both", task_cls=Circles)(lambda: config(CirclesConfig()))
    with pytest.raises(ConfigError) as refused:
        both()
    (problem,) = refused.value.problems
    assert problem.message.startswith(f"{__file__}:")
    assert "task_cls=Circles needs a task=TaskConfig(…), and this one is a CirclesConfig; leave out task_cls, and " in (
        problem.message
    )
    for given in (Lines(None), "Lines", Config()):
        with pytest.raises(ConfigError, match=re.escape(f"task_cls is the class of a Task, got {given!r}"[:60])):
            register_config_factory("x", task_cls=given)
