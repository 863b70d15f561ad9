"""What a config, a run directory and this package's own code cannot do: the claims of docs/design/security.md."""

import ast
import json
import re
import sys

import pytest
import yaml

from official_trainer import cli
from official_trainer.config import ConfigError, ExperimentConfig, resolve
from official_trainer.runs.resume.config_changes import parse
from tests import ROOT
from tests.support.source import ENGINE, PATHS, nodes_of
from tests.support.workspace import copy_workspace

PAGE = ROOT / "docs" / "design" / "security.md"


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TAGS = [
    "!!python/object/apply:os.mkdir [{mark}]",
    "!!python/object/new:os.mkdir [{mark}]",
    "!!python/name:os.mkdir",
    "!!python/module:antigravity",
]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_makes_no_python_object(tag, tmp_path):
    """N23: neither in a file, nor in an override, nor in what a checkpoint says it was trained with."""
    mark = tmp_path / "mark"
    value = tag.format(mark=mark)
    file = tmp_path / "config.yaml"
    file.write_text(f"task:\n  init_checkpoint: {value}\n")
    with pytest.raises(ConfigError, match="tag"):
        resolve(ExperimentConfig(), config_files=[str(file)])
    given = resolve(ExperimentConfig(), sets=[f"task.init_checkpoint={value}"])  # an override has no tags
    assert given.config.task.init_checkpoint == value
    with pytest.raises(ConfigError, match="tag"):
        parse(f"a: {value}")
    assert not mark.exists() and "antigravity" not in sys.modules


def test_the_loader_of_the_test_above_would_be_noticed(tmp_path):
    """It can fail: PyYAML's unsafe loader does what the tag says."""
    yaml.unsafe_load(f"a: !!python/object/apply:os.mkdir [{tmp_path}/mark]")
    assert (tmp_path / "mark").exists()


TEXTS = (
    "__import__('os').getpid()",
    "{{7*7}}",
    "$(id)",
    "$HOME",
    "`id`",
)


def test_a_text_stays_a_text():
    """N23: nothing is evaluated, no variable and no template is filled in."""
    for text in TEXTS:
        found = resolve(ExperimentConfig(), sets=[f"task.init_checkpoint={json.dumps(text)}"]).config
        assert found.task.init_checkpoint == text


INSIDES = (
    "HOME",
    "__import__('os').getpid()",
    "trainer.__class__",
    "(lambda: 1)()",
    "9 ** 9",
    "[].append(1)",
)


def test_a_reference_names_fields_and_evaluates_nothing():
    """N30: a path of the configuration alone; no variable of the environment, no Python."""
    for inside in INSIDES:
        with pytest.raises(ConfigError, match=r"refers to|no path of a field"):
            resolve(ExperimentConfig(), sets=[f"task.init_checkpoint=${{{inside}}}"])
        found = resolve(ExperimentConfig(), sets=[f"task.init_checkpoint=$${{{inside}}}"]).config
        assert found.task.init_checkpoint == f"${{{inside}}}"


@pytest.mark.parametrize("field", ["actions", "trackers"])
@pytest.mark.parametrize(
    "name", ["antigravity", "os", "../cli/main", "official_trainer.cli.main", "__init__", "action.x"]
)
def test_a_type_is_the_name_of_a_file_and_no_module(field, name):
    """N23: also not of a module that Python could import."""
    with pytest.raises(ConfigError, match=r"unknown type|one ActionConfig|one TrackerConfig"):
        resolve(ExperimentConfig(), sets=[f"trainer.{field}=[{{type: {json.dumps(name)}}}]"])
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["antigravity", "os:getcwd", "../digits", "experiments.digits"])
def test_a_run_directory_names_no_module(name, workspace, capsys):
    """N6: its experiment is one of those of the workspace."""
    (workspace / "run").mkdir()
    record = {"experiment": name, "run_id": "1"}
    (workspace / "run" / "run.json").write_text(json.dumps(record))
    (workspace / "run" / "params.yaml").write_text("trainer: {train_steps: 1}\n")
    for verb in ("eval", "export"):
        assert cli.main([verb, "--model_dir=run"]) == 2
        assert f"unknown experiment '{name}'" in capsys.readouterr().err
    assert "antigravity" not in sys.modules


# The code of the package.

RUNS_TEXT = {"eval", "exec", "__import__", "compile"}
LOADS_CODE = {"unsafe_load", "full_load", "load_weights_from_hdf5", "system", "popen"}
LOADERS = {"config/reading.py"}
"""Modules with a YAML loader of their own, which is a `SafeLoader`."""

IMPORTS_BY_NAME = {
    "cli/verbs/__init__.py": "a verb: a file of its folder",
    "config/components.py": "a component: a file of two folders",
    "config/installed.py": "what an installed package names by an entry point",
    "garden/gin_bindings.py": "modules that a task names; gin imports what a gin file names",
    "garden/index.py": "an experiment of Model Garden, by the module that registers it",
    "garden/importing.py": "a module of Model Garden: of an experiment, or of a class that the config names",
    "garden/serving.py": "a table of Model Garden's modules",
    "garden/to_garden.py": "the module of one of Model Garden's classes, which a class of the config names",
    "processes/forked.py": "the module that a process runs",
    "processes/training_imports.py": "the modules that it lists",
    "lazy.py": "TensorFlow and Keras",
    "tasks/sources.py": "a file of the workspace; modules that the user, the workspace or an installed package names",
    "tracking/mlflow.py": "a library that may be missing",
    "tracking/wandb.py": "a library that may be missing",
}


def calls():
    """Yields the module, the name and the node of every call in the package."""
    for path in PATHS:
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                yield str(path.relative_to(ENGINE)), name, node


SAVED_MODELS = {
    "formats/convert.py": "what this run has just written, which is converted",
    "formats/readers.py": "what this run has just written, which is compared",
}
"""Modules that load a SavedModel, which is a program."""


def test_no_module_evaluates_text_loads_a_program_or_calls_a_shell():
    """N6: a SavedModel is a program too; a model is loaded where the run has just written it."""
    by_name, saved_models, shells, loads, models = set(), set(), [], set(), set()
    for module, name, node in calls():
        assert not (name in RUNS_TEXT and isinstance(node.func, ast.Name)), (module, node.lineno, name)
        assert name not in LOADS_CODE, (module, node.lineno, name)
        if name in ("import_module", "run_module", "run_path"):
            by_name.add(module)
        text = ast.unparse(node.func)
        if name == "load_model":
            models.add((module, *(f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords)))
        if text.endswith("saved_model.load"):
            saved_models.add(module)
        if text == "yaml.load":
            loads.add(module)
        if any(word.arg == "shell" for word in node.keywords):
            shells.append((module, node.lineno))
    assert shells == []
    assert saved_models == SAVED_MODELS.keys()
    assert models == {  # .keras files
        ("formats/readers.py", "compile=False", "safe_mode=True"),
        ("program/saving.py", "custom_objects=custom_objects", "safe_mode=True"),
    }
    assert by_name == IMPORTS_BY_NAME.keys()
    assert loads <= LOADERS
    for module in LOADERS:
        assert re.search(r"CSafeLoader", (ENGINE / module).read_text(encoding="utf-8"))


# The page.


def test_each_test_that_the_page_names_exists():
    named = re.findall(r"`((?:unit|integration|system)/\S+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert len(set(named)) >= 9
    assert [path for path in named if not (ROOT / "tests" / path).is_file()] == []


def test_the_network_policy_of_the_page_selects_the_pods_of_a_job():
    """N20: those of the rendered example."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    policy = yaml.safe_load(text)
    job = yaml.safe_load((ROOT / "launch" / "examples" / "kubernetes.yaml").read_text())
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    (allowed,) = policy["spec"]["ingress"]
    assert allowed == {"from": [{"podSelector": {"matchLabels": selected}}]}
    assert policy["metadata"]["name"] == job["metadata"]["name"]
