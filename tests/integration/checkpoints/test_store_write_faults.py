"""Storage that is full, fails, refuses or is slow, and processes that die, at every operation of a save."""

import errno
import os

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.checkpoints.store import SaveError
from official_trainer.cli.dispatch import main
from official_trainer.errors import ExitCode
from tests.support.chaos.faulty_files import Killed
from tests.support.chaos.faulty_saves import assert_tidy, renewed, sweep
from tests.support.chaos.tiny import Tiny, read_newest, restored, save, store_of


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


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["by_tensorflow", "in_the_background"])
@pytest.mark.parametrize("is_first", [False, True], ids=["with_older", "first"])
def test_a_kill_at_every_operation_of_a_save(faults, whole, model_dir, is_first, is_asynchronous):
    """N1, N3: the newest whole checkpoint is restored, and what the dead save left is collected."""
    before = None if is_first else 2
    for error, operations in sweep(
        faults,
        lambda: save(store_of(Tiny(3), model_dir, is_asynchronous=is_asynchronous), 3),
        prepare=lambda: renewed(None if is_first else whole, model_dir),
        least=15,
        fault=Killed,
    ):
        assert restored(model_dir) in ((3,) if error is None else (before, 3)), operations
        if os.path.exists(model_dir):
            assert_tidy(model_dir)


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["by_tensorflow", "in_the_background"])
def test_a_reader_sees_whole_checkpoints_at_every_moment_of_a_slow_save(faults, whole, model_dir, is_asynchronous):
    """N3, T10: whoever looks between any two operations finds the newest committed checkpoint whole."""
    renewed(whole, model_dir)
    seen = []

    def look():
        program = Tiny(9)
        step = read_newest(program.checkpoint, model_dir)
        program.assert_is_at(step)
        seen.append(step)

    faults.on_operation = look
    save(store_of(Tiny(3), model_dir, is_asynchronous=is_asynchronous), 3)
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


def test_a_fault_that_tensorflow_meets_names_its_file(tmp_path):
    """N6: where the engine knows no better place, as in an export by `check`."""
    full = tf.errors.ResourceExhaustedError(None, None, f"{{{{node SaveV2}}}} {tmp_path}/a b; No space left on device")
    assert str(files.as_storage_error(full)).startswith(f"{tmp_path}/a b: No space left on device. Free some space")


def test_a_verb_that_meets_a_full_disk_says_so(monkeypatch, capsys, tmp_path):
    """N6: any verb, not only training; the file is named though the error of a write does not."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "sync", fail)
    monkeypatch.setattr(
        "official_trainer.cli.verbs.list.run", lambda _: files.write_text_atomically(f"{tmp_path}/x", "y")
    )
    assert main(["list"]) == ExitCode.RETRY
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/x: No space left on device. Free some space there;")
    assert os.listdir(tmp_path) == []


# Real file systems.
