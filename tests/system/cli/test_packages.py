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
from tests.support.packages import OWN


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
    """Runs a command in an empty folder, where the package can be imported."""

    def run(*words, paths=(site,)):
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
        first = functools.partial(_search, site)
        return Command(words, cwd=tmp_path, folder=tmp_path_factory.mktemp("output"), first=first).wait()

    return run


def _search(site):
    sys.path.insert(1, str(site))


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


def test_names_that_modules_register_with_model_garden(tmp_path):
    """T25: `list` imports a module for names that it computes; a name that is there twice is said with its line."""
    text = "from official.core import exp_factory\n\n\n"
    text += "for name in ('twice', 'other'):\n    exp_factory.register_config_factory(name)(dict)\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(text.replace("dict", f"lambda: '{name}'"))
    listed = run_command(["list", "--import=one", "--json"], cwd=tmp_path, folder=tmp_path)
    assert [experiment["name"] for experiment in json.loads(listed.out)["experiments"]] == ["other", "twice"]
    done = run_command(["show", "twice", "--import=one", "--import=two"], cwd=tmp_path, folder=tmp_path)
    assert done.code == 2
    said = "error: two.py:5: two cannot be imported (named by --import=two): KeyError: 'Function or class twice"
    assert " ".join(done.err.split()).startswith(said)
