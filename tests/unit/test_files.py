import errno
import os
import re
import shutil

import pytest

from official_trainer import files
from official_trainer.errors import ExitCode


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


def test_names_that_tensorflow_takes_for_patterns_are_known():
    """N6: with a name that would do."""
    for name in ("a[1]", "a*", "a?", r"a\b", "[a"):
        problem = files.pattern_problem(f"runs/{name}")
        assert "which TensorFlow takes for a pattern of file names. Use another name, such as runs/" in problem
        assert not files.pattern_problem(problem.rpartition(" ")[2])
    assert not files.pattern_problem("gs://bucket/run {1} ]!~'x")


def test_who_may_not_read_a_file_and_what_to_do(tmp_path, monkeypatch):
    """N6: the folder that is in the way is named; as real users in system/runs/test_other_users.py."""
    folder = tmp_path / "a run"
    folder.mkdir()
    error = PermissionError(errno.EACCES, "Permission denied", str(folder / "deep" / "run.json"))
    if os.geteuid() == 0:
        assert files.as_denied(error) is None  # nothing is in the way of root
    real = os.stat(folder)
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((*real[:4], 0, *real[5:])))
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(folder))
    for user, name in ((65534, "nobody"), (4_000_000, "4000000")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        denied = files.as_denied(error)
        what = f"{folder} belongs to root, and this process runs as {name}; allow this user to write there, or run it"
        assert str(denied) == f"Permission denied: {what} as root"
        assert denied.exit_code == ExitCode.CONFIG
    assert files.as_denied(FileNotFoundError(2, "no", str(folder))) is None
    assert files.as_denied(PermissionError("of a user's own code")) is None


def test_a_name_that_is_not_utf_8_is_known(tmp_path, monkeypatch):
    """N6: also that of the current folder, in which a relative path is."""
    bad = os.fsdecode(bytes(tmp_path) + b"/\xff")
    message = r"is '.*\\udcff/runs/a', which is not UTF-8, as TensorFlow needs it\. Rename that folder, or name an"
    assert re.match(message, files.pattern_problem(f"{bad}/runs/a"))
    os.mkdir(bad)
    monkeypatch.chdir(bad)
    assert re.match(message, files.pattern_problem("runs/a"))
    assert not files.pattern_problem(str(tmp_path / "Läufe"))


# In a directory to which others can write too.


def make_link(path, tmp_path):
    path.symlink_to(tmp_path / "victim")


PLACES = {
    "link": (make_link, "a symbolic link"),
    "directory": (lambda path, _: path.mkdir(), "a directory"),
    "pipe": (lambda path, _: os.mkfifo(path), "a pipe or a device"),
}


@pytest.fixture(params=PLACES)
def unfit(request, tmp_path):
    """The path of something that is no file, what it is, and what a link to it points to."""
    make, what = PLACES[request.param]
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "metrics.jsonl"
    make(path, tmp_path)
    return str(path), what, victim


def test_a_file_is_not_written_through_a_link_nor_to_a_pipe(unfit):
    """N6: what a link points to stays as it is; the message names the place, what is there, and the fix."""
    path, what, victim = unfit
    fix = r"Move it away, or name another directory\."
    for mode in ("a", "ab", "w", "wb"):
        with pytest.raises(files.PathKindError, match=rf"/run/metrics\.jsonl is {what}, not a file\. {fix}") as caught:
            files.open_file(path, mode).close()
        assert caught.value.exit_code == ExitCode.CONFIG
        assert victim.read_text() == "mine"


def test_only_regular_files_are_read_and_a_link_to_one(unfit):
    """N6: a pipe in the place of a file would let the process wait for ever."""
    path, what, _ = unfit
    if os.path.islink(path):
        assert files.read_text(path) == "mine"
        return
    with pytest.raises(files.PathKindError, match=f"is {what}, not a file"):
        files.read_bytes(path)


def test_an_atomic_write_takes_the_place_of_a_link_or_a_pipe(unfit):
    """N6: and never writes to what a link points to; a directory is not removed."""
    path, what, victim = unfit
    if what == "a directory":
        with pytest.raises(files.PathKindError, match="is a directory, not a file"):
            files.write_text_atomically(path, "row")
        assert os.listdir(os.path.dirname(path)) == ["metrics.jsonl"]
    else:
        files.write_text_atomically(path, "row")
        assert files.read_text(path) == "row"
        assert not os.path.islink(path)
    assert victim.read_text() == "mine"


def test_a_link_is_removed_and_not_its_target(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    for target in (kept, kept / "file", kept / "missing"):
        link = tmp_path / "link"
        link.symlink_to(target)
        files.remove(str(link))
        assert os.listdir(tmp_path) == ["kept"]
    assert (kept / "file").read_text() == "mine"


def test_names_of_temporary_files_cannot_be_guessed_and_those_of_dead_processes_are_removed(tmp_path):
    """N6: not those that this process is writing."""
    path = str(tmp_path / "run.json")
    with files.written_atomically(path, durable=False) as one, files.written_atomically(path, durable=False) as other:
        assert one != other
        assert re.fullmatch(rf"{path}\.tmp-{os.getpid()}-[0-9a-f]{{8}}", one)
        for name in (f"run.json.tmp-{os.getpid()}-00000000", "run.json.tmp-1-0a1b2c3d", "run.json.tmp-x"):
            (tmp_path / name).touch()
        files.remove_temporaries(str(tmp_path), "run.json")
        assert sorted(os.listdir(tmp_path)) == sorted([*map(os.path.basename, (one, other)), "run.json.tmp-x"])


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    """N6: whichever of the folders above it is."""
    (tmp_path / "best").touch()
    for call in (files.list_dir, files.make_dirs):
        with pytest.raises(files.PathKindError, match=r"/best is a file, not a directory\. Move it away"):
            call(str(tmp_path / "best"))
    for call in (files.make_dirs, lambda path: files.write_text_atomically(f"{path}/x", "")):
        with pytest.raises(files.PathKindError, match=r"/best is a file, not a directory\. Move it away"):
            call(str(tmp_path / "best" / "inner"))


def test_a_link_to_nothing_in_the_place_of_a_folder_is_named(tmp_path):
    """N6: as what is above the place that is written."""
    (tmp_path / "best").symlink_to(tmp_path / "nothing")
    path = str(tmp_path / "best" / "inner")
    for call in (files.make_dirs, lambda path: files.write_text_atomically(path, "")):
        with pytest.raises(files.PathKindError, match=r"/best is a symbolic link, not a directory\. Move it away"):
            call(path)
    with pytest.raises(FileNotFoundError):
        files.read_text(path)


def test_whether_a_directory_can_be_written_is_tried_without_harm(tmp_path):
    """N6: nothing is left, also on a full disk."""
    files.check_writable(str(tmp_path))
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        files.check_writable(str(tmp_path / "missing"))
    with pytest.raises(OSError, match=r"denied|not permitted|Read-only|No such file"):
        files.check_writable("/proc/self")


def test_json_that_is_nested_deeply_is_a_value_error():
    """N6: not a RecursionError, now or when it is written again."""
    for depth in (101, 100_000):
        with pytest.raises(ValueError, match="it is nested"):
            files.parse_json("[" * depth + "]" * depth)
    assert files.parse_json("[" * 99 + "]" * 99)
    assert files.parse_json(b'{"a": [1, {"b": 2}]}') == {"a": [1, {"b": 2}]}


def test_a_directory_that_another_process_removes_too_is_gone(tmp_path, monkeypatch):
    """Also if that one wrote a last file there, or removes a file that this one has listed."""
    place, rmtree = tmp_path / "place", shutil.rmtree

    def beside(path):
        if calls.pop() == "written":
            raise OSError(errno.ENOTEMPTY, "a file has come", path)
        rmtree(path)
        raise FileNotFoundError(errno.ENOENT, "gone", path)

    calls = ["removed", "written"]
    (place / "deep").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", beside)
    files.remove(str(place))
    assert not place.exists() and not calls


def test_a_directory_that_is_never_empty_is_an_error(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

    monkeypatch.setattr(shutil, "rmtree", full)
    with pytest.raises(OSError, match="not empty"):
        files.remove(str(tmp_path))


def test_only_an_empty_directory_is_removed(tmp_path):
    """And what is not there is fine."""
    (tmp_path / "full" / "empty").mkdir(parents=True)
    files.remove_if_empty(str(tmp_path / "full"))
    assert (tmp_path / "full" / "empty").exists()
    for name in ("full/empty", "full", "full"):
        files.remove_if_empty(str(tmp_path / name))
        assert not (tmp_path / name).exists()
