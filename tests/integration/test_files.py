"""Files on this machine and on URLs, by the same calls."""

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
