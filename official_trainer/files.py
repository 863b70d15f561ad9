"""Files on local paths and on URLs (`gs://…`), with the same few calls.

Owns: reading, atomic writing, listing, checksums and removal, so that no other module depends on where a path points;
and which errors are faults of the storage.
Does not own: what the files mean. Local paths use `os` and never import TensorFlow; URLs go through `tf.io.gfile`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from typing import IO, Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf

RUN_FILE = "run.json"
"""In a run directory: what the run is, and how it ended."""
STATUS_FILE = "status.json"
"""In a run directory: what its process is doing now."""

_CHUNK_BYTES = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAULTS = (*_FULL, errno.EIO, errno.ESTALE, errno.EROFS)


class StorageError(UserError, OSError):
    """The storage is full or fails. Nothing is wrong with the run, so the same command may be started again."""

    exit_code = ExitCode.RETRY


def as_storage_error(error: BaseException, place: str = "") -> StorageError | None:
    """Returns an error for the user if `error` is a fault of the storage, else None.

    Args:
      error: of Python, or of TensorFlow, which is recognized by its text.
      place: what was read or written, for errors that do not name it.
    """
    if isinstance(error, UserError):
        return error if isinstance(error, StorageError) else None
    reason = reason_of(error)
    if reason not in map(os.strerror, _FAULTS):
        return None
    place = str(getattr(error, "filename", None) or place)
    return StorageError(f"{place}: {reason}. {storage_fix(reason)}" if place else f"{reason}. {storage_fix(reason)}")


def reason_of(error: BaseException) -> str:
    """Returns what went wrong, without the place: the system's own message, where there is no other."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(getattr(error, "message", error))  # of TensorFlow: "{{…}} PATH; No space left on device [Op:SaveV2]"
    known = (os.strerror(code) for code in errno.errorcode)
    return next((reason for reason in known if f"; {reason}" in text), text)


def storage_fix(reason: str) -> str:
    """Returns what to do when storage fails for `reason`."""
    is_full = reason in map(os.strerror, _FULL)
    first = "Free some space there" if is_full else "Make the directory writable again"
    return f"{first}; then the same command, started again, continues from the newest checkpoint."


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether `path` names a remote or virtual file system, such as `gs://bucket/run`."""
    return "://" in os.fspath(path)


def join(path: str | os.PathLike[str], *names: str) -> str:
    """Returns `names` below `path`; URLs keep forward slashes on every system."""
    return (posixpath if is_url(path) else os.path).join(os.fspath(path), *names)


def base_name(path: str) -> str:
    """Returns the last name of a path."""
    path = path if is_url(path) else os.path.abspath(path)
    return (posixpath if is_url(path) else os.path).basename(path.rstrip("/"))


def open_file(path: str, mode: str) -> IO[Any]:
    """Opens a file; text is UTF-8."""
    if is_url(path):
        return tf.io.gfile.GFile(path, mode)
    return open(path, mode, encoding=None if "b" in mode else "utf-8")


def read_bytes(path: str) -> bytes:
    """Returns the whole file.

    Raises:
      FileNotFoundError: the file does not exist, wherever it lives.
    """
    try:
        with open_file(path, "rb") as file:
            return file.read()
    except Exception as error:
        if is_url(path) and isinstance(error, tf.errors.NotFoundError):
            raise FileNotFoundError(f"no such file: {path}") from error
        raise


def read_text(path: str) -> str:
    """Returns the whole file as text; fails as `read_bytes` does."""
    return read_bytes(path).decode("utf-8")


def write_bytes_atomically(path: str, content: bytes, *, durable: bool = True) -> None:
    """Writes a file so that readers, also after a kill, see the old content or the new, never a part of it.

    Args:
      path: the file.
      content: what it will hold.
      durable: whether to wait until it is on the disk, so that it survives a power failure. That can take long: use
        False for files that are written often and hold nothing that cannot be found out again.
    """
    with written_atomically(path, durable=durable) as temporary, open_file(temporary, "wb") as file:
        file.write(content)


@contextlib.contextmanager
def written_atomically(path: str, *, durable: bool = True) -> Iterator[str]:
    """Yields a temporary path in the same directory; when the block ends without an error, it is renamed to `path`.

    For files that a library writes, or that are too large for memory; all else is as in `write_bytes_atomically`.
    """
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        yield temporary
        if durable:
            sync(temporary)
        if is_url(path):
            tf.io.gfile.rename(temporary, path, overwrite=True)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = path  # errors of write and fsync do not name the file
        remove(temporary)
        raise
    if durable:
        sync(os.path.dirname(path) or ".")


def write_text_atomically(path: str, text: str, *, durable: bool = True) -> None:
    """Writes a text file as `write_bytes_atomically` does."""
    write_bytes_atomically(path, text.encode("utf-8"), durable=durable)


def remove_temporaries(directory: str, *names: str) -> None:
    """Removes temporary files of dead processes that were writing `names`; only one living process may write these."""
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, names))})\.tmp-(?P<pid>\d+)")
    for found in list_dir(directory):
        if (match := pattern.fullmatch(found)) and int(match["pid"]) != os.getpid():
            remove(join(directory, found))


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
    """Whether a file or directory exists."""
    return tf.io.gfile.exists(path) if is_url(path) else os.path.exists(path)


def is_dir(path: str) -> bool:
    """Whether `path` is a directory."""
    return tf.io.gfile.isdir(path) if is_url(path) else os.path.isdir(path)


def list_dir(path: str) -> list[str]:
    """Returns the names in a directory, sorted; none if there is no such directory."""
    try:
        names = tf.io.gfile.listdir(path) if is_url(path) else os.listdir(path)
    except FileNotFoundError:
        return []
    except Exception as error:
        if is_url(path) and isinstance(error, tf.errors.NotFoundError):
            return []
        raise
    return sorted({name.rstrip("/") for name in names})


def make_dirs(path: str) -> None:
    """Creates a directory and its parents; one that is there already is fine."""
    if is_url(path):
        tf.io.gfile.makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file, or a directory with all it holds; what is gone already is fine."""
    if not exists(path):
        return
    if is_dir(path):
        tf.io.gfile.rmtree(path) if is_url(path) else shutil.rmtree(path)
    else:
        tf.io.gfile.remove(path) if is_url(path) else os.remove(path)


def rename(source: str, target: str) -> None:
    """Moves a file or directory, within one file system."""
    tf.io.gfile.rename(source, target) if is_url(source) else os.rename(source, target)


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
