"""What `top` knows of runs and jobs that go on, end and vanish while it looks."""

import json
import math
import os
import socket
import subprocess
import sys

import pytest

from official_trainer import cli
from official_trainer.launch import top, watched
from official_trainer.launch.watched import Watcher
from official_trainer.lock import lock_path
from official_trainer.runs import recorded
from tests.support.launch import engine as scripted
from tests.support.live_run import NOW, LiveRun
from tests.support.workspace import copy_workspace


@pytest.fixture
def run(tmp_path):
    return LiveRun(tmp_path / "runs" / "a")


@pytest.fixture
def watcher(tmp_path, run):
    return Watcher(str(tmp_path / "runs"))


def only(watcher, now):
    (found,) = watcher.look(now)
    return found


def test_a_run_that_goes_on(run, watcher):
    """N51: the steps that are left, the loss and goodput come from what has been added."""
    run.train(loss=2.0)
    run.train(loss=1.0)
    found = only(watcher, run.now)
    assert (found.name, found.run.status, found.run.step, found.rows.losses) == ("a", "running", 20, [2.0, 1.0])
    assert found.left_seconds == 980 * 0.5
    assert math.isclose(found.rows.goodput, 0.8)
    run.train(steps=80, loss=0.25)
    found = only(watcher, run.now)
    assert found.rows.losses == [2.0, 1.0, 0.25] and found.left_seconds == 900 * 10 / 90
    assert found.host == socket.gethostname()


def test_half_a_line_waits(run, watcher):
    """N51: a line that is being written counts once it is whole, and a damaged one is passed over."""
    path = run.folder / "metrics.jsonl"
    line = json.dumps({"step": 5, "split": "train", "time": NOW, "loss": 3.0})
    path.write_text(line[:20])
    assert only(watcher, NOW).rows.losses == []
    path.write_text(line + '\n{"split": "train", broken\n["split": "train"]\n')
    os.utime(path)
    assert only(watcher, NOW).rows.losses == [3.0]


def test_damaged_rows_and_records_are_no_reason_to_end(run, watcher):
    """N51, N34: values of other types and sizes, such as a disk error leaves them."""
    hostile = [float("inf"), -1, 1e308, None, [], {}, "x", "NaN"]
    with open(run.folder / "metrics.jsonl", "w") as file:
        for number, value in enumerate(hostile):
            row = {"step": number, "split": "train", "time": value, "training_loss": value}
            file.write(json.dumps(row) + "\n" + json.dumps({**row, "step": value}) + "\n")
            file.write(json.dumps({"step": 1, "split": "time", "steps_seconds": value, "wall_seconds": value}) + "\n")
    for value in hostile:
        (run.folder / "status.json").write_text(json.dumps({"updated": value, "step": value, "phase": value}))
        found = only(watcher, NOW)
        shown = {name: cell.plain for name, cell in top.cells(found, NOW).items()}
        assert (shown["run"], shown["eta"], shown["goodput"]) == ("a", "", "")


def test_rows_that_a_restart_took_back(run, watcher):
    """N51: the history that was left is not shown."""
    for loss in (3.0, 2.0, 1.0):
        run.train(loss=loss)
    only(watcher, run.now)
    run.rows.rewind(10)
    assert only(watcher, run.now).rows.losses == [3.0]


def test_of_a_long_history_the_newest_is_read(run, watcher):
    """N51: a file of megabytes costs no more than its end."""
    row = {"split": "train", "time": NOW, "loss": 1.0}
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **row}) + "\n" for n in range(50_000)))
    rows = only(watcher, NOW).rows
    assert 100 < len(rows.losses) <= 512
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps({"step": 50_000 + n, **row, "loss": 0.5}) + "\n" for n in range(400))
    assert only(watcher, NOW).rows.losses[-1] == 0.5 and len(rows.losses) <= 512


@pytest.mark.parametrize(("code", "status"), [(0, "done"), (1, "failed"), (5, "stalled"), (143, "preempted")])
def test_a_run_that_ends(run, watcher, code, status):
    """N51: also by a stall; then no step is left."""
    run.train()
    run.train()
    assert only(watcher, run.now).run.status == "running"
    run.record.finish(code)
    found = only(watcher, run.now)
    assert (found.run.status, found.left_seconds, found.silent_seconds(run.now + 999)) == (status, None, 0.0)


def test_a_run_that_is_killed_or_silent(run, watcher, monkeypatch):
    """N51: no file changes then, only the time."""
    run.train()
    assert only(watcher, run.now).silent_seconds(run.now + 90) == 90
    os.remove(lock_path(str(run.folder)))
    assert only(watcher, run.now + 300).run.status == "died"


def test_runs_that_appear_and_are_deleted(run, watcher, tmp_path):
    """N51: also below another folder; a folder without a run is none."""
    other = LiveRun(tmp_path / "runs" / "sweep" / "trials" / "7")
    (tmp_path / "runs" / "notes").mkdir()
    assert [each.name for each in watcher.look(NOW)] == ["a", "sweep/trials/7"]
    for path in sorted(other.folder.iterdir()):
        path.unlink()
    other.folder.rmdir()
    assert [each.name for each in watcher.look(NOW)] == ["a"]


def test_files_that_have_not_changed_are_not_read_again(run, watcher, monkeypatch):
    """N51: hundreds of runs that have ended cost their names and times alone."""
    run.record.finish(0)
    read = []
    monkeypatch.setattr(recorded, "read", lambda path, was=recorded.read, **now: read.append(path) or was(path, **now))
    for _ in range(3):
        watcher.look(NOW)
    assert read == [str(run.folder)]
    run.record.note(gin=None)
    assert only(watcher, NOW).run.status == "done" and len(read) == 2


def test_stop_asks_the_process_that_trains(run, watcher):
    """N51: as Ctrl-C does, and only while the run is that process's."""
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        status = json.loads((run.folder / "status.json").read_text())
        (run.folder / "status.json").write_text(json.dumps({**status, "pid": process.pid}))
        said = watcher.stop(only(watcher, NOW))
        assert said == f"a was asked to stop: SIGTERM to process {process.pid}"
        assert process.wait() == 9
    assert watcher.stop(only(watcher, NOW)) == "a does not run: died"


def test_stop_of_a_run_on_another_host(run, watcher, monkeypatch):
    """N51: it is said where, and nothing is sent here."""
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail("a process of this machine got a signal"))
    status = json.loads((run.folder / "status.json").read_text())
    (run.folder / "status.json").write_text(json.dumps({**status, "pid": 77, "host": "node-7"}))
    path = lock_path(str(run.folder))
    os.utime(path)
    assert watcher.stop(only(watcher, os.stat(path).st_mtime)) == "a runs on node-7; there: kill -TERM 77"


def test_the_log_of_a_run(run, watcher):
    """N51: its error, files of output, the stall, and the rows that are no times."""
    run.train(loss=0.5)
    (run.folder / "stall-1.txt").write_text("no step for 600 s\n")
    run.record.finish(1, error="the disk is full")
    text = watched.log_of(only(watcher, run.now), "")
    assert text.splitlines()[0] == "the disk is full"
    assert "--- stall-1.txt\nno step for 600 s\n" in text
    assert text.endswith("--- metrics.jsonl\ntrain @ 10: training_loss 0.5")


def test_jobs(tmp_path, monkeypatch, capfd):
    """N51: of a scheduler, with the runs that can be seen from here; a job is cancelled by it."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    copy_workspace(folder, "experiments")
    scripted.be_the_only_target(monkeypatch, tmp_path / "bin")
    monkeypatch.chdir(folder)
    assert cli.main(["launch", "scripted", "--submit", "--", "digits_mlp", f"--model_dir={folder}/runs/a"]) == 0
    watcher = Watcher(str(folder), of_jobs=True)
    found = only(watcher, NOW)
    assert found.job is not None and found.run.status == "no run" and found.state
    run = LiveRun(folder / "runs" / "a")
    run.train()
    found = only(watcher, run.now)
    assert (found.run.status, found.run.step, found.state != "unknown") == ("running", 10, True)
    assert watcher.stop(found) == f"scripted was asked to end {found.name}"
    *_, call = [json.loads(line) for line in (tmp_path / "bin" / "calls").read_text().splitlines()]
    assert call[1:] == ["stop", found.job.id]
    assert watched.log_of(found, str(folder)) == "a line\n"
    assert only(watcher, run.now + 60).state.lower() == "cancelled"
    capfd.readouterr()
