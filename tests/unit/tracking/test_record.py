import errno
import json
import math
import os
import re
import socket
import tempfile
from concurrent import futures
from pathlib import Path

import pytest

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.files import StorageError
from official_trainer.tracking.git_state import Code
from official_trainer.tracking.record import ModelDirError, RunRecord, prepare_model_dir
from tests.support import repository as repositories


def launch(**changes):
    values = {"experiment": "digits", "mode": "train_and_eval", "argv": ["train.py", "--x"], "config_digest": "abc"}
    return {**values, **changes}


def start(model_dir, now=0, **changes):
    os.makedirs(model_dir, exist_ok=True)
    run = RunRecord(model_dir, launch(**changes), clock=lambda: now)
    run.start()
    return run


def read(model_dir, name="run.json"):
    with open(os.path.join(model_dir, name)) as file:
        return json.load(file)


# run.json and status.json.


def test_a_run_is_on_record_as_soon_as_it_starts(model_dir):
    """N15: `run.json`; N6: `status.json`."""
    start(model_dir)
    run, status = read(model_dir), read(model_dir, "status.json")
    assert re.fullmatch("[0-9a-f]{32}", run["run_id"])
    recorded = {"experiment": "digits", "mode": "train_and_eval", "status": "running", "argv": ["train.py", "--x"]}
    recorded |= {"started": "1970-01-01T00:00:00+00:00", "restarts": 0, "config_digest": "abc"}
    recorded |= {"steps": {"start": 0, "current": 0, "end": None}, "devices": [], "versions": run["versions"]}
    others = run.keys() - recorded.keys() - {"run_id"}
    assert {name: run[name] for name in recorded} == recorded
    assert {run[name] for name in others} == {None}
    assert others > {"best", "error", "final_metrics", "finished", "git_revision", "last_checkpoint_step", "time"}
    assert set(run["versions"]) == {"python", "tensorflow", "keras", "tf_keras", "official_trainer"}
    assert run["versions"]["keras"].startswith("3.") and run["versions"]["tf_keras"].startswith("2.")
    here = {"pid": os.getpid(), "host": socket.gethostname(), "updated": "1970-01-01T00:00:00+00:00"}
    nothing = dict.fromkeys(("step", "last_checkpoint_step", "last_saved", "exit_code", "error"))
    assert status == {"phase": "start", **here, **nothing}


def test_what_a_reader_has_opened_stays_whole(model_dir):
    """N15, N6: a file is replaced and never written in place, so a death while it is written costs nothing."""
    record = start(model_dir)
    with open(f"{model_dir}/run.json") as run, open(f"{model_dir}/status.json") as status:
        record.phase("train", 7)
        record.finish(0, {"accuracy": 0.5})
        assert (json.load(run)["status"], json.load(status)["phase"]) == ("running", "start")
    assert read(model_dir)["status"] == "done"


def test_the_record_has_no_password_of_a_url(model_dir):
    """N15: trackers and reports show the command line."""
    start(model_dir, argv=["tune.py", "--db=postgresql://me:secret@host/db", "mysql://h/db?password=secret"])
    assert read(model_dir)["argv"] == ["tune.py", "--db=postgresql://me:***@host/db", "mysql://h/db?password=***"]


def test_the_status_follows_the_run(model_dir):
    """N6: phase, step and last checkpoint."""
    run = start(model_dir)
    run.note(devices=["CPU:0"])
    run.set_span(100, 500)
    assert read(model_dir)["devices"] == ["CPU:0"]
    assert read(model_dir)["steps"] == {"start": 100, "current": 100, "end": 500}
    run.phase("train", 150)
    run.phase("save")
    assert (read(model_dir, "status.json")["phase"], read(model_dir, "status.json")["step"]) == ("save", 150)
    run.checkpoint(200)
    assert read(model_dir, "status.json")["last_checkpoint_step"] == 200
    assert read(model_dir)["steps"]["current"] == 200
    run.set_best("accuracy", 0.5, 200)
    assert run.best == read(model_dir)["best"] == {"metric": "accuracy", "value": 0.5, "step": 200}


@pytest.mark.parametrize("text", [None, "", "[]", '{"last_saved": 3}'])
def test_the_time_of_the_last_save_is_recorded(model_dir, text):
    """N48: over restarts, if the status can be read; a checkpoint that the run goes back to is none."""
    start(model_dir, now=10).checkpoint(200)
    if text is not None:
        (Path(model_dir) / "status.json").write_text(text)
    run = start(model_dir, now=20)
    assert read(model_dir, "status.json")["last_saved"] == ("1970-01-01T00:00:10+00:00" if text is None else None)
    run.checkpoint(300)
    run.checkpoint(200, is_new=False)
    status = read(model_dir, "status.json")
    assert (status["last_saved"], status["last_checkpoint_step"]) == ("1970-01-01T00:00:20+00:00", 200)


def test_a_restart_records_the_checkpoint_that_it_begins_with(model_dir):
    """N6, N15: a process that was killed after a commit has not recorded it; one with nothing to do saves none."""
    start(model_dir).checkpoint(200)
    restarted = start(model_dir)
    assert read(model_dir, "status.json")["last_checkpoint_step"] is None
    restarted.phase("restore", 0)
    restarted.set_span(300, 300)
    status = read(model_dir, "status.json")
    assert status["last_checkpoint_step"] == status["step"] == read(model_dir)["steps"]["current"] == 300
    assert read(model_dir)["last_checkpoint_step"] == restarted.last_checkpoint_step == 300
    fresh = start(model_dir)
    fresh.set_span(0, 300)
    assert read(model_dir)["last_checkpoint_step"] == 300


@pytest.mark.parametrize(
    ("exit_code", "status"),
    [(0, "done"), (1, "failed"), (75, "failed"), (143, "stopped")],
)
def test_the_end_of_a_run_tells_its_exit_code(model_dir, exit_code, status):
    """N6: exit codes."""
    run = start(model_dir, now=60)
    run.phase("evaluate", 10)
    run.finish(exit_code, {"validation": {"loss": 0.5}, "nan": math.nan})
    assert read(model_dir)["status"] == status
    assert read(model_dir)["finished"] == "1970-01-01T00:01:00+00:00"
    assert read(model_dir)["final_metrics"] == {"validation": {"loss": 0.5}, "nan": "NaN"}
    assert read(model_dir, "status.json")["exit_code"] == exit_code
    assert read(model_dir, "status.json")["phase"] == status
    assert read(model_dir, "status.json")["step"] == 10


def test_the_error_that_ended_a_process_is_in_both_files(model_dir):
    """N28, N6: until a later process begins; one that was refused leaves the run's record as it was. A stop is none."""
    run = start(model_dir)
    run.finish(3, error="a label is 4")
    assert read(model_dir)["error"] == read(model_dir, "status.json")["error"] == "a label is 4"
    run = start(model_dir)
    assert read(model_dir)["error"] is None and read(model_dir, "status.json")["error"] is None
    run.refuse(2, error="no such field")
    assert read(model_dir)["error"] == "a label is 4"
    assert read(model_dir, "status.json")["error"] == "no such field"
    run = start(model_dir)
    run.finish(ExitCode.PREEMPTED, error="SIGTERM at step 7, which is saved")
    assert read(model_dir)["error"] is None and read(model_dir, "status.json")["error"] is None


def test_a_restart_keeps_the_identity_and_counts(model_dir):
    """N15: one run, however many processes."""
    first = start(model_dir, now=0)
    first.set_best("accuracy", 0.5, 20)
    first.finish(ExitCode.PREEMPTED, {"loss": 1.0})
    second = start(model_dir, now=60, config_digest="def")
    run = read(model_dir)
    assert second._run["run_id"] == first._run["run_id"]
    assert run["restarts"] == 1
    assert (run["started"], run["restarted"]) == ("1970-01-01T00:00:00+00:00", "1970-01-01T00:01:00+00:00")
    assert (run["status"], run["finished"], run["config_digest"]) == ("running", None, "def")
    assert run["best"]["value"] == 0.5
    assert run["final_metrics"] == {"loss": 1.0}
    assert read(model_dir, "status.json")["exit_code"] is None
    start(model_dir, now=90, mode="eval")
    assert read(model_dir)["restarts"] == 1


@pytest.fixture
def repository(tmp_path):
    return repositories.make(tmp_path / "repository")


def recorded(model_dir, code):
    """Starts and ends a process of a run with what git says of its code."""
    os.makedirs(model_dir, exist_ok=True)
    assert code.wait(60)
    run = RunRecord(model_dir, launch(), clock=lambda: 0, code=code)
    run.start()
    return run


def test_the_commit_and_the_changes_of_the_code_are_recorded(model_dir, repository):
    """B8: `git_revision`, and `git.diff` beside `run.json`; a restart has its own."""
    (repository / "x").write_text("https://me:secret@host\n")
    recorded(model_dir, Code(repository)).set_span(0, 40)
    assert re.fullmatch("[0-9a-f]{40}-dirty", read(model_dir)["git_revision"])
    with open(f"{model_dir}/git.diff") as file:
        assert file.read().splitlines()[-2:] == ["-x", "+https://me:***@host"]
    (repository / "x").write_text("x\n")
    recorded(model_dir, Code(repository)).finish(0)
    assert re.fullmatch("[0-9a-f]{40}", read(model_dir)["git_revision"])
    assert not os.path.exists(f"{model_dir}/git.diff")


def test_a_refused_start_leaves_the_changes_of_the_run(model_dir, repository):
    """B8: they are of the process that trained; changes that cannot be written do not fail a run."""
    for text, end in (("y\n", lambda run: run.finish(143)), ("z\n", lambda run: run.refuse(2, error="another config"))):
        (repository / "x").write_text(text)
        end(recorded(model_dir, Code(repository)))
    path = Path(model_dir, "git.diff")
    assert path.read_text().endswith("+y\n")
    path.unlink()
    (path / "in-the-way").mkdir(parents=True)
    recorded(model_dir, Code(repository)).set_span(0, 40)
    assert read(model_dir)["git_revision"].endswith("-dirty")


def test_a_start_does_not_wait_for_git(model_dir):
    """B8: a commit that is known later is in a later record; a run whose git never answers has none."""

    class Slow(Code):
        is_there = False

        def wait(self, seconds):
            return self.is_there

    os.makedirs(model_dir)
    code = Slow(None)
    run = RunRecord(model_dir, launch(), clock=lambda: 0, code=code)
    run.start()
    run.set_span(0, 40)
    assert read(model_dir)["git_revision"] is None
    code.is_there, code.revision = True, "1" * 40
    run.checkpoint(20)
    assert read(model_dir)["git_revision"] == "1" * 40


# Whose directory.


def test_a_directory_of_the_same_experiment_or_without_files_is_taken(model_dir):
    """N15: also with what a file system, or a killed process, leaves there."""
    prepare_model_dir(model_dir, "digits")
    for name in (".DS_Store", "lost+found", "run.json.tmp-12-0a1b2c3d"):
        open(os.path.join(model_dir, name), "w").close()
    prepare_model_dir(model_dir, "digits")
    start(model_dir).finish(0)
    before = sorted(os.listdir(model_dir))
    prepare_model_dir(model_dir, "digits")
    assert sorted(os.listdir(model_dir)) == before


def refused(model_dir, message, experiment="digits"):
    before = sorted(os.listdir(model_dir)) if os.path.isdir(model_dir) else None
    with pytest.raises(UserError, match=message) as caught:
        prepare_model_dir(model_dir, experiment)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert (sorted(os.listdir(model_dir)) if os.path.isdir(model_dir) else None) == before


def test_a_foreign_directory_is_refused(model_dir):
    """Nothing of the user's is overwritten."""
    os.makedirs(model_dir)
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        open(os.path.join(model_dir, name), "w").close()
    refused(
        model_dir, r"--model_dir=.*run holds a\.txt, b\.txt, c\.txt and 1 more, but no run of this program \(no run"
    )


def test_a_run_of_another_experiment_is_refused(model_dir):
    start(model_dir)
    refused(
        model_dir,
        r"holds a run of the experiment 'digits', not 'lm'\. Continue it with --experiment=digits, or .* --model_dir",
        experiment="lm",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"run_id": ', r"run\.json cannot be read \(.*\)\. Put a good copy back"),
        ("[1]", r"run\.json was not written by this program"),
        ('{"name": "another tool"}', r"run\.json was not written by this program"),
        ("", r"run\.json cannot be read \(.*\)\. Put a good copy back"),
        ("[" * 100_000, r"run\.json cannot be read \(it is nested too deeply\)\. Put"),
        ('{"run_id": "a", "x": ' + '{"x": ' * 200 + "0" + "}" * 201, r"nested more than 100 levels deep"),
        ('{"run_id": 5}', r"run\.json was changed: run_id is 5\. Put a good copy back, or name another --model_dir"),
        ('{"run_id": "a", "steps": [], "restarts": "2"}', r"changed: restarts is '2', steps is \[\]\. Put"),
        ('{"run_id": "a", "best": {"metric": "loss", "value": "x", "step": 1}}', r"changed: best is \{'metric'"),
        ('{"run_id": "a", "best": {"metric": "loss", "value": 1}}', r"changed: best is \{'metric'"),
    ],
)
def test_a_record_that_is_not_ours_is_refused(model_dir, content, message):
    os.makedirs(model_dir)
    with open(os.path.join(model_dir, "run.json"), "w") as file:
        file.write(content)
    refused(model_dir, message)


def test_a_name_that_cannot_be_a_directory_is_refused(tmp_path):
    """N6: a file, and what TensorFlow takes for a pattern, so that it would not find the run's own checkpoints."""
    (tmp_path / "file").write_text("x")
    refused(str(tmp_path / "file"), r"--model_dir=.*file is a file; name a directory")
    refused(str(tmp_path / "file" / "run"), r"/file is a file, not a directory\. Move it away, or name another")
    refused(str(tmp_path / "a[1]"), r"--model_dir=.*/a\[1\] holds '\[', which .* Use another name, such as .*/a_1_\.")


@pytest.mark.parametrize(
    ("number", "expected", "message"),
    [
        (errno.ENOSPC, StorageError, "run: No space left on device. Free some space there; then the same command"),
        (errno.EIO, StorageError, "run: Input/output error. Make the directory writable again; then the same command"),
        (errno.EROFS, ModelDirError, "run cannot be written: Read-only file system. Name another directory."),
    ],
)
def test_a_directory_on_a_full_disk_may_be_used_later(model_dir, monkeypatch, number, expected, message):
    """N3, N6: nothing is wrong with the command."""

    def fail(path, **options):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("os.makedirs", fail)
    with pytest.raises(expected, match=re.escape(message)):
        prepare_model_dir(model_dir, "digits")


def test_a_directory_that_cannot_be_written_is_refused(model_dir, monkeypatch):
    refused("/proc/no-run-here", r"--model_dir=/proc/no-run-here cannot be written: No such file or directory")
    os.makedirs(model_dir)

    def read_only(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    refused(model_dir, r"--model_dir=.*run cannot be written: Permission denied\. Name another directory")


def test_workers_may_check_a_new_run_directory_at_the_same_time(tmp_path):
    """N3: the check of one makes the directory and removes it again, while another's creates a file in it."""
    run_dir = str(tmp_path / "run")

    def check(_):
        for _ in range(100):
            if prepare_model_dir(run_dir, "digits") is None:
                files.remove_if_empty(run_dir)

    with futures.ThreadPoolExecutor(2) as workers:
        assert list(workers.map(check, range(2))) == [None, None]
