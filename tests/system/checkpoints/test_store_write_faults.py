"""File systems that are really full or read-only, under the store and under a run from the command line."""

import errno
import os
import re
import subprocess
import warnings
from pathlib import Path

import pytest

from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.checkpoints.store import SaveError, StoreOptions
from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos.faulty_files import Killed
from tests.support.chaos.faulty_saves import assert_tidy, renewed, sweep
from tests.support.chaos.tiny import Tiny, read_newest, restored, save, store_of
from tests.support.forked import run_command, train_digits, trained_digits
from tests.support.runs import bits


@pytest.fixture
def small_disk(tmp_path):
    """Returns a function that makes, or changes, a file system in memory: `small_disk("size=1m")`."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(option):
        is_change = os.path.ismount(place)
        options = f"remount,{option}" if is_change else option
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            if is_change:
                raise
            warnings.warn(
                f"no real file system that is full is tested: a tmpfs cannot be mounted: {error}", stacklevel=2
            )
            pytest.skip("a tmpfs cannot be mounted")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", place], check=True)


WRITERS = pytest.mark.parametrize("is_asynchronous", [False, True], ids=["by_tensorflow", "in_the_background"])


@WRITERS
def test_a_disk_that_is_really_full(small_disk, is_asynchronous):
    """N3: a failed save gives back what it took, and succeeds once there is space."""
    model_dir = small_disk("size=700k") / "run"
    program = Tiny(size=50_000)  # 200 kB
    store = program.store(model_dir, options=StoreOptions(is_asynchronous=is_asynchronous))
    for step in (1, 2, 3):
        program.train_to(step)
        save(store, step)
    free_blocks = os.statvfs(model_dir).f_bavail
    program.train_to(4)
    for _ in range(2):
        with pytest.raises(SaveError, match=r"ckpt-4 could not be saved: No space left on device\. Free some space"):
            save(store, 4)
        assert os.statvfs(model_dir).f_bavail == free_blocks
        assert not [name for name in os.listdir(model_dir) if name.startswith("ckpt-4")]
    fresh = Tiny(9, size=50_000)
    assert fresh.store(model_dir).restore().step == 3
    fresh.assert_is_at(3)
    small_disk("size=2m")
    save(store, 4)
    assert fresh.store(model_dir).restore().step == 4
    fresh.assert_is_at(4)


def test_a_disk_that_becomes_read_only(small_disk):
    """N3: as disks do that fail."""
    model_dir = small_disk("size=2m") / "run"
    save(Tiny(1).store(model_dir), 1)
    small_disk("ro")
    with pytest.raises(SaveError, match=r"ckpt-2 could not be saved: Read-only file system\. Make the dir"):
        save(Tiny(2).store(model_dir), 2)
    assert restored_read_only(model_dir) == 1
    small_disk("rw")
    save(Tiny(2).store(model_dir), 2)
    assert restored(model_dir) == 2


def restored_read_only(model_dir):
    return read_newest(Tiny(9).checkpoint, model_dir)


@pytest.fixture(scope="module")
def unbroken_run(tmp_path_factory):
    return trained_digits(tmp_path_factory.mktemp("unbroken"))


@pytest.fixture(scope="module")
def unbroken(unbroken_run):
    return bits(unbroken_run / "ckpt-20")


# Of about 200: full at the record, a checkpoint, the best one, and so that not even the end can be recorded.
@pytest.mark.parametrize("size", cases(["4k", "60k", "100k", "120k"], "60k"))
def test_a_run_on_a_full_disk_continues_when_there_is_space(small_disk, tmp_path, unbroken, size):
    """N1, N6: exit code 75 and one line; the same command then ends with the bits of a run that had space."""
    model_dir = small_disk(f"size={size}") / "run"
    done = train_digits(model_dir, tmp_path)
    assert done.code == ExitCode.RETRY, done.err
    line = (
        rf"^error: {model_dir}/\S+( could not be saved| was saved, but .*)?: No space left on device\. Free some space"
    )
    found = re.search(line, done.err, flags=re.MULTILINE)
    assert found, done.err
    assert "Traceback" not in done.err
    small_disk("size=4m")
    done = train_digits(model_dir, tmp_path)
    assert done.code == 0, done.err
    assert bits(model_dir / "ckpt-20") == unbroken
    assert not [name for name in os.listdir(model_dir) if name.endswith((".saving", "_temp")) or ".tmp-" in name]


@pytest.mark.parametrize("option", ["size=12k", "ro"])
def test_a_disk_that_takes_no_output_has_one_code_for_all_verbs(small_disk, tmp_path, unbroken_run, option):
    """N6: exit code 75, the place, and what to do."""
    output = small_disk(option) / "output"
    reason = os.strerror(errno.EROFS if option == "ro" else errno.ENOSPC)
    for argv in (["export", "--output_dir"], ["predict", "--output"], ["report", "--output"]):
        done = run_command([argv[0], str(unbroken_run), f"{argv[1]}={output}-{argv[0]}"], cwd=ROOT, folder=tmp_path)
        assert done.code == ExitCode.RETRY, done.err
        assert re.match(rf"error: {output}-{argv[0]}\S*: {reason}\. .* same command", done.err.splitlines()[-1])


ERRORS = {
    "full": {"fault": errno.ENOSPC, "lasts": True},
    "not_allowed": {"fault": errno.EACCES, "lasts": True},
    "failing": {"fault": errno.EIO, "lasts": True},
    "failed_once": {"fault": errno.EIO, "lasts": False},
}


@WRITERS
@pytest.mark.parametrize("kind", cases(list(ERRORS), "full", "failed_once"))
def test_an_error_at_every_operation_of_a_save(faults, whole, model_dir, kind, is_asynchronous):
    """N3, N6: a clear error; what was there stays whole; the next save leaves the directory tidy."""
    reason = os.strerror(ERRORS[kind]["fault"])
    program = Tiny()

    def attempt():
        save(store_of(program.train_to(3), model_dir, is_asynchronous=is_asynchronous), 3)

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


@pytest.mark.parametrize("fault", [Killed, errno.EIO], ids=["killed", "failing"])
def test_a_fault_at_every_operation_of_a_restore(faults, whole, model_dir, fault):
    """N3: also past a damaged checkpoint, the next start finds the newest whole one."""

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
