"""Runs that leave out examples, killed at any read: the same list and the same weights as an unbroken run."""

import functools
import json
import signal

from official_trainer import files
from tests.support import bad_runs
from tests.support.distributed.clusters import LocalCluster
from tests.support.distributed.workers import SETS
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


def test_two_processes_leave_out_what_one_does(tmp_path):
    """N45: each reads half of every batch, and the chief lists the bad examples of both."""
    alone = tmp_path / "alone"
    assert child(alone).code == 0
    sets = [f"--set={word}" for word in (*SETS, f"task.folder={tmp_path}", "trainer.export.at_end=false")]
    argv = ["train", "--import=tests.support.bad_runs", "--experiment=bad_run", f"--model_dir={tmp_path}/run", *sets]
    with LocalCluster({"worker": 2}, argv=argv, cwd=tmp_path, folder=tmp_path / "output") as started:
        assert set(started.start_all().wait_all().values()) == {0}, started.outputs()
        left_out = [set(_left_out(started.err("worker", index))) for index in range(2)]
    assert all(left_out) and left_out[0] != left_out[1], "each has met some of them"
    assert (tmp_path / "run" / files.BAD_RECORDS_FILE).read_text() == (
        alone / f"run/{files.BAD_RECORDS_FILE}"
    ).read_text()
    counts = {f"task.{name}": len(bad_runs.BAD) for name in ("train_data", "validation_data")}
    for name in ("run.json", "status.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["bad_records"] == counts


def _left_out(output):
    """Returns the warnings of a process about its first bad examples."""
    return [
        line for line in " ".join(output.split()).split("warning: ") if "left out, because it cannot be read" in line
    ]
