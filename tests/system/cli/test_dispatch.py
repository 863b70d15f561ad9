"""Whole processes: exit codes and messages, and that nothing heavy is imported to give them."""

import os
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


def test_answers_without_tensorflow(workspace):
    """N7: listing, showing and mistakes; nothing heavy is imported, and there is no traceback."""
    for argv, code, said in (
        (["list"], 0, "my_experiment  Three grape varieties"),
        (["show", "my_experiment", "--explain=trainer.train_steps"], 0, "global step at which training ends"),
        (["train", "--experiment=my_experiment", "trainer.train_steps=10k"], 2, "trainer.train_steps"),
    ):
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
