"""T25: which modules of a user's are imported, and the message when one cannot be."""

import re
import sys
from pathlib import Path

import pytest

from official_trainer.config import ConfigError, Origin
from official_trainer.errors import ExitCode
from official_trainer.tasks import registry, sources
from tests.support import packages
from tests.support.packages import entry_point, registering, write


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with packages.as_it_was(monkeypatch):
        yield


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as refused:
        call(*arguments)
    assert refused.value.exit_code == ExitCode.CONFIG
    return "\n".join(problem.message for problem in refused.value.problems)  # not wrapped


def importing(module):
    registry.enter(None)
    return refusal(sources.load, sources.given([module])[0])


# Which modules.


def test_a_flag_names_modules_each_once():
    """T25."""
    assert [module.name for module in sources.given(["a.b", "c", "a.b"])] == ["a.b", "c"]


def test_a_flag_that_names_no_module():
    """T25: a path, or the name of a distribution, leads to the module that is meant."""
    near = {"my_project/x.py": "my_project.x", "my-project": "my_project", "a:b": "a", "": "", "1a": ""}
    for value, module in near.items():
        said = f"--import={value}: '{value}' is not the name of a module; allowed: names with dots, such as "
        meant = f"; did you mean '{module}'?" if module else ""
        assert refusal(sources.given, [value]) == f"{said}my_project.experiments{meant}"


def pyproject(text, folder=None):
    path = (folder or Path.cwd()) / "pyproject.toml"
    path.write_text(text)
    return path.parent


def test_pyproject_names_modules():
    """T25: each is known by its line."""
    folder = pyproject('[tool.official-trainer]\nexperiments = [\n  "a.b",\n  "c",\n]\n')
    found, problems = sources.declared(folder)
    assert [(module.name, module.named_by) for module in found[:2]] == [
        ("a.b", Origin("file", "pyproject.toml", 3)),
        ("c", Origin("file", "pyproject.toml", 4)),
    ]
    assert problems == []


MISTAKES = [
    ("[tool.official-trainer]\nexperiments = [\n", "pyproject.toml: is not TOML: Invalid value"),
    (
        '[tool.official-trainer]\nexperiments = "a.b"\n',
        "pyproject.toml: tool.official-trainer: expected a list of modules, got {'experiments': 'a.b'}; "
        'such as experiments = ["my_project.experiments"]',
    ),
    (
        '[tool.official-trainer]\nexperiment = ["a.b"]\n',
        "pyproject.toml: tool.official-trainer: expected a list of modules, got {'experiment': ['a.b']}; such as ",
    ),
    ('[tool.official-trainer]\nexperiments = ["a/b"]\n', "pyproject.toml:2: 'a/b' is not the name of a module"),
]


def test_a_mistake_in_pyproject():
    """T25."""
    for text, said in MISTAKES:
        assert refusal(sources.declared, pyproject(text)).startswith(said)


def test_a_pyproject_without_a_table_of_ours_names_nothing(tmp_path):
    """T25: nor does it make a folder a workspace."""
    for text in ("", "[tool.other]\nx = 1\n", 'name = "official-trainer"\n', "[[[official-trainer"):
        assert not sources.declares(pyproject(text)), text
        assert registry.find_workspace(tmp_path) is None, text


def test_a_table_of_ours_makes_a_folder_a_workspace(tmp_path):
    """T25: as `experiments/` does; the nearest folder counts."""
    pyproject('[tool.official-trainer]\nexperiments = ["a"]\n')
    (tmp_path / "inner").mkdir()
    assert registry.find_workspace(tmp_path / "inner") == tmp_path
    (tmp_path / "inner" / "experiments").mkdir()
    assert registry.find_workspace(tmp_path / "inner") == tmp_path / "inner"


def test_an_entry_point_names_a_module(tmp_path, monkeypatch):
    """T25: one that names no module is a problem of its own."""
    entry_point(tmp_path / "site", "mine.experiments")
    entry_point(tmp_path / "site", "other:register", name="other")
    monkeypatch.syspath_prepend(tmp_path / "site")
    found, [problem] = sources.declared(None)
    assert [module for module in found if module.name == "mine.experiments"] == [
        sources.NamedModule("mine.experiments", Origin("file", "entry point mine of mine"))
    ]
    assert problem.message.startswith("entry point other of other: 'other:register' is not the name of a module; ")


@pytest.mark.parametrize("place", ["site/Mine-1.0.DIST-INFO", "site/mine.egg-info"])
def test_an_entry_point_is_found_where_python_finds_one(place, tmp_path, monkeypatch):
    """T25: also that of `pip install -e`, and of a folder whose name has capital letters."""
    entry_point(tmp_path, "mine.experiments")
    (tmp_path / place).parent.mkdir()
    (tmp_path / "mine-1.0.dist-info").rename(tmp_path / place)
    monkeypatch.syspath_prepend((tmp_path / place).parent)
    assert "mine.experiments" in [module.name for module in sources.declared(None)[0]]


# Importing one.


def test_what_a_module_prints_is_no_output_of_the_command(tmp_path, capsys):
    """T25: `list --json` stays JSON."""
    write(tmp_path, loud="print('hello')")
    registry.enter(None)
    sources.load(sources.given(["loud"])[0])
    assert capsys.readouterr() == ("", "hello\n")


def test_a_module_that_does_not_exist(tmp_path):
    """T25: the nearest one, and where was searched."""
    write(tmp_path, my_project__experiments="")
    said = importing("my_projct.experiments")
    assert said.startswith("--import=my_projct.experiments: there is no module 'my_projct'; searched: ")
    assert str(tmp_path) in said.partition("searched: ")[2].split(", ")
    assert said.endswith("; did you mean 'my_project.experiments'?")
    assert importing("my_project.experiment") == (
        "--import=my_project.experiment: there is no module 'my_project.experiment'; "
        f"searched: {tmp_path}/my_project; did you mean 'my_project.experiments'?"
    )


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("\n1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("import no_such_module\n", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:\n", 1, "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)\n", 2, "it ends the process"),
        ("import json\njson.loads('x')\n", 2, "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("from mine.outer import later\n", 1, "ImportError: cannot import name 'later' from partially initialized"),
    ],
)
def test_a_module_that_raises_names_the_users_line(text, line, cause, tmp_path):
    """T25: the innermost of the user's, also where a library raises; a circle of imports is such an error."""
    write(tmp_path, mine__outer="import mine.inner\nlater = 1\n", mine__inner=text)
    said = f"mine/inner.py:{line}: mine.outer cannot be imported (named by --import=mine.outer): {cause}"
    assert importing("mine.outer").partition("\n")[0].startswith(said)
    assert "mine.inner" not in sys.modules


def test_the_line_of_an_installed_package_counts_and_that_of_a_library_does_not(tmp_path, monkeypatch):
    """T25."""
    site = write(tmp_path / "site-packages", mine="import library\nlibrary.f()\n", library="def f():\n    1 / 0\n")
    monkeypatch.syspath_prepend(site)
    assert importing("mine").startswith("site-packages/mine.py:2: mine cannot be imported (named by --import=mine): ")


def test_what_the_package_of_a_module_registers_is_found(tmp_path):
    """T25: whether the module imports it or not."""
    write(tmp_path, mine__a__deep=registering("x", steps=9), mine__test_a=registering("tried"))
    assert registry.get_config("x", None, ["mine"]).trainer.train_steps == 9
    said = refusal(registry.get_config, "triad", None, ["mine"])
    assert re.match("unknown experiment 'triad'; allowed: .*x", said) and "tried" not in said


def test_get_config_imports_what_it_is_given(tmp_path):
    """T25: from the current folder, or from the workspace."""
    write(tmp_path, mine=registering("flagged", steps=7))
    assert registry.get_config("flagged", None, ["mine"]).trainer.train_steps == 7
    write(tmp_path / "w", other=registering("inside", steps=8), experiments__x="")
    assert registry.get_config("inside", tmp_path / "w", ["other"]).trainer.train_steps == 8


def test_partial_functions_in_a_loop_are_factories(tmp_path):
    """T25: names that a function computes; the place is that of the function."""
    loop = """
        import functools
        from official_trainer import register_config_factory
        from official_trainer.config import ExperimentConfig, TrainerConfig

        def make(steps):
            if steps == 3:
                raise ValueError("three")
            return ExperimentConfig(trainer=TrainerConfig(train_steps=steps))

        for steps in (1, 2, 3):
            register_config_factory(f"steps_{steps}")(functools.partial(make, steps))
    """
    write(tmp_path, loops=loop)
    assert [registry.get_config(f"steps_{n}", None, ["loops"]).trainer.train_steps for n in (1, 2)] == [1, 2]
    said = refusal(registry.get_config, "steps_3", None, ["loops"])
    assert said == "loops.py:8: the factory of experiment 'steps_3' failed: ValueError: three"
