"""T14: names of experiments and Task classes: found without importing, imported one at a time, never confused."""

import dataclasses
import re
import sys
import textwrap

import pytest

from official_trainer.config import ConfigError, ExperimentConfig, TaskConfig, dump, resolve
from official_trainer.errors import ExitCode
from official_trainer.tasks import registry
from tests import ROOT
from tests.support import packages
from tests.support.light import _clean_keras, _devices  # noqa: F401

DIGITS = '''
    """Digits."""
    import dataclasses

    from official_trainer import registry
    from official_trainer.config import Config, ExperimentConfig, TaskConfig, TrainerConfig


    @dataclasses.dataclass(frozen=True, kw_only=True)
    class DigitsTask(TaskConfig):
        classes: "Count" = 10


    Count = int


    @registry.register_task_cls(DigitsTask)
    class Task:
        workspace = "WORKSPACE"


    @registry.register_config_factory("digits")
    def digits() -> ExperimentConfig:
        """Handwritten digits.

        More.
        """
        return ExperimentConfig(task=DigitsTask(), trainer=TrainerConfig(train_steps=STEPS))
'''


ENTER = registry.enter
"""As it is outside of tests, which may change the workspace."""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with packages.as_it_was(monkeypatch):
        yield


def workspace(root, **files):
    """Writes a workspace; the names are those of modules below `experiments/`."""
    (root / "experiments").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / "experiments" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def digits(workspace="w", steps=1):
    return DIGITS.replace("WORKSPACE", workspace).replace("STEPS", str(steps))


def factory(name, body="return ExperimentConfig()", decorator="register_config_factory"):
    return (
        "from official_trainer.config import ExperimentConfig\n"
        "from official_trainer.tasks.registry import register_config_factory\n"
        "from official_trainer import registry\n\n\n"
        f"@{decorator}({name!r})\ndef make():\n    {body}\n"
    )


def refusal(call, *args):
    with pytest.raises(ConfigError) as refused:
        call(*args)
    assert refused.value.exit_code == ExitCode.CONFIG
    return "\n".join(problem.message for problem in refused.value.problems)  # not wrapped


# The workspace and its index.


def test_the_nearest_workspace_upwards(tmp_path, monkeypatch):
    root = workspace(tmp_path / "w")
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    assert registry.find_workspace(inner) == root
    assert registry.find_workspace(root / "experiments") == root
    assert registry.find_workspace(str(root)) == root
    monkeypatch.chdir(inner)
    assert registry.find_workspace() == root
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    assert registry.find_workspace(lonely) is None


def test_the_index_is_read_from_the_source_without_importing(tmp_path):
    """T14: name, place and first line of the docstring, for every spelling of the decorator and any depth."""
    root = workspace(
        tmp_path,
        digits=digits(),
        two=factory("one").replace("@", "@register_config_factory('other')\n@"),
        helper="raise RuntimeError('imported')\n",
        boom="raise RuntimeError('imported')\n" + factory("boom"),
    )
    cnn = factory("vision/cnn", decorator="registry.register_config_factory")
    workspace(root, **{"vision/cnn": cnn, "text/__init__": factory("text"), ".hidden/x": factory("hidden")})
    index = registry.named(root)
    assert list(index) == ["boom", "digits", "one", "other", "text", "vision/cnn"]
    found = index["digits"]
    assert (found.module, found.path, found.line) == ("experiments.digits", root / "experiments/digits.py", 23)
    assert found.summary == "Handwritten digits."
    assert index["vision/cnn"].module == "experiments.vision.cnn"
    assert index["text"].module == "experiments.text"
    assert index["boom"].summary == ""
    assert not [name for name in sys.modules if name.startswith("experiments")]
    assert registry.listed(root) == (index, [])


def test_what_cannot_be_listed_is_said(tmp_path):
    root = workspace(
        tmp_path,
        good=factory("good"),
        broken="def f(:\n" + factory("x"),
        named=factory("n").replace("'n'", "NAME"),
        keyword=factory("k").replace("'k'", "name='k'"),
    )
    assert list(registry.named(root)) == ["good", "k"]
    first, second = [problem.message for problem in registry.listed(root)[1]]
    assert first.startswith("experiments/broken.py:1: its experiments are not listed: ")
    assert second == (
        "experiments/named.py:6: it computes names; `official-trainer list --import=experiments.named` lists them"
    )
    assert "experiments/broken.py:1: cannot be imported: SyntaxError: " in refusal(registry.get_config, "x", root)
    said = refusal(registry.get_config, "y", root)
    assert "experiments/named.py:6: cannot be imported: NameError: name 'NAME' is not defined" in said
    assert "experiments/broken.py:1: its experiments are not listed: " in said


def test_two_with_one_name(tmp_path):
    """T14: duplicates are refused, with both places."""
    root = workspace(tmp_path, a=factory("same"), b=factory("same"))
    said = "experiment 'same' is registered twice, at experiments/a.py:7 and experiments/b.py:7; rename one"
    assert said in refusal(registry.get_config, "same", root)


# Getting one.


def test_one_experiment_imports_one_module(tmp_path):
    """T14: the other files of the workspace may be broken."""
    root = workspace(tmp_path, digits=digits(steps=7), boom="raise RuntimeError\n" + factory("boom"))
    config = registry.get_config("digits", root)
    assert config.trainer.train_steps == 7
    assert type(config.task).__name__ == "DigitsTask"
    assert "experiments.boom" not in sys.modules
    assert registry.get_task_cls(config.task).workspace == "w"
    assert resolve(config, experiment="digits", sets=["task.classes=3"]).config.task.classes == 3
    assert registry.get_config("digits", root) == config


def test_modules_may_import_their_neighbours(tmp_path):
    root = workspace(tmp_path, __init__="FLAG = 5\n", **{"lib/steps": "STEPS = 9\n"})
    imports = "from official_trainer.config import TrainerConfig\nfrom experiments.lib.steps import STEPS\n"
    body = "return ExperimentConfig(trainer=TrainerConfig(train_steps=STEPS))"
    workspace(root, main=imports + factory("main", body))
    assert registry.get_config("main", root).trainer.train_steps == 9
    assert sys.modules["experiments"].FLAG == 5


def test_a_process_has_one_workspace(tmp_path):
    """T14: another one is refused; that of before goes on."""
    first = workspace(tmp_path / "first", digits=digits("first", 1))
    second = workspace(tmp_path / "second", digits=digits("second", 2))
    assert registry.get_config("digits", first).trainer.train_steps == 1
    assert refusal(ENTER, second) == (
        f"this process has imported 'experiments' of {first}; use the experiments of {second} in another process"
    )
    assert registry.get_config("digits", first).trainer.train_steps == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such\n" + factory("a"), "experiments/a.py:1: cannot be imported: ModuleNotFoundError: No module"),
        (factory("a") + "\n\n1 / 0\n", "experiments/a.py:11: cannot be imported: ZeroDivisionError: division by zero"),
        (factory("a", "return {}"), "experiments/a.py:7: the factory of experiment 'a' must return an Experiment"),
        (factory("a", "return {}"), "ExperimentConfig, got a dict"),
        (factory("a", "return None"), "must return an ExperimentConfig, got nothing; write `return` before the config"),
        (factory("a", "return 1 / 0"), "experiments/a.py:8: the factory of experiment 'a' failed: ZeroDivisionError"),
        (factory("a").replace("@", "if 0:\n  @").replace("def", "  def"), "does not register 'a'; check whether"),
    ],
)
def test_broken_experiments_name_file_line_and_cause(tmp_path, text, said):
    assert said in refusal(registry.get_config, "a", workspace(tmp_path, a=text))


def test_a_module_that_imports_a_broken_one_names_the_innermost_line(tmp_path):
    root = workspace(tmp_path, a="import experiments.b\n" + factory("a"), b="def f(:\n")
    assert "experiments/b.py:1: cannot be imported: SyntaxError" in refusal(registry.get_config, "a", root)


def test_a_configuration_error_of_a_module_passes_through(tmp_path):
    text = "from official_trainer.config import ConfigError, Problem\n"
    raising = "raise ConfigError([Problem('of its own')])"
    root = workspace(tmp_path, a=text + factory("a", raising), b=text + factory("b") + raising + "\n")
    assert refusal(registry.get_config, "a", root) == "of its own"
    assert refusal(registry.get_config, "b", root) == "of its own"


def test_unknown_names(tmp_path):
    """T14: the nearest name, and all of them when they are few."""
    root = workspace(tmp_path, digits=digits(), other=factory("python_docs_lm"))
    assert refusal(registry.get_config, "digts", root) == (
        "unknown experiment 'digts'; allowed: digits, python_docs_lm; did you mean 'digits'?"
    )
    many = workspace(tmp_path / "many", **{f"e{i}": factory(f"resnet_{i}") for i in range(20)})
    said = refusal(registry.get_config, "resnet_77", many)
    assert said == "unknown experiment 'resnet_77'; allowed: resnet_7, resnet_17, resnet_9; did you mean 'resnet_7'?"
    assert refusal(registry.get_config, "x", workspace(tmp_path / "empty")) == (
        "unknown experiment 'x'; 'experiments' registers no experiment"
    )
    lost = workspace(tmp_path / "lost")
    (lost / "near.py").write_text(factory("near"))
    assert refusal(registry.get_config, "near", lost) == (
        "unknown experiment 'near'; near.py registers it and is not in experiments/: move the file there, or give "
        "--import=near"
    )
    assert refusal(registry.get_config, "x") == (
        "unknown experiment 'x'; no folder 'experiments' here or above, and no --import=MODULE that registers it"
    )
    said = refusal(registry.get_config, "bert_squad")
    assert said.endswith("no --import=MODULE that registers it; did you mean 'bert/squad'?")


# In-process names.


def test_names_registered_by_code(tmp_path):
    """T14: without a workspace, what imported code has registered counts."""

    @registry.register_config_factory("in_process")
    def make():
        return ExperimentConfig()

    assert registry.get_config("in_process") == ExperimentConfig()
    root = workspace(tmp_path, digits=digits())
    assert registry.get_config("in_process", root) == ExperimentConfig()
    assert "allowed: digits, in_process" in refusal(registry.get_config, "in_proces", root)

    @registry.register_config_factory("fails")
    def fails():
        raise OSError("no")

    assert "test_registry.py" in refusal(registry.get_config, "fails")
    assert "the factory of experiment 'fails' failed: OSError: no" in refusal(registry.get_config, "fails")


def test_a_class_may_be_a_factory():
    class Failing:
        def __init__(self):
            raise OSError("no")

    registry.register_config_factory("plain")(ExperimentConfig)
    registry.register_config_factory("failing")(Failing)
    assert registry.get_config("plain") == ExperimentConfig()
    said = refusal(registry.get_config, "failing")
    assert re.search(r"test_registry.py:\d+: the factory of experiment 'failing' failed: OSError: no$", said)


def test_a_name_taken_twice_in_process(tmp_path):
    @registry.register_config_factory("taken")
    def first():
        return ExperimentConfig()

    def second():
        return ExperimentConfig()

    said = refusal(registry.register_config_factory("taken"), second)
    assert said.startswith("experiment 'taken' is registered twice, at ")
    assert said.count("test_registry.py:") == 2
    registry.register_config_factory("taken")(first)  # the same function again, as after a reload
    root = workspace(tmp_path, a=factory("taken"))
    assert "is registered twice, at experiments/a.py:7 and " in refusal(registry.get_config, "taken", root)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTask(TaskConfig):
    """A task config."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DerivedTask(LocalTask):
    """One derived from it."""


def test_task_classes_by_class_then_base():
    """T14: the exact class wins, then the nearest base; without one, the error names the class."""
    said = refusal(registry.get_task_cls, LocalTask())
    place = r".*tests/integration/tasks/test_registry.py:\d+: task: no Task class is registered for "
    assert re.match(rf"{place}tests.integration.tasks.test_registry.LocalTask; put @register_task_cls\(", said)
    assert "put @register_task_cls(LocalTask) above its Task class, and import the module of that class; regis" in said
    assert "give the experiment the config class of a Task" in refusal(registry.get_task_cls, TaskConfig())

    @registry.register_task_cls(LocalTask)
    class First:
        pass

    assert registry.get_task_cls(LocalTask()) is First
    assert registry.get_task_cls(DerivedTask()) is First

    @registry.register_task_cls(DerivedTask)
    class Second:
        pass

    assert registry.get_task_cls(DerivedTask()) is Second

    class Third:
        pass

    said = refusal(registry.register_task_cls(LocalTask), Third)
    assert said.startswith("the Task of LocalTask is registered twice, at ")
    registry.register_task_cls(LocalTask)(First)


def test_every_experiment_of_this_repository_survives_its_dump(tmp_path):
    """N23, T14: dump → load → equal, and the second dump is the same bytes."""
    names = list(registry.named(ROOT))
    assert names
    for name in names:
        base = registry.get_config(name, ROOT)
        resolved = resolve(base, experiment=name)
        file = tmp_path / "params.yaml"
        file.write_text(dump(resolved, origins=True), encoding="utf-8")
        again = resolve(base, experiment=name, config_files=[str(file)])
        assert again.config == resolved.config
        assert dump(again) == dump(resolved)
    assert registry.listed(ROOT)[1] == []
