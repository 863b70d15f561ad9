"""A disk that fails, or a process that dies, at the n-th operation on files.

Stands between the engine and the disk: the calls of `official_trainer.files`, and TensorFlow's writer of checkpoints,
whose files appear one after the other, each of them half-written first.
"""

import errno
import os
import shutil
import threading
import types
from pathlib import Path

import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.store import Snapshot

_TENSORFLOW_ERRORS = {
    errno.ENOSPC: tf.errors.ResourceExhaustedError,
    errno.EIO: tf.errors.UnknownError,
    errno.EACCES: tf.errors.PermissionDeniedError,
}


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it, and the process does nothing to files any more."""


class FaultyFiles:
    """Counts operations on files and lets one of them go wrong.

    Attributes:
      operations: what was done since `arm`, as text. Each `arm` begins another process.
      on_operation: called before each.
    """

    def __init__(self, monkeypatch, scratch):
        self.operations = []
        self.on_operation = None
        self.pid = 1
        self._at = self._fault = None
        self._lasts = self._is_inside = False
        self._lock = threading.RLock()
        self._scratch = Path(scratch)
        self._write_snapshot = Snapshot.write
        self._open = files.open_file
        monkeypatch.setattr(
            files, "sync", self._counted("sync", lambda path: None)
        )  # nothing here outlives a power cut
        for name in ("make_dirs", "remove", "rename", "list_dir", "size_bytes"):
            monkeypatch.setattr(files, name, self._counted(name, getattr(files, name)))
        monkeypatch.setattr(files, "open_file", self._open_file)
        replaced = {"replace": self._counted("replace", os.replace), "getpid": lambda: self.pid}
        monkeypatch.setattr(files, "os", types.SimpleNamespace(**{**vars(os), **replaced}))
        monkeypatch.setattr(Snapshot, "write", lambda *args: self._write(*args))

    def arm(self, at=None, fault=None, *, lasts=False):
        """Lets operation number `at` go wrong, and all after it if it `lasts`.

        Args:
          at: counted from 0; None for never.
          fault: number of a system error, or `Killed`, which always lasts.
          lasts: whether it fails from then on.
        """
        self.operations = []
        self.pid += 1  # names of temporary files differ between processes
        self._at, self._fault = at, fault
        self._lasts = lasts or fault is Killed

    @property
    def has_struck(self):
        return self._at is not None and len(self.operations) > self._at

    def _strikes(self, name, path):
        """Counts an operation; tells whether it goes wrong."""
        with self._lock:
            if self._is_inside:
                return False
            if self.on_operation is not None:
                self._is_inside = True
                try:
                    self.on_operation()
                finally:
                    self._is_inside = False
            number = len(self.operations)
            self.operations.append(f"{name} {os.path.basename(path)}")
            return self._at is not None and (number == self._at or (self._lasts and number > self._at))

    def _error(self, path):
        if self._fault is Killed:
            return Killed()
        return OSError(self._fault, os.strerror(self._fault), str(path))

    def _counted(self, name, call):
        def counted(path, *args, **kwargs):
            if self._strikes(name, path):
                raise self._error(path)
            return call(path, *args, **kwargs)

        return counted

    def _open_file(self, path, mode):
        if self._strikes(f"open {mode}", path):
            raise self._error(path)
        file = self._open(path, mode)
        return _HalfWriter(file, self, path) if "r" not in mode else file

    def write_half(self, file, content, path):
        """Writes `content` to an open file, or half of it if that goes wrong."""
        if self._strikes("write", path):
            file.write(content[: len(content) // 2])
            file.flush()
            raise self._error(path)
        return file.write(content)

    def _write(self, snapshot, file_prefix):
        """What writing a snapshot does, in steps that can fail."""
        prefix = Path(file_prefix)
        made = self._scratch / prefix.name
        self._is_inside = True
        try:
            self._write_snapshot(snapshot, str(made))
        finally:
            self._is_inside = False
        try:
            self._write_as_tensorflow(prefix)
        finally:
            shutil.rmtree(self._scratch)
            self._scratch.mkdir()

    def _made(self, prefix):
        return sorted(self._scratch.glob(f"{prefix.name}.*"))  # data, then index

    def _write_as_tensorflow(self, prefix):
        temporary = prefix.with_name(f"{prefix.name}_temp")
        try:
            self._step("mkdir", temporary, lambda path: path.mkdir())
            for source in self._made(prefix):
                part = temporary / f"part-{source.name}"
                with part.open("wb") as file:
                    self.write_half(file, source.read_bytes(), part)
                self._step("publish", prefix.with_name(source.name), part.rename)
            self._step("rmdir", temporary, lambda path: path.rmdir())
        except OSError as error:
            message = f"{{{{node SaveV2}}}} {error.filename}; {error.strerror} [Op:SaveV2]"
            raise _TENSORFLOW_ERRORS[error.errno](None, None, message) from error

    def _step(self, name, path, do):
        if self._strikes(name, path):
            raise self._error(path)
        do(path)


class _HalfWriter:
    def __init__(self, file, faults, path):
        self._file, self._faults, self._path = file, faults, path

    def write(self, content):
        return self._faults.write_half(self._file, content, self._path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)
