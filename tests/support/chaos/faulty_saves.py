"""Saves under faults: one at each operation in turn, and what may lie in the directory afterwards."""

import itertools
import os
import shutil

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.chaos.faulty_files import FaultyFiles, Killed
from tests.support.chaos.tiny import Tiny, save

PARTS = ("data-00000-of-00001", "index", "manifest.json")


@pytest.fixture
def faults(monkeypatch, tmp_path):
    (tmp_path / "scratch").mkdir()
    return FaultyFiles(monkeypatch, tmp_path / "scratch")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory with whole checkpoints of steps 1 and 2, as many as are kept."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    for step in (1, 2):
        save(Tiny(step).store(directory), step)
    return directory


def renewed(whole, directory):
    """Puts `directory` back to where it was: a copy of `whole`, or nothing."""
    shutil.rmtree(directory, ignore_errors=True)
    if whole is not None:
        shutil.copytree(whole, directory)


def assert_tidy(directory):
    """Nothing is there but whole checkpoints, two at most."""
    steps = committed_steps(directory)
    assert len(steps) <= 2
    names = {name for name in os.listdir(directory) if name != "checkpoint"}
    assert names == {f"ckpt-{step}.{part}" for step in steps for part in PARTS}


def outcome(call):
    """Returns what `call` raised, or None."""
    try:
        call()
    except (Exception, Killed) as error:
        return error
    return None


def sweep(faults, call, *, prepare, least, **fault):
    """Runs `call` again and again, with a fault at its operation 0, 1, 2, … until it gets through without.

    Yields what it raised and the operations up to there, after the storage has recovered.
    """
    for at in itertools.count():
        prepare()
        faults.arm(at, **fault)
        error = outcome(call)
        has_struck, operations = faults.has_struck, faults.operations
        faults.arm()
        yield error, operations[: at + 1]
        if not has_struck:
            assert error is None
            assert at >= least, operations  # else the faults do not stand in the way of anything
            return
