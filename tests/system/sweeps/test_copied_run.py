"""A run directory that begins as a copy of another: a process may die anywhere while it is made."""

import functools
import signal

import pytest

from official_trainer.sweeps import copied_run
from tests.support.cases import cases
from tests.support.chaos import disk
from tests.support.copied_runs import content, source
from tests.support.forked import Child


def copied(run, target):
    copied_run.copy(run, target, step=20)


@pytest.mark.parametrize("stride", cases([5, 1], 5))
def test_a_process_may_die_at_any_change_of_a_copy(tmp_path, stride):
    """N35: SIGKILL before each change on disk: there is no run before all of it is there; the next try makes it."""
    disk.require()
    run = source(tmp_path)
    copied(str(run), str(tmp_path / "unbroken"))
    expected = content(tmp_path / "unbroken")
    for number in range(1, 1000, stride):
        target = tmp_path / f"target{number}"
        first = functools.partial(disk.arm, str(target), number, -signal.SIGKILL)
        child = Child(functools.partial(copied, str(run), str(target)), cwd=tmp_path, folder=tmp_path, first=first)
        ended = child.wait()
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.err
        if (target / "run.json").exists():  # it only was not on the disk for sure
            assert content(target) == expected
        copied(str(run), str(target))
        assert content(target) == expected
    assert number > 20
