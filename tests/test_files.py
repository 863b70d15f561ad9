import os
import subprocess
import sys

import pytest

from official_trainer import files


@pytest.fixture(params=["local", "url"])
def directory(request, tmp_path):
    """The same calls on a local path and on a URL."""
    return str(tmp_path / "a" / "b") if request.param == "local" else f"ram://files/{tmp_path.name}/a/b"


def test_text_is_written_read_listed_and_removed(directory):
    files.make_dirs(directory)
    files.make_dirs(directory)
    path = files.join(directory, "note.txt")
    files.write_text_atomically(path, "old")
    files.write_text_atomically(path, "größer\n")
    assert files.read_text(path) == "größer\n"
    assert files.list_dir(directory) == ["note.txt"]
    assert files.list_dir(directory.removesuffix("/b")) == ["b"]
    assert files.exists(path)
    assert files.is_dir(directory)
    assert not files.is_dir(path)
    assert files.size_bytes(path) == 9
    assert files.sha256(path) == "6bfef1e5d544e74b1f3586d78f5b951b6a4de2161599ff5f429922aa0abf1548"
    files.rename(path, files.join(directory, "moved.txt"))
    assert files.list_dir(directory) == ["moved.txt"]
    files.remove(files.join(directory, "moved.txt"))
    files.remove(files.join(directory, "moved.txt"))
    assert files.list_dir(directory) == []


def test_directories_are_removed_with_all_they_hold(directory):
    files.make_dirs(files.join(directory, "deep"))
    files.write_text_atomically(files.join(directory, "deep", "x"), "x")
    files.remove(directory)
    assert not files.exists(files.join(directory, "deep", "x"))
    assert files.list_dir(directory) == []


def test_what_is_missing(directory):
    assert not files.exists(files.join(directory, "x"))
    with pytest.raises(FileNotFoundError):
        files.read_text(files.join(directory, "x"))


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
