"""T25: packages of users, installed with pip or on the path, by commands as they are typed."""

import functools
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.forked import Command, run_command
from tests.support.packages import FORK, OWN

FLAG = "--import=my_garden.common.registry_imports"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed `my_project`."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(OWN, folder / "source")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*words, f"--target={folder / 'site'}", folder / "source"], check=True, timeout=240)
    return folder / "site"


@pytest.fixture
def command(site, tmp_path):
    """Runs a command in an empty folder, where both packages can be imported."""

    def run(*words, paths=(site, FORK)):
        environ = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths)))}
        process = [sys.executable, "-m", "official_trainer", *words]
        return subprocess.run(
            process, cwd=tmp_path, env={**os.environ, **environ}, capture_output=True, text=True, timeout=240
        )

    return run


@pytest.fixture
def forked(site, tmp_path, tmp_path_factory):
    """The same in a process that has TensorFlow already."""

    def run(*words):
        first = functools.partial(_search, (site, FORK))
        return Command(words, cwd=tmp_path, folder=tmp_path_factory.mktemp("output"), first=first).wait()

    return run


def _search(paths):
    sys.path[1:1] = map(str, paths)


def test_an_installed_package_is_found_by_its_entry_point(command, forked, site, tmp_path):
    """T25: listed, shown, tried, trained and evaluated without a flag or a workspace."""
    listed = json.loads(command("list", "--json").stdout)
    assert [(each["name"], each["path"]) for each in listed["experiments"]] == [
        ("sine_1", f"{site}/my_project/experiments/sine.py"),
        ("sine_2", f"{site}/my_project/experiments/sine.py"),
    ]
    assert listed["unlisted"] == []
    assert "frequency: 2.0  # experiment\n" in command("show", "sine_2").stdout
    assert "ok      export " in forked("check", "sine_2").out
    done = forked("train", "sine_2", "--model_dir=run", "--mode=train")
    assert done.code == 0, done.err
    done = forked("eval", "--model_dir=run", "--json")
    assert json.loads(done.out).keys() == {"error", "validation_loss"}, done.err
    done = command("eval", "--model_dir=run", paths=())
    assert done.returncode == 2
    said = "no folder 'experiments' here or above, and no --import=MODULE that registers it"
    assert done.stderr == f"error: unknown experiment 'sine_2'; {said}\n"


def test_a_package_in_the_layout_of_model_garden_is_imported_by_its_module(command, forked, tmp_path):
    """T25: which registers with `exp_factory`, by computed names; `list` imports it for them."""
    listed = command("list", FLAG)
    rows = ["my_lines/flat   A straight line.", "my_lines/steep  A straight line."]
    assert [line.partition("  my_garden.configs")[0].rstrip() for line in listed.stdout.splitlines()[2:4]] == rows
    done = forked("train", "my_lines/steep", FLAG, "--model_dir=run", "--mode=train_and_eval")
    assert done.code == 0, done.err
    assert "validation @ 8: error " in done.out
    done = forked("export", "--model_dir=run", FLAG)
    assert done.out == "run/export/8\n", done.err
    done = command("eval", "--model_dir=run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: unknown experiment 'my_lines/steep'; allowed: sine_1, sine_2"


def test_a_name_that_a_package_and_model_garden_register(tmp_path):
    """T25: Model Garden's registry refuses a computed name, and the line of the second one is said."""
    text = "from official.core import exp_factory\n\n\n"
    text += "for name in ('twice', 'other'):\n    exp_factory.register_config_factory(name)(dict)\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(text.replace("dict", f"lambda: '{name}'"))
    done = run_command(["show", "twice", "--import=one", "--import=two"], cwd=tmp_path, folder=tmp_path)
    assert done.code == 2
    said = "error: two.py:5: two cannot be imported (named by --import=two): KeyError: 'Function or class twice"
    assert " ".join(done.err.split()).startswith(said)
