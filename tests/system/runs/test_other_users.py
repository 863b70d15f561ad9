"""The run directory of another user: each command ends with code 2 and one line with the owner and what to do."""

import contextlib
import importlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.forked import Command

NOBODY = 65534
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
_UNWANTED = ("antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo", "lib2to3")  # they open windows


def become_nobody():
    """Gives this process, which was root's, to the user nobody for good; for `first` of a forked command.

    The modules of Python are imported before, because root may have it in a folder that nobody else may read.
    """
    for name in (*sorted(sys.stdlib_module_names), "encodings.utf_8_sig", "http.server"):
        if name not in _UNWANTED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    "".encode("utf-8-sig")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def hide_from_others():
    """Lets this process write for its own user alone."""
    os.umask(0o077)


pytestmark = NEEDS_ROOT

TRAIN = [
    "train",
    "--experiment=digits_mlp",
    "--config_file=configs/smoke/digits_mlp.yaml",
    "trainer.export.at_end=false",
    "--model_dir=RUN",
]
VERBS = {
    "train": [*TRAIN, "trainer.train_steps=60"],
    "eval": ["eval", "RUN"],
    "show": ["show", "RUN"],
    "export": ["export", "RUN"],
    "runs": ["runs", "RUN"],
}


@pytest.fixture(scope="module")
def place():
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.fixture
def do(tmp_path):
    def do(argv, model_dir, first=None):
        argv = [word.replace("RUN", str(model_dir)) for word in argv]
        return Command(argv, cwd=ROOT, folder=tmp_path, first=first).wait()

    return do


def made(do, run, *processes):
    """Makes a run by some processes, if it is not there; each is a list of words, and what it does first."""
    if not run.exists():
        for words, first in processes:
            done = do([*TRAIN, *words], run, first)
            assert done.code == 0, done.err
    return run


def private(do, place):
    return made(do, place / "private", ([], hide_from_others))


def continued(do, place):
    """A run of nobody that root has continued, who writes for itself alone."""
    more = ["trainer.train_steps=40"]
    return made(do, place / "continued", ([], become_nobody), (more, hide_from_others))


def with_folders(do, place):
    """A run of nobody in which root was the first to evaluate and to export."""
    run = made(do, place / "folders", (["--mode=train"], become_nobody), (["trainer.train_steps=40"], None))
    if not (run / "export").exists():
        assert do(VERBS["export"], run).code == 0
    return run


CASES = [
    *((private, verb, "private") for verb in VERBS),
    (continued, "train", "continued/run.json"),
    (continued, "eval", "continued/run.json"),
    (continued, "show", "continued/params.yaml"),
    (with_folders, "train", r"folders/\w+"),
    (with_folders, "export", "folders/export"),
]


@pytest.mark.parametrize(("make", "verb", "what"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_what_another_user_may_not_read_or_write_is_said(place, do, make, verb, what):
    """N6: after root has continued a run, or where its owner keeps it private."""
    run = make(do, place)
    done = do(VERBS[verb], run, become_nobody)
    assert done.code == ExitCode.CONFIG, done.err
    *_, last = done.err.splitlines()
    expected = rf"error: .*\b{what} belongs to root, and this process runs as nobody; allow .*, or run it as root"
    assert re.match(expected, last), done.err
    assert "Traceback" not in done.err


def test_a_directory_that_was_given_back_is_continued(place, do):
    """N6: by the command that the message names."""
    run = continued(do, place)
    given = place / "given"
    shutil.copytree(run, given)
    for path in (given, *given.rglob("*")):
        shutil.chown(path, "nobody")
    done = do(VERBS["train"], given, become_nobody)
    assert done.code == 0, done.err
