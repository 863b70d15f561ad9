"""Files of checkpoints, without TensorFlow."""

import os

import pytest

from official_trainer import files
from official_trainer.checkpoints import manifest


@pytest.fixture
def asked(monkeypatch):
    """The names of the files that were read ahead."""
    names = set()
    read_ahead = files.read_ahead

    def noted(path):
        read_ahead(path)
        names.add(os.path.basename(path))

    monkeypatch.setattr(files, "read_ahead", noted)
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


def test_a_checkpoint_that_fills_the_memory_is_not_read_ahead(tmp_path, asked, monkeypatch):
    (tmp_path / "ckpt-10.manifest.json").write_text("x" * 100)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 199}.get)
    manifest.read_ahead(str(tmp_path))
    assert not asked
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 200}.get)
    manifest.read_ahead(str(tmp_path))
    assert asked == {"ckpt-10.manifest.json"}


def test_a_url_is_not_read_ahead(asked):
    manifest.read_ahead("gs://bucket/run")
    assert not asked
