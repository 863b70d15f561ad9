"""The lock on a directory: one process holds it, and the error of every other process names the holder.

Owns: taking the lock, renewing it, taking over from a dead holder, noticing that it is lost; folders that processes
make beside each other in one directory, each for itself.
Does not own: which directory may be a run's (`tracking/record.py`), or what becomes of a run whose lock is lost.

Two files, both hidden, so that a directory with nothing else in it still counts as empty. The kernel's `flock` on
`.lock` ends with its holder, so on one machine it is always right. `.lock.json` names the holder, who writes it again
and again. Where `flock` does not tell (a URL, another machine: not all mounts share locks) that file is a lease: a new
process watches it, and while it changes, its holder lives. Only the new process's own clock is read; those of two
machines are never compared.

Such places have no compare-and-swap, so two new processes may both write. The last one holds the lock; the other one
notices it at once or at its next renewal.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import functools
import json
import logging
import os
import re
import secrets
import shlex
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.shown import without_secrets
from official_trainer.threads import RepeatingThread

_logger = logging.getLogger(__name__)

RENEW_SECONDS = 5.0
"""How often a holder renews its lock."""

LEASE_SECONDS = 20.0
"""How long a lease lasts after its last renewal; then another process takes it over."""

_POLL_SECONDS = 1.0
_HANDOVER_SECONDS = 1.0  # in which a holder may write its name, or end
_NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_VALUE_CHARACTERS = 200
_SHOWN_OTHERWISE = ("pid", "host", "since", "machine", "owner", "renewals")


def command_text(argv: Sequence[str]) -> str:
    """Returns a command as a shell takes it, with the passwords of URLs hidden: it is shown, and kept in files."""
    return shlex.join(map(without_secrets, argv))


class LockedError(UserError, RuntimeError):
    """A directory that another process holds; starting again helps once that one has ended."""

    exit_code = ExitCode.RETRY


class MovedError(LockedError):
    """The directory was moved or removed: starting again with the same flag would begin another one at step 0."""

    exit_code = ExitCode.CONFIG


def lock_names(name: str = "lock") -> tuple[str, str]:
    """Returns the names of a lock's files: the one that its holder renews, and that of the kernel's lock."""
    return f".{name}.json", f".{name}"


def lock_path(directory: str | os.PathLike[str]) -> str:
    """Returns the file that the holder of a directory's lock renews."""
    return files.join(directory, lock_names()[0])


class DirectoryLock:
    """Keeps other processes, on this machine and on others, from using a directory; use it in a `with` block.

    Size: what was seen of another holder is kept from one `try_acquire` to the next.

    Args:
      directory: local path or URL that exists and can be written.
      name: of the lock; locks of different names do not affect each other.
      description: what else the message for a refused process shows about this one; `command` replaces the command
        line.
      flag: by which the directory was named.
      clock: returns the time in seconds from any origin.
      sleep: waits; what it raises ends the wait, and nothing is held then.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        name: str = "lock",
        description: Mapping[str, str] | None = None,
        flag: str = "--model_dir",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory, self._flag = os.fspath(directory), flag
        self._clock, self._sleep = clock, sleep
        self._path, self._flock_path = (files.join(directory, file_name) for file_name in lock_names(name))
        self._description = dict(description or {})
        self._mutex = threading.Lock()  # between the renewing thread and `release`
        self._renewing: RepeatingThread | None = None
        self._values: dict[str, Any] | None = None  # what the file holds while this object holds the lock
        self._flock: int | None = None  # the descriptor of the kernel's lock; None for a lease
        self._identity: tuple[int, int] | None = None  # of the local directory
        self._taken_over: LockedError | None = None
        self._has_warned = False  # of a renewal that failed
        self._seen: dict[str, Any] | None = None  # of another holder
        self._seen_seconds = 0.0

    @property
    def loss(self) -> LockedError | None:
        """Why this process may not write to the directory any more; None if it holds the lock."""
        if self._taken_over is not None or self._is_in_place():
            return self._taken_over
        path = self._present_path()
        there = f"now at {path}" if path else "removed, or now elsewhere"
        return MovedError(
            f"{self._flag}={self._directory} was moved while this process wrote to it, or this process has left its "
            f"folder, such as by os.chdir in your code: the directory is {there}. What was saved is there. Start it "
            f"again with {self._flag}={path or 'its new place'}, and remove what may be at the old place by now."
        )

    def check_held(self) -> None:
        """Raises `loss`, if there is one."""
        if (loss := self.loss) is not None:
            raise loss

    def acquire(self) -> None:
        """Takes the lock: a free one, that of a dead process, or a lease that was not renewed while this watched it.

        Raises:
          LockedError: another process holds it. Nothing was written.
          OSError: the directory is not there or cannot be written.
        """
        began = self._clock()
        while not self._take_flock():
            if self._clock() - began >= _HANDOVER_SECONDS:
                raise self._refusal()
            self._sleep(_HANDOVER_SECONDS / 10)
        first = None
        try:  # what ends the wait leaves nothing held
            while not self._is_free():
                if first is None:
                    first, how_long = self._seen, f"waiting {LEASE_SECONDS:g} seconds to see whether it still is"
                    _logger.warning("%s was in use by %s: %s", self._directory, _describe(first), how_long)
                elif self._seen != first:
                    raise self._refusal()
                self._sleep(_POLL_SECONDS)
            self._begin()
        except BaseException:
            self._drop()
            raise

    def try_acquire(self) -> bool:
        """Takes the lock if that needs no wait; returns whether it did.

        A lease that has ended is taken by the call that finds it as a call `LEASE_SECONDS` ago, on the same object, has
        found it.

        Raises:
          OSError: the directory is not there or cannot be written.
        """
        if not self._take_flock():
            return False
        with contextlib.suppress(LockedError):
            if self._is_free():
                self._begin()
        if not self._is_holder():
            self._drop()
        return self._is_holder()

    def renew(self) -> None:
        """Writes the holder's file again, and checks that this object still holds the lock; a thread does it.

        Where that fails, the lock is still held, unless a later call finds it lost.
        """
        with self._mutex:
            if not self._is_holder() or self.loss is not None:
                return
            try:
                # What is missing or garbled is written again; without `flock`, another holder may have come and gone.
                holder = _read(self._path)
                if self._is_written(holder) or (self._flock is not None and not holder):
                    self._write()
                    return
                self._taken_over = LockedError(
                    f"{self._flag}={self._directory} was taken over by {_describe(holder)}, because this process did "
                    f"not renew its lock for {LEASE_SECONDS:g} seconds, or because both started at the same time. "
                    f"Start it again after the other process has ended, or name another {self._flag}."
                )
            except Exception as error:  # of any file system
                if not self._has_warned:
                    _logger.warning("%s could not be renewed: %s", self._path, error)
                self._has_warned = True

    def release(self) -> None:
        """Gives the lock back; what is not held, or belongs to the process this one was forked from, stays as it is."""
        if not self._is_holder():
            return
        if self._renewing is not None:
            self._renewing.stop()
        with self._mutex:
            try:
                if self._is_in_place() and self._is_written(_read(self._path)):
                    files.remove(self._path)
            except Exception as error:  # an error here would hide the one that ended the run
                _logger.warning("%s could not be removed: %s", self._path, error)
            self._values = self._identity = None
            self._drop()

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loss = self.loss if isinstance(error, Exception) and not isinstance(error, LockedError) else None
        self.release()
        if loss is not None:
            raise loss from error  # which explains the error of a file that is not there

    def _begin(self) -> None:
        """Says who holds the lock, and renews it from now on.

        Raises:
          LockedError: another process took it at the same time.
        """
        self._taken_over, self._has_warned = None, False
        self._values = {
            "command": command_text(sys.orig_argv),
            **self._description,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": _machine(),
            "owner": secrets.token_hex(16),
            "renewals": -1,
        }
        try:
            if self._flock is not None:  # else a temporary file may be that of another process that writes now
                files.remove_temporaries(self._directory, os.path.basename(self._path))
            self._write()
            if not self._is_written(_read(self._path)):
                raise self._refusal()
            self._renewing = RepeatingThread("directory-lock", self.renew, RENEW_SECONDS)
            self._renewing.start()
        except BaseException:
            self.release()
            raise

    def _take_flock(self) -> bool:
        """Takes the kernel's lock, where there are such locks; returns False if another process has it."""
        assert not self._is_holder(), "acquired twice"
        while not files.is_url(self._directory):
            with files.open_file(self._flock_path, "ab") as file:
                self._flock = os.dup(file.fileno())
            try:
                fcntl.flock(self._flock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._drop()
                if error.errno in _NO_FLOCK:
                    break
                if isinstance(error, BlockingIOError):
                    return False
                raise
            _held_descriptors().add(self._flock)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._flock), os.stat(self._flock_path)):
                    break
            self._drop()  # the holder before has removed the file
        self._identity = None if files.is_url(self._directory) else _identity(self._directory)
        return True

    def _is_in_place(self) -> bool:
        """Whether the directory at the path is the one whose lock was taken."""
        try:
            return self._identity is None or self._identity == _identity(self._directory)
        except FileNotFoundError:
            return False
        except OSError:  # the storage fails, so it is unknown
            return True

    def _present_path(self) -> str:
        """Returns where the directory is now, if the system tells."""
        with contextlib.suppress(OSError):
            path = os.path.dirname(os.readlink(f"/proc/self/fd/{self._flock}"))
            return path if os.path.isdir(path) else ""
        return ""

    def _drop(self) -> None:
        """Gives the kernel's lock back."""
        if self._flock is None:
            return
        descriptor, self._flock = self._flock, None
        _held_descriptors().discard(descriptor)
        os.close(descriptor)

    def _is_holder(self) -> bool:
        return self._values is not None and self._values["pid"] == os.getpid()  # not in a fork of the holder

    def _is_free(self) -> bool:
        """Whether there is no lease of another process, or it was not renewed while this object watched it."""
        # The clock before the look: this process may be stopped between the two.
        now, holder = self._clock(), _holder(self._path)
        if holder is None or (self._flock is not None and holder.get("machine") == _machine()):
            return True
        if holder != self._seen:
            self._seen, self._seen_seconds = holder, self._clock()
        return now - self._seen_seconds >= LEASE_SECONDS

    def _is_written(self, holder: Mapping[str, Any] | None) -> bool:
        return self._values is not None and (holder or {}).get("owner") == self._values["owner"]

    def _write(self) -> None:
        assert self._values is not None
        self._values["renewals"] += 1
        files.write_text_atomically(self._path, json.dumps(self._values, indent=2) + "\n", durable=False)

    def _refusal(self) -> LockedError:
        holder = _holder(self._path) or {}
        stop = f", stop it with `kill {holder['pid']}`" if "pid" in holder else ""
        if stop and holder.get("host") != socket.gethostname():
            stop += f" on {holder.get('host')}"
        return LockedError(
            f"{self._flag}={self._directory} is in use by {_describe(holder)}. Wait until it has ended{stop}, or name "
            f"another {self._flag}."
        )


@contextlib.contextmanager
def own_folder(directory: str, prefix: str) -> Iterator[str]:
    """Yields a new folder in a directory that processes share, of this process alone, and removes it at the end.

    Its name is `prefix` and random digits. This process holds the lock of the folder, so that `remove_abandoned` knows
    whether it lives.
    """
    with contextlib.ExitStack() as stack:
        is_held = False
        while not is_held:
            folder = files.join(directory, f"{prefix}{secrets.token_hex(4)}")
            files.make_dirs(folder)
            stack.callback(files.remove, folder)
            lock = DirectoryLock(folder)
            # Before it is locked, another process may take it for an abandoned one.
            with contextlib.suppress(LockedError, FileNotFoundError):
                lock.acquire()
                stack.callback(lock.release)
                is_held = True
        yield folder


def remove_abandoned(directory: str, pattern: str) -> None:
    """Removes the folders of `own_folder` whose processes were killed; that of one that lives stays.

    Args:
      directory: in which they are; where there is a lease, this waits until it is renewed, or has ended.
      pattern: of their whole names.
    """
    for name in files.list_dir(directory):
        folder = files.join(directory, name)
        if re.fullmatch(pattern, name) and files.is_dir(folder) and not os.path.islink(folder):
            # Another process removes it too, or only its own user can.
            with contextlib.suppress(Exception), DirectoryLock(folder):
                files.remove(folder)


def _read(path: str) -> dict[str, Any] | None:
    """Returns what a lock file says of its holder: None if there is no file, nothing if that is garbled."""
    try:
        values = files.parse_json(files.read_bytes(path))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return values if isinstance(values, dict) and isinstance(values.get("owner"), str) else {}


def _holder(path: str) -> dict[str, Any] | None:
    """As `_read` of the file of another process: what cannot be read is not free either."""
    try:
        return _read(path)
    except Exception:  # TensorFlow's errors of URLs are no OSErrors
        return {}


def _describe(holder: Mapping[str, Any] | None) -> str:
    """Returns in one line which process wrote a lock file."""
    if not holder:
        return "a process that left no readable name"
    shown = {key: value for key, value in holder.items() if key not in _SHOWN_OTHERWISE}
    texts = [f"pid {holder.get('pid', '?')} on {holder.get('host', '?')}", f"since {holder.get('since', '?')}"]
    texts += [f"{key}: {value}" for key, value in shown.items()]
    return ", ".join(textwrap.shorten(text, _VALUE_CHARACTERS, placeholder=" …") for text in texts)


def _identity(directory: str) -> tuple[int, int]:
    """Returns what a local directory keeps when it is moved."""
    status = os.stat(directory)
    return status.st_dev, status.st_ino


def _machine() -> str:
    """Returns an identity of the running kernel, within which `flock` is right: two machines may share a host name."""
    try:
        return files.read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return socket.gethostname()


@functools.cache
def _held_descriptors() -> set[int]:
    """Returns the descriptors that a forked child closes: one that outlives the holder does not keep its lock."""
    descriptors: set[int] = set()

    def close() -> None:
        while descriptors:
            os.close(descriptors.pop())

    os.register_at_fork(after_in_child=close)
    return descriptors
