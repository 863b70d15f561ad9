"""Runs that leave out examples, killed at any read: the same list and the same weights as an unbroken run."""

import functools
import signal

from official_trainer import files
from tests.support import bad_runs
from tests.support.forked import Child
from tests.support.runs import differences

READS = (3, 60, 111, 150)
"""Before which a process is killed: before the first step, and between checkpoints. None needs more than 200."""


def child(folder, *sets):
    folder.mkdir(exist_ok=True)
    return Child(functools.partial(bad_runs.do, str(folder), *sets), cwd=folder, folder=folder).wait()


def test_kills_change_neither_the_list_nor_the_weights(tmp_path):
    """N45: SIGKILL while examples are read."""
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    assert child(unbroken).code == 0
    sets = "task.kill_at=[" + ",".join(map(str, READS)) + "]"
    codes = [child(killed, sets).code]
    while codes[-1] == -signal.SIGKILL and len(codes) <= len(READS):
        codes.append(child(killed, sets).code)
    assert codes == [*[-signal.SIGKILL] * len(READS), 0]
    assert differences(killed / "run", unbroken / "run") == []
    path = f"run/{files.BAD_RECORDS_FILE}"
    assert (killed / path).read_text() == (unbroken / path).read_text()
