"""`launch/`: profiles that users copy, the README's command for each, and what those commands render."""

import glob
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from official_trainer import cli
from official_trainer.errors import ExitCode
from official_trainer.launch import targets
from official_trainer.launch.job_spec import PLACEHOLDER
from tests import ROOT
from tests.support.launch import rendered
from tests.support.workspace import copy_workspace

PACKAGE = ROOT / "official_trainer"
PROFILES = sorted({path.name for path in (ROOT / "launch").glob("*.yaml")} - {"skypilot.yaml"})  # which is no profile


def test_files_are_as_people_have_read_them():
    """N20: the examples, and the other cases; `python -m tests.support.launch.rendered` writes them anew."""
    expected = rendered.expected()
    assert rendered.kept() == expected.keys()
    assert not [path for path, text in expected.items() if text != path.read_text()]


def test_every_profile_has_a_command_and_every_target_a_profile():
    named = [next((word for word in words if "--pro" in word), words[0]) for words in rendered.commands()]
    assert {f"{word.removeprefix('--profile=')}.yaml" for word in named} == {"local.yaml", *PROFILES}
    assert {words[0] for words in rendered.commands()} == {"local", *targets.names()}
    table = (ROOT / "launch/README.md").read_text()
    assert all(f"| `{name}` |" in table for name in PROFILES)


@pytest.mark.parametrize("words", rendered.commands(), ids=[words[0] for words in rendered.commands()])
def test_every_command_works(words, tmp_path, monkeypatch, capfd):
    """In a workspace that `init` has written, whose README has it; nothing is submitted."""
    folder = tmp_path / "ws"
    assert cli.main(["init", str(folder)]) == 0
    words = [word.replace("digits_cnn", "my_experiment") for word in words]
    assert shlex.join(words) in (folder / "launch/README.md").read_text()
    # The tests' folder is below one that each node has for itself, and it has no pyproject.toml.
    for name, line in (("slurm", "node_local: []"), ("tpu", "install: [official-trainer]")):
        profile = folder / f"launch/{name}.yaml"
        profile.write_text(f"{profile.read_text()}{line}\n")
    monkeypatch.chdir(folder)
    capfd.readouterr()
    assert cli.main(["launch", *words, *(["--dry_run"] if words[0] == "local" else [])]) == 0
    out, err = capfd.readouterr()
    assert out and (words[0] == "local" or "nothing was submitted" in err)
    assert not (folder / "launches").exists()


@pytest.mark.parametrize("words", [words for words in rendered.commands() if words[0] in ("kubernetes", "tpu")])
def test_a_profile_is_not_submitted_as_it_was_copied(words, tmp_path, monkeypatch, capfd):
    """N20: the file and the line of each value that is the user's to write."""
    copy_workspace(tmp_path, "experiments", "launch")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["launch", words[0], "--submit", *words[1:]]) == ExitCode.CONFIG
    said = capfd.readouterr().err
    name = next((word.removeprefix("--profile=") for word in words if "--pro" in word), words[0])
    lines = Path(f"launch/{name}.yaml").read_text().splitlines()
    left = [number for number, line in enumerate(lines, 1) if PLACEHOLDER in line]
    assert left and all(re.search(rf"launch/{name}.yaml:{number}: .* is a placeholder, got", said) for number in left)
    assert not Path("launches").exists()


def test_comments_say_what_to_change():
    """A profile begins with what it is; no profile has a value that only its author could use."""
    for name in PROFILES:
        text = (ROOT / "launch" / name).read_text()
        assert text.startswith("# "), name
        assert isinstance(yaml.safe_load(text), dict)


def test_a_wheel_has_the_folder():
    """The template's `launch` is a link to the repository's folder; setuptools follows it, and copies the files."""
    link = PACKAGE / "cli/template/launch"
    assert link.is_symlink() and link.resolve() == ROOT / "launch"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["official_trainer"]
    found = {path for pattern in patterns for path in glob.glob(f"{PACKAGE}/{pattern}", recursive=True)}
    data = [os.path.join(folder, name) for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names]
    assert not [path for path in data if not path.endswith((".py", ".pyc")) and path not in found]
    assert f"{link}/slurm.yaml" in found
