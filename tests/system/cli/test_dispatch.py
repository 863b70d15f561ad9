"""Whole processes: exit codes and messages, and that nothing heavy is imported to give them."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from official_trainer import cli
from tests import ROOT
from tests.support.light import LIGHT


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a") / "ws"
    assert cli.main(["init", str(folder)]) == 0
    return folder


def process(*argv, cwd):
    """Returns (exit code, stdout, stderr) of a fresh Python process that can import this package."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *argv], cwd=cwd, env=environ, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--help"], 0, "Start with these, in this order:"),
        (["train", "--help"], 0, "--params_override=VALUES"),
        (["list"], 0, "my_experiment  Three grape varieties"),
        (["show", "my_experiment"], 0, "train_steps: 200"),
        (["show", "my_experiment", "--explain=trainer.train_steps"], 0, "global step at which training ends"),
        (["init", "new"], 0, "Wrote a workspace to new"),
        (["doctor", "--nodevices"], 0, "All is well."),
        (["train", "--experiment=my_experimnt"], 2, "did you mean 'my_experiment'?"),
        (["train", "--experiment=my_experiment", "--mode=trian"], 2, "no such mode; did you mean train?"),
        (["train", "--experiment=my_experiment", "trainer.train_steps=10k"], 2, "trainer.train_steps"),
        (["trian"], 2, "no such verb: trian; did you mean train?"),
        (["train"], 2, "try: official-trainer train --experiment=my_experiment"),
        (["train", "--train_steps=9"], 2, "the field for it is set with trainer.train_steps=9"),
    ],
)
def test_answers_without_tensorflow(argv, code, said, workspace):
    """N7: listing, showing, help and every mistake; nothing heavy is imported, no traceback."""
    found, out, err = process("-c", LIGHT, *argv, cwd=workspace)
    assert found == code, err
    assert said in (err if code else out)
    assert not out if code else not err, (out, err)
    assert "Traceback" not in err


def test_train_py(workspace, tmp_path):
    """T20: `python train.py` from anywhere; its own folder is the workspace if there is none around."""
    script = str(workspace / "train.py")
    assert process(script, "--experiment=x", cwd=tmp_path) == (
        2,
        "",
        "error: unknown experiment 'x'; allowed: my_experiment\n",
    )
    code, out, _ = process("train.py", "--help", cwd=workspace)
    assert (code, out.splitlines()[0].split()[:3]) == (0, ["usage:", "python", "train.py"])


def test_the_package_is_a_program(workspace):
    code, out, err = process("-m", "official_trainer", "list", "--json", cwd=workspace / "configs")
    assert (code, err) == (0, "")
    assert json.loads(out)["workspace"] == str(workspace)


def test_commands_of_the_readme(workspace):
    """Each command in a new workspace's README runs; `train.py` up to the engine, by asking for what it cannot do."""
    commands = re.findall(r"^    (\S.*)$", (workspace / "README.md").read_text(), flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        program, *words = shlex.split(command)
        start = ["-m", "official_trainer"] if program == "official-trainer" else []
        extra = ["trainer.train_steps=none"] if program == "python" else []
        code, _, err = process(*start, *words, *extra, cwd=workspace)
        assert code == (2 if extra else 0), err
        assert not extra or "trainer.train_steps" in err
