"""File systems that are really full or read-only, under the store and under a run from the command line."""

import os
import re
import subprocess
import warnings

import pytest

from official_trainer.checkpoints.store import SaveError
from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos.tiny import Tiny, read_newest, restored, save
from tests.support.forked import run_command
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


def test_a_disk_that_is_really_full(small_disk):
    """N3: a failed save gives back what it took, and succeeds once there is space."""
    model_dir = small_disk("size=700k") / "run"
    program = Tiny(size=50_000)  # 200 kB
    store = program.store(model_dir)
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


def train(model_dir, folder):
    argv = ["train", "--experiment=digits_mlp", f"--model_dir={model_dir}", "--set=trainer.export.at_end=false"]
    return run_command([*argv, "--config_file=configs/smoke/digits_mlp.yaml"], cwd=ROOT, folder=folder)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    assert train(folder / "run", folder).code == 0
    return bits(folder / "run" / "ckpt-20")


# Of about 200: full at the record, a checkpoint, the best one, and so that not even the end can be recorded.
@pytest.mark.parametrize("size", cases(["4k", "60k", "100k", "120k"], "60k"))
def test_a_run_on_a_full_disk_continues_when_there_is_space(small_disk, tmp_path, unbroken, size):
    """N1, N6: exit code 75 and one line; the same command then ends with the bits of a run that had space."""
    model_dir = small_disk(f"size={size}") / "run"
    done = train(model_dir, tmp_path)
    assert done.code == ExitCode.RETRY, done.err
    line = (
        rf"^error: {model_dir}/\S+( could not be saved| was saved, but .*)?: No space left on device\. Free some space"
    )
    found = re.search(line, done.err, flags=re.MULTILINE)
    assert found, done.err
    assert "Traceback" not in done.err
    small_disk("size=4m")
    done = train(model_dir, tmp_path)
    assert done.code == 0, done.err
    assert bits(model_dir / "ckpt-20") == unbroken
    assert not [name for name in os.listdir(model_dir) if name.endswith((".saving", "_temp")) or ".tmp-" in name]
