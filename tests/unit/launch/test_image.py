"""The image of a job: its Dockerfile and the lock file, as far as they can be checked without building it."""

import fnmatch
import re
import shlex
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions():
    """Returns (instruction, rest) of the Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "launch" / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def pins():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in found}


def is_sent(path):
    """Tells whether a file or folder is in the context that docker is given."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().split():
        if fnmatch.fnmatch(path, line.lstrip("!")):
            sent = line.startswith("!")
    return sent


def test_what_is_copied_is_there():
    """N20: and not left out by .dockerignore."""
    copied = [word for name, rest in instructions() if name == "COPY" for word in rest.split()[:-1]]
    assert {"requirements.lock", "official_trainer", "experiments", "configs"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists() and is_sent(path), path
    assert not is_sent("runs") and not is_sent(".git")


def test_what_a_step_reads_was_copied_before():
    """What `pip install .` reads, the package's README and license among it, and the lock."""
    seen = set()
    for name, rest in instructions():
        if name == "COPY":
            seen |= set(rest.split()[:-1])
        elif name == "RUN" and "--no-deps ." in rest:
            assert {"pyproject.toml", PROJECT["readme"], "LICENSE", "launch", "official_trainer"} <= seen
        elif name == "RUN":
            assert "requirements.lock" in seen


def test_the_image_starts_what_the_manifest_asks_for():
    """N20: in the workspace, with a Python that the package takes."""
    found = dict(instructions())
    first, last = [rest for name, rest in instructions() if name == "FROM"]
    version, stage = re.fullmatch(r"python:(\d+\.\d+)-slim AS (\w+)", first).groups()
    assert last == "${ENGINE}" and ("ARG", f"ENGINE={stage}") in instructions()
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert f"Python {version}" in (ROOT / "requirements.lock").read_text()
    assert found["WORKDIR"] == "/workspace"  # the last one
    assert shlex.split(found["ENTRYPOINT"].strip("[]")) == list(PROJECT["scripts"])


def test_tensorflow_may_be_another_one(tmp_path):
    """The step that leaves it out of the lock leaves out that line alone."""
    (step,) = [rest for name, rest in instructions() if name == "RUN" and "grep" in rest]
    (tmp_path / "requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    subprocess.run(["bash", "-c", step.split("&&")[0]], cwd=tmp_path, check=True)
    before = (ROOT / "requirements.lock").read_text().splitlines()
    after = (tmp_path / "others.lock").read_text().splitlines()
    assert [line for line in before if line not in after] == [f"tensorflow=={pins()['tensorflow']}"]


@pytest.mark.parametrize("dependency", PROJECT["dependencies"])
def test_the_lock_has_every_dependency(dependency):
    """N20: in a version that pyproject.toml takes; the head of the lock says how to write it anew."""
    wanted = Requirement(dependency)
    assert wanted.specifier.contains(pins()[wanted.name]), "write requirements.lock anew"
