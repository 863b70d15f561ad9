"""The image of a job: its Dockerfile and the lock file, as far as they can be checked without building it."""

import fnmatch
import re
import shlex
import subprocess
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests import ROOT
from tests.support.launch.rendered import IMAGE, manifest_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions():
    """Returns (instruction, rest) of the Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "launch" / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def copied(rest):
    """Returns what a COPY copies."""
    return [word for word in rest.split()[:-1] if not word.startswith("--")]


def pins():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in pinned}


def pods_of(text):
    """Returns the specs of the pods that a profile makes."""
    jobs = manifest_of(f"{IMAGE}\n{text}")["spec"]["replicatedJobs"]
    return [job["template"]["spec"]["template"]["spec"] for job in jobs]


def is_sent(path):
    """Tells whether a file or folder is in the context that docker is given."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().split():
        if fnmatch.fnmatch(path, line.lstrip("!")):
            sent = line.startswith("!")
    return sent


def test_what_is_copied_is_there():
    """N20: and not left out by .dockerignore."""
    copied_paths = [path for name, rest in instructions() if name == "COPY" for path in copied(rest)]
    assert {"requirements.lock", "official_trainer", "experiments", "configs"} <= set(copied_paths)
    for path in copied_paths:
        assert (ROOT / path).exists() and is_sent(path), path
    assert not is_sent("runs") and not is_sent(".git")


def test_the_image_starts_what_the_manifest_asks_for():
    """N20: in the workspace, with a Python that the package takes."""
    by_name = dict(instructions())
    first, last = [rest for name, rest in instructions() if name == "FROM"]
    version, stage = re.fullmatch(r"python:(\d+\.\d+)-slim AS (\w+)", first).groups()
    assert last == "${ENGINE}" and ("ARG", f"ENGINE={stage}") in instructions()
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert f"Python {version}" in (ROOT / "requirements.lock").read_text()
    assert by_name["WORKDIR"] == "/workspace"  # the last one
    assert shlex.split(by_name["ENTRYPOINT"].strip("[]")) == list(PROJECT["scripts"])


def test_the_image_runs_as_a_user_that_a_restricted_namespace_takes():
    """N20: a number other than 0, or the kubelet refuses to start it; it owns what is copied into the workspace."""
    starts = [number for number, (name, _) in enumerate(instructions()) if name == "FROM"]
    of_the_image = instructions()[starts[-1] :]
    (user,) = [rest for name, rest in of_the_image if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert all(rest.startswith(f"--chown={user} ") for name, rest in of_the_image if name == "COPY")
    (group,) = {pod["securityContext"]["fsGroup"] for pod in pods_of("volumes: [{claim: runs, path: /runs}]")}
    assert user.endswith(f":{group}")


def test_every_user_may_write_to_the_home_and_the_workspace(tmp_path):
    """N20: also one whose number the cluster chooses, which owns neither."""
    (step,) = [rest for name, rest in instructions() if name == "RUN" and "useradd" in rest]
    home, workspace = (tmp_path / name for name in ("home/trainer", "workspace"))
    home.mkdir(parents=True, mode=0o700)  # as useradd makes it
    commands = step.partition("&&")[2].replace("/home/trainer", str(home)).replace("/workspace", str(workspace))
    subprocess.run(["bash", "-c", commands], check=True)
    assert {path.stat().st_mode & 0o7777 for path in (home, workspace)} == {0o1777}
    assert ("ENV", "HOME=/home/trainer") in instructions() and ("WORKDIR", "/workspace") in instructions()


def test_tensorflow_may_be_another_one(tmp_path):
    """The step that leaves it out of the lock leaves out that line alone."""
    (step,) = [rest for name, rest in instructions() if name == "RUN" and "grep" in rest]
    (tmp_path / "requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    subprocess.run(["bash", "-c", step.split("&&")[0]], cwd=tmp_path, check=True)
    before = (ROOT / "requirements.lock").read_text().splitlines()
    after = (tmp_path / "others.lock").read_text().splitlines()
    assert [line for line in before if line not in after] == [f"tensorflow=={pins()['tensorflow']}"]


def test_the_lock_has_every_dependency():
    """N20: in a version that pyproject.toml takes; the head of the lock says how to write it anew."""
    wanted = map(Requirement, PROJECT["dependencies"])
    assert all(requirement.specifier.contains(pins()[requirement.name]) for requirement in wanted)
