"""Files on local paths and on URLs (`gs://…`), with the same few calls.

Owns: reading, atomic writing, listing, checksums and removal, so that no other module depends on where a path points;
which errors are faults of the storage; that a link, a pipe or a folder in the place of a file does no harm.
Does not own: what the files mean. Local paths use `os` and never import TensorFlow; URLs go through `tf.io.gfile`.

Others may be able to write to a directory too. So a local file is created only where nothing is, and never written
through a symbolic link; and only regular files are opened, because a pipe would let the process wait for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import json
import os
import posixpath
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.nearest import nearest

PARAMS_FILE = "params.yaml"
"""In a run directory: its configuration."""

RUN_FILE = "run.json"
"""In a run directory: what the run is, and how it ended."""
SWEEP_FILE = "sweep.json"
"""In the directory of a sweep: what it is."""
STATUS_FILE = "status.json"
"""In a run directory: what its process is doing now."""
STOP_FILE = "stop.txt"
"""In a run directory: the stacks of a process that was asked to stop and did not end within its grace period."""
CODE_FILE = "git.diff"
"""In a run directory: what was changed in the code since its commit, when the run started; only if something was."""
TEMPORARY = r"\.tmp-\d+-[0-9a-f]{8}"
"""Pattern of what is behind the name of a file while it is written."""

_CHUNK_BYTES = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAULTS = (*_FULL, errno.EIO, errno.ESTALE, errno.EROFS)
_FILE, _DIRECTORY = "a file", "a directory"
_MISSING = (FileNotFoundError, NotADirectoryError)
"""When a file that is read is not there."""
_MAX_DEPTH = 100
_REMOVALS = 10
_MOST_BESIDE = 1000
_PATTERN = re.compile(r"[*?[\\]")
_FLAGS = {
    "r": os.O_RDONLY | os.O_NONBLOCK,
    "w": os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK,
    "a": os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK,
}
"""How a local file is opened; without waiting, as opening a pipe would."""

_Errors = type[OSError] | tuple[type[OSError], ...]

_being_written: set[str] = set()
"""Temporary files of this process, which `remove_temporaries` leaves alone."""


class StorageError(UserError, OSError):
    """The storage is full or fails. Nothing is wrong with the run, so the same command may be started again."""

    exit_code = ExitCode.RETRY


class PathKindError(UserError, OSError):
    """A folder, a link or a pipe is where a file has to be, or a file where a folder has to be."""

    exit_code = ExitCode.CONFIG


class DeniedError(UserError, PermissionError):
    """This user may not read or write a file or a folder, such as those of a run that another user has continued."""

    exit_code = ExitCode.CONFIG


class UnreadableFileError(UserError, ValueError):
    """A file whose content is not what this program writes there."""

    exit_code = ExitCode.CONFIG


def as_storage_error(error: BaseException, path: str = "") -> StorageError | None:
    """Returns an error for the user if `error` is a fault of the storage, else None.

    Args:
      error: of Python, or of TensorFlow, which is recognized by its text.
      path: what was read or written, for errors that do not name it; without it, the file that TensorFlow names.
    """
    if isinstance(error, UserError):
        return error if isinstance(error, StorageError) else None
    reason = reason_of(error)
    if reason not in map(os.strerror, _FAULTS):
        return None
    # TensorFlow names the path in its message: `{{…}} PATH; No space left on device [Op:SaveV2]`.
    before, separator, _ = str(getattr(error, "message", "")).partition(f"; {reason}")
    path = str(getattr(error, "filename", None) or path or (before.rpartition("}} ")[2] if separator else ""))
    return StorageError(f"{path}: {reason}. {storage_fix(reason)}" if path else f"{reason}. {storage_fix(reason)}")


def reason_of(error: BaseException) -> str:
    """Returns what went wrong, without the place: the system's own message, where there is no other."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(getattr(error, "message", error))  # of TensorFlow: "{{…}} PATH; No space left on device [Op:SaveV2]"
    reasons = (os.strerror(code) for code in errno.errorcode)
    return next((reason for reason in reasons if f"; {reason}" in text), text)


def as_denied(error: BaseException) -> DeniedError | None:
    """Returns an error for the user if `error` is that this user may not read or write a local path, else None."""
    if not isinstance(error, PermissionError) or not isinstance(error.filename, str):  # it may name none
        return None
    path = os.path.abspath(error.filename)
    while path != "/" and (not os.path.lexists(path) or os.access(path, os.R_OK | os.W_OK)):
        path = os.path.dirname(path)
    if path == "/":
        return None
    owner, user = _user_name(os.lstat(path).st_uid), _user_name(os.geteuid())
    what = f"{path} belongs to {owner}, and this process runs as {user}; allow this user to write there, or run it as "
    return DeniedError(f"{os.strerror(errno.EACCES)}: {what}{owner}")


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container
        return str(number)


def storage_fix(reason: str) -> str:
    """Returns what to do when storage fails for `reason`."""
    is_full = reason in map(os.strerror, _FULL)
    first = "Free some space there" if is_full else "Make the directory writable again"
    return f"{first}; then the same command, started again, continues with what was saved."


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether `path` names a remote or virtual file system, such as `gs://bucket/run`."""
    return "://" in os.fspath(path)


def join(path: str | os.PathLike[str], *names: str) -> str:
    """Returns `names` below `path`; URLs keep forward slashes on every system."""
    return (posixpath if is_url(path) else os.path).join(os.fspath(path), *names)


def absolute(path: str) -> str:
    """Returns a path that means the same in every folder; URLs do already."""
    return path if is_url(path) else os.path.abspath(path)


def near(path: str) -> str:
    """Returns the path beside a local one that is not there whose name is the nearest; empty without one."""
    above, name = os.path.split(os.path.expanduser(path.rstrip("/")))
    try:
        with os.scandir(above or ".") as entries:
            beside = sorted(entry.name for entry in itertools.islice(entries, _MOST_BESIDE))
    except (OSError, ValueError):
        return ""
    names = nearest(name, beside)
    return os.path.join(os.path.dirname(path.rstrip("/")), names[0]) if names else ""


def near_hint(path: str) -> str:
    """Returns `; did you mean …?` with what `near` returns; empty without one."""
    beside = near(path)
    return f"; did you mean {beside}?" if beside else ""


def base_name(path: str) -> str:
    """Returns the last name of a path."""
    path = absolute(path)
    return (posixpath if is_url(path) else os.path).basename(path.rstrip("/"))


def pattern_problem(path: str | os.PathLike[str]) -> str:
    """Returns why TensorFlow cannot keep a checkpoint at a path, and a path that would do; empty if it can.

    It takes the path of a checkpoint that it reads for a pattern: it would not find its files, or find those of others.
    """
    path = os.fspath(path)
    if (whole := absolute(path)) != whole.encode("utf-8", "replace").decode():
        return f"is {whole!r}, which is not UTF-8, as TensorFlow needs it. Rename that folder, or name another one"
    if (character := _PATTERN.search(path)) is None:
        return ""
    other = _PATTERN.sub("_", path).replace("]", "_")
    return (
        f"holds {character[0]!r}, which TensorFlow takes for a pattern of file names. Use another name, such as {other}"
    )


def open_file(path: str, mode: str) -> IO[Any]:
    """Opens a file, in mode `r`, `w` or `a`, `b` for bytes; text is UTF-8. What is appended to can be read too.

    Raises:
      FileNotFoundError: a local file that is read does not exist.
      PathKindError: there is something else than a file; or a link, and the file is written.
    """
    if is_url(path):
        return tf.io.gfile.GFile(path, mode)
    with _explained(path, missing=_MISSING if mode[0] == "r" else ()):
        descriptor = os.open(path, _FLAGS[mode[0]] | os.O_CLOEXEC, 0o666)
    try:
        if (what := _described(os.fstat(descriptor).st_mode)) != _FILE:
            raise _wrong_kind(path, what, _FILE)
        os.set_blocking(descriptor, True)
        options = mode if mode[0] != "a" else mode.replace("a", "a+")
        return os.fdopen(descriptor, options, encoding=None if "b" in mode else "utf-8")
    except BaseException:
        os.close(descriptor)
        raise


def is_in_place(file: IO[Any], path: str) -> bool:
    """Whether a file that is appended to is still the one at its path, and as long as it was.

    Of a URL, and where the whole directory is gone, it is not known: True.
    """
    if is_url(path):
        return True
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return not os.path.isdir(os.path.dirname(path) or ".")  # it was moved, and the file with it
    descriptor = file.fileno()
    return os.path.samestat(there, os.fstat(descriptor)) and there.st_size >= os.lseek(descriptor, 0, os.SEEK_CUR)


def read_bytes(path: str) -> bytes:
    """Returns the whole file.

    Raises:
      FileNotFoundError: the file does not exist, wherever it lives.
      PathKindError: it is not a file.
    """
    with _explained(path, missing=_MISSING), open_file(path, "rb") as file:
        return file.read()


def read_text(path: str) -> str:
    """Returns the whole file as text; fails as `read_bytes` does."""
    return read_bytes(path).decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: it is not JSON, or so deeply nested that reading or writing it would fail.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = list(itertools.chain.from_iterable(inner))
        if not level:
            return value
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def read_json(path: str) -> dict[str, Any]:
    """Returns the object that a JSON file holds; fails as `read_bytes` does.

    Raises:
      UnreadableFileError: it holds something else.
    """
    try:
        value = parse_json(read_bytes(path))
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
        return value
    except ValueError as error:
        raise UnreadableFileError(f"{path} cannot be read ({error}). Put a good copy back, or remove it.") from error


def read_regular_text(path: str, max_bytes: int) -> str:
    """Returns the text of a local file that this program did not write; it waits for no pipe and no device.

    Raises:
      OSError: it cannot be read, is no regular file or has more than `max_bytes`; `strerror` says which.
      UnicodeDecodeError: it is not UTF-8. A mark of the byte order is left out.
    """
    try:
        with open_file(path, "rb") as file:
            content: bytes = file.read(max_bytes + 1)
    except ValueError:  # NUL, or a character that no path can hold
        raise OSError(errno.EINVAL, "no file can have this name", path) from None
    except PathKindError as error:
        other = "it is a pipe or a device; write its content into a file"
        raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if os.path.isdir(path) else other, path) from error
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes, which is the limit; split it", path)
    return content.decode("utf-8-sig")


def write_bytes_atomically(path: str, content: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Writes a file so that readers, also after a kill, see the old content or the new, never a part of it.

    Args:
      path: the file; a link there is replaced.
      content: what it will hold.
      durable: whether to wait until it is on the disk, so that it survives a power failure. That can take long: use
        False for files that are written often and hold nothing that cannot be found out again.
      private: whether a local file can be read by its owner alone, also where it replaces one that others can read.
    """
    with written_atomically(path, durable=durable, private=private) as temporary, open_file(temporary, "wb") as file:
        file.write(content)


@contextlib.contextmanager
def written_atomically(path: str, *, durable: bool = True, private: bool = False) -> Iterator[str]:
    """Yields the path of a new file in the same directory; if the block ends without an error, it is renamed to `path`.

    For files that a library writes, or that are too large for memory; all else is as in `write_bytes_atomically`.
    """
    temporary = _temporary(path)
    _being_written.add(temporary)
    try:
        if not is_url(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(temporary, flags, 0o600 if private else 0o666))
        yield temporary
        if durable:
            sync(temporary)
        if is_url(path):
            tf.io.gfile.rename(temporary, path, overwrite=True)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError) and (problem := _kind_error(path, error, _FILE)) is not None:
            raise problem from error
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, temporary):
            error.filename = path  # errors of write and fsync do not name the file
        raise
    finally:
        _being_written.discard(temporary)
    if durable:
        sync(os.path.dirname(path) or ".")


def _temporary(path: str) -> str:
    """Returns a name beside `path` that cannot be guessed."""
    return f"{path}.tmp-{os.getpid()}-{os.urandom(4).hex()}"


def check_writable(directory: str) -> None:
    """Creates a file in a directory, of which nothing is left.

    Raises:
      OSError: none can be created there.
    """
    if is_url(directory):
        probe = _temporary(join(directory, ".write-test"))
        write_bytes_atomically(probe, b"")
        remove(probe)
    else:
        with tempfile.TemporaryFile(dir=directory):  # which has no name, and so is gone with a killed process too
            pass


def write_text_atomically(path: str, text: str, *, durable: bool = True, private: bool = False) -> None:
    """Writes a text file as `write_bytes_atomically` does."""
    write_bytes_atomically(path, text.encode("utf-8"), durable=durable, private=private)


def remove_temporaries(directory: str, *names: str) -> None:
    """Removes temporary files of dead processes that were writing `names`; only one living process may write these."""
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, names))}){TEMPORARY}")
    for name in list_dir(directory):
        if pattern.fullmatch(name) and join(directory, name) not in _being_written:
            remove(join(directory, name))


def sync(path: str) -> None:
    """Waits until a local file, or the names in a local directory, are on the disk; URLs do this on close."""
    if is_url(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exists(path: str) -> bool:
    """Whether a file or directory exists; a link to nothing does not."""
    return tf.io.gfile.exists(path) if is_url(path) else os.path.exists(path)


def is_dir(path: str) -> bool:
    """Whether `path` is a directory."""
    return tf.io.gfile.isdir(path) if is_url(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    """Whether `path` is a regular file, or a link to one."""
    return exists(path) and not is_dir(path) if is_url(path) else os.path.isfile(path)


def list_dir(path: str) -> list[str]:
    """Returns the names in a directory, sorted; none if there is no such directory.

    Raises:
      PathKindError: there is a file of this name.
    """
    try:
        with _explained(path, _DIRECTORY, missing=FileNotFoundError):
            names = tf.io.gfile.listdir(path) if is_url(path) else os.listdir(path)
    except FileNotFoundError:
        return []
    return sorted({name.rstrip("/") for name in names})


def make_dirs(path: str) -> None:
    """Creates a directory and its parents; one that is there already is fine.

    Raises:
      PathKindError: there is a file of this name, or of a parent's.
    """
    with _explained(path, _DIRECTORY):
        tf.io.gfile.makedirs(path) if is_url(path) else os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file, a directory with all it holds, or a link but not its target; what is gone already is fine.

    Another process may remove it, or write a last file to it, at the same time.
    """
    if is_url(path):
        with contextlib.suppress(FileNotFoundError), _explained(path):
            tf.io.gfile.rmtree(path) if is_dir(path) else tf.io.gfile.remove(path)
        return
    attempts_left = _REMOVALS
    while is_dir(path) and not os.path.islink(path):
        attempts_left -= 1
        try:
            shutil.rmtree(path)
        except OSError as error:
            if not attempts_left or error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.remove(path)


def remove_if_empty(path: str) -> None:
    """Removes a directory that holds nothing; any other stays."""
    if is_url(path):
        if not list_dir(path):
            remove(path)
        return
    with contextlib.suppress(OSError):
        os.rmdir(path)


def rename(source: str, target: str) -> None:
    """Moves a file or directory, within one file system."""
    tf.io.gfile.rename(source, target) if is_url(source) else os.rename(source, target)


def exchange(first: str, second: str) -> bool:
    """Lets two local files or folders take each other's place at once; False if one is missing, or that cannot be done.

    Linux can, but not on every file system: not on NFS.
    """
    call = getattr(ctypes.CDLL(None), "renameat2", None)  # glibc; Python has no call for it
    at, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return call is not None and call(at, os.fsencode(first), at, os.fsencode(second), swap) == 0


def copy(source: str, target: str) -> None:
    """Copies a file, in the place of what is at `target`; a local copy is on the disk when this returns.

    Raises:
      FileNotFoundError: there is no such file, wherever it lives.
    """
    if is_url(source) or is_url(target):
        with _explained(source):
            tf.io.gfile.copy(source, target, overwrite=True)
        return
    remove(target)
    with open_file(source, "rb") as read, open_file(target, "wb") as written:
        shutil.copyfileobj(read, written, _CHUNK_BYTES)
    sync(target)


def size_bytes(path: str) -> int:
    """Returns the length of a file."""
    return tf.io.gfile.stat(path).length if is_url(path) else os.path.getsize(path)


def sha256(path: str) -> str:
    """Returns the SHA-256 checksum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_file(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _described(mode: int) -> str:
    """Returns what has these bits of `st_mode`."""
    if stat.S_ISREG(mode):
        return _FILE
    return _DIRECTORY if stat.S_ISDIR(mode) else "a symbolic link" if stat.S_ISLNK(mode) else "a pipe or a device"


@contextlib.contextmanager
def _explained(path: str, wanted: str = _FILE, *, missing: _Errors = ()) -> Iterator[None]:
    """For a block that uses a path: what is missing, and what is in its place, is told by the same errors everywhere.

    Args:
      path: local or a URL.
      wanted: what has to be there.
      missing: errors which say that nothing is there, and are raised as they are.

    Raises:
      FileNotFoundError: it does not exist.
      PathKindError: there is something else than `wanted`, or a parent of it is no directory.
    """
    try:
        yield
    except missing:
        raise
    except Exception as error:
        if is_url(path) and isinstance(error, tf.errors.NotFoundError):
            raise FileNotFoundError(f"no such file: {path}") from error
        if isinstance(error, OSError) and (problem := _kind_error(path, error, wanted)) is not None:
            raise problem from error
        raise


def _kind_error(path: str, error: OSError, wanted: str) -> PathKindError | None:
    """Returns what to raise if an error comes from what is at `path`, or at a parent of it; else None."""
    if error.errno not in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO, errno.ENOENT):
        return None
    present = path
    while present and not os.path.lexists(present):
        present = os.path.dirname(present)
    there, expected = _described(os.lstat(present or ".").st_mode), wanted if present == path else _DIRECTORY
    return None if there == expected else _wrong_kind(present, there, expected)


def _wrong_kind(path: str, there: str, expected: str) -> PathKindError:
    return PathKindError(f"{path} is {there}, not {expected}. Move it away, or name another directory.")
