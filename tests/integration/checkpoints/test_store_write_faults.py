"""Storage that is full, fails, refuses or is slow, and processes that die, at every operation of a save."""

import errno
import itertools
import os
import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.checkpoints.store import SaveError
from official_trainer.cli.dispatch import main
from official_trainer.errors import ExitCode
from tests.support.chaos.faulty_files import FaultyFiles, Killed
from tests.support.chaos.tiny import Tiny, read_newest, restored, save, store_of

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


ERRORS = {
    "full": {"fault": errno.ENOSPC, "lasts": True},
    "not_allowed": {"fault": errno.EACCES, "lasts": True},
    "failing": {"fault": errno.EIO, "lasts": True},
    "failed_once": {"fault": errno.EIO, "lasts": False},
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_at_every_operation_of_a_save(faults, whole, model_dir, kind):
    """N3, N6: a clear error; what was there stays whole; the next save leaves the directory tidy."""
    reason = os.strerror(ERRORS[kind]["fault"])
    program = Tiny()

    def attempt():
        save(store_of(program.train_to(3), model_dir), 3)

    for error, operations in sweep(
        faults, attempt, prepare=lambda: renewed(whole, model_dir), least=20, **ERRORS[kind]
    ):
        steps = committed_steps(model_dir)
        if error is None:
            assert steps == (2, 3)
        else:
            assert steps[-1] == 3 or steps == (1, 2), operations
            assert isinstance(error, SaveError) or (kind == "not_allowed" and isinstance(error, CheckpointError))
        if isinstance(error, SaveError):
            assert error.exit_code == ExitCode.RETRY
            assert re.search(rf"ckpt-3 (could not be|was) saved.*: {reason}\. ", str(error)), error
        assert restored(model_dir) == steps[-1], operations
        save(store_of(program.train_to(4), model_dir), 4)
        assert restored(model_dir) == 4
        assert_tidy(model_dir)


def test_a_save_that_fails_after_its_commit_says_so(faults, whole, model_dir):
    """The checkpoint is there, so the message must not deny it."""
    renewed(whole, model_dir)
    faults.arm()
    save(store_of(Tiny(3), model_dir), 3)
    last = len(faults.operations) - 1
    renewed(whole, model_dir)
    faults.arm(last, errno.ENOSPC)
    with pytest.raises(SaveError, match=r"ckpt-3 was saved, but the cleaning up after it failed: No space left on"):
        save(store_of(Tiny(3), model_dir), 3)
    assert committed_steps(model_dir) == (2, 3)


def test_an_error_before_a_save_begins_deletes_nothing(faults, model_dir):
    """N3: what is there without a mark of ours may be another tool's."""
    os.makedirs(model_dir)
    tf.train.CheckpointManager(Tiny(1).checkpoint, model_dir, max_to_keep=2).save()
    before = sorted(os.listdir(model_dir))
    faults.arm(0, errno.EIO)
    with pytest.raises(SaveError, match=r"ckpt-1 could not be saved: Input/output error\. Make the directory writable"):
        save(store_of(Tiny(1), model_dir), 1)
    assert sorted(os.listdir(model_dir)) == before


@pytest.mark.parametrize("is_first", [False, True], ids=["with_older", "first"])
def test_a_kill_at_every_operation_of_a_save(faults, whole, model_dir, is_first):
    """N1, N3: the newest whole checkpoint is restored, and what the dead save left is collected."""
    before = None if is_first else 2
    for error, operations in sweep(
        faults,
        lambda: save(store_of(Tiny(3), model_dir), 3),
        prepare=lambda: renewed(None if is_first else whole, model_dir),
        least=15,
        fault=Killed,
    ):
        assert restored(model_dir) in ((3,) if error is None else (before, 3)), operations
        if os.path.exists(model_dir):
            assert_tidy(model_dir)


@pytest.mark.parametrize("fault", [Killed, errno.EIO], ids=["killed", "failing"])
def test_a_fault_at_every_operation_of_a_restore(faults, whole, model_dir, fault):
    """N3: also while a damaged checkpoint is moved away, the next start finds the newest whole one."""

    def prepare():
        renewed(whole, model_dir)
        save(store_of(Tiny(3), model_dir), 3)
        save(store_of(Tiny(1), model_dir), 1)  # one more than is kept
        data = Path(model_dir, "ckpt-3.data-00000-of-00001")
        data.write_bytes(data.read_bytes()[::-1])
        Path(model_dir, "ckpt-4.saving").touch()

    found = []
    for error, operations in sweep(
        faults, lambda: found.append(restored(model_dir)), prepare=prepare, least=10, fault=fault
    ):
        assert error is None or isinstance(error, Killed | OSError), operations
        assert restored(model_dir) == 2, operations
        save(store_of(Tiny(4), model_dir), 4)
        assert restored(model_dir) == 4
        assert not [name for name in os.listdir(model_dir) if name.endswith((".saving", "_temp")) or ".tmp-" in name]
    assert set(found) == {2}


def test_a_reader_sees_whole_checkpoints_at_every_moment_of_a_slow_save(faults, whole, model_dir):
    """N3, T10: whoever looks between any two operations finds the newest committed checkpoint whole."""
    renewed(whole, model_dir)
    seen = []

    def look():
        program = Tiny(9)
        step = read_newest(program.checkpoint, model_dir)
        program.assert_is_at(step)
        seen.append(step)

    faults.on_operation = look
    save(store_of(Tiny(3), model_dir), 3)
    assert seen == sorted(seen)
    assert set(seen) == {2, 3}
    assert seen.count(2) > 15


# Messages.


def test_errors_that_are_not_the_storages_stay_what_they_are():
    """A message about disks would hide them."""
    for error in (ValueError("x"), FileNotFoundError(2, "No such file", "x"), tf.errors.InternalError(None, None, "x")):
        assert files.as_storage_error(error) is None
    assert files.as_storage_error(CheckpointError("no")) is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "a/b"),
            "a/b: No space left on device. Free some space there;",
        ),
        (OSError(errno.EIO, "Input/output error"), "run: Input/output error. Make the directory writable"),
        (
            tf.errors.ResourceExhaustedError(None, None, "{{node SaveV2}} a/b; No space left on device [Op:SaveV2]"),
            "run: No space left on device. Free some space there; then the same command, started again, continues",
        ),
    ],
    ids=["python", "python_without_place", "tensorflow"],
)
def test_faults_of_the_storage_in_words(error, message):
    """N6: place, reason, fix; exit code 75."""
    found = files.as_storage_error(error, "run")
    assert str(found).startswith(message)
    assert found.exit_code == ExitCode.RETRY
    assert files.as_storage_error(found) is found


def test_a_verb_that_meets_a_full_disk_says_so(monkeypatch, capsys, tmp_path):
    """N6: any verb, not only training; the file is named though the error of a write does not."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "sync", fail)
    monkeypatch.setattr("official_trainer.cli.list.run", lambda _: files.write_text_atomically(f"{tmp_path}/x", "y"))
    assert main(["list"]) == ExitCode.RETRY
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/x: No space left on device. Free some space there;")
    assert os.listdir(tmp_path) == []


# Real file systems.
