"""Files of checkpoints, without TensorFlow."""

import os

import pytest

from official_trainer.checkpoints import manifest


@pytest.fixture
def asked(monkeypatch):
    """The names of the files of which the operating system was asked to read all, in any order."""
    names = set()

    def advise(descriptor, offset, length, advice):
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_WILLNEED)
        names.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return names


def test_the_newest_checkpoint_is_read_ahead(tmp_path, asked):
    """N26: neither an older one, nor one whose save died."""
    newest = {"ckpt-10.index", "ckpt-10.data-00000-of-00001", "ckpt-10.manifest.json"}
    for name in {*newest, "ckpt-5.index", "ckpt-5.data-00000-of-00001", "ckpt-5.manifest.json", "ckpt-20.saving"}:
        (tmp_path / name).touch()
    manifest.read_ahead(str(tmp_path))
    assert asked == newest


@pytest.mark.parametrize("make", ["nothing", "an empty folder", "a folder in the place of a file"])
def test_without_a_checkpoint_that_can_be_read_nothing_is_read_ahead(make, tmp_path, asked):
    folder = tmp_path / "run"
    if make != "nothing":
        folder.mkdir()
    if make == "a folder in the place of a file":
        (folder / "ckpt-10.index").mkdir()
        (folder / "ckpt-10.manifest.json").touch()
    manifest.read_ahead(str(folder))
    assert asked <= {"ckpt-10.manifest.json"}


def test_a_url_is_not_read_ahead(asked):
    manifest.read_ahead("gs://bucket/run")
    assert not asked
