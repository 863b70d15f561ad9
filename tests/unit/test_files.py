import os
import subprocess
import sys

import pytest

from official_trainer import files


def test_paths_and_urls_are_joined_alike():
    assert files.join("gs://bucket/run", "best", "x") == "gs://bucket/run/best/x"
    assert files.join("runs/a", "x") == os.path.join("runs/a", "x")
    assert files.is_url("gs://bucket")
    assert not files.is_url("/tmp/a:b")


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(tmp_path, monkeypatch):
    """N3: a reader never sees half a file."""
    path = tmp_path / "state.json"
    files.write_text_atomically(str(path), "old")

    def die(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(OSError, match="disk full"):
        files.write_text_atomically(str(path), "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["state.json"]


def test_text_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A crash of the machine must not leave an empty file under the right name."""
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync") or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("replace") or replace(a, b))
    files.write_text_atomically(str(tmp_path / "x"), "text")
    assert calls == ["fsync", "replace", "fsync"]


def test_local_files_never_need_tensorflow(tmp_path):
    """N7: run records and metrics are written by commands that never import TensorFlow."""
    code = (
        "import sys; from official_trainer import files; from official_trainer.tracking import console, jsonl, record\n"
        f"files.make_dirs({str(tmp_path)!r}); path = files.join({str(tmp_path)!r}, 'x')\n"
        "files.write_text_atomically(path, 'x'); files.read_text(path); files.remove(path)\n"
        "assert 'tensorflow' not in sys.modules and 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
