"""The lock on a directory: one process holds it, and the error of every other process names the holder.

Owns: taking the lock, renewing it, taking over from a dead holder, noticing that it was taken over, or that another
directory is there now because the locked one was moved; folders that processes make beside each other in one directory,
each for itself.
Does not own: which directory may be a run's (`tracking/record.py`), or what becomes of a run whose lock is lost.

Two files, both hidden, so that a directory with nothing else in it still counts as empty. `.lock` is empty and stays:
the kernel's `flock` on it ends with its holder, so on one machine it is always right. `.lock.json` names the holder
and is replaced at each renewal. Where `flock` does not work (another machine, a URL) a new process watches that file:
while it changes, its holder lives. Only the new process's own clock is read; clocks of two machines are never compared.

Such places have no compare-and-swap, so two new processes may both write. The last one holds the lock; the other one
notices it at once or at its next renewal (`lost_to`).
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
import uuid
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
"""How long a lock that `flock` does not guard lasts after its last renewal; then another process takes it over."""

_POLL_SECONDS = 1.0
_HANDOVER_SECONDS = 0.1
_HANDOVER_ATTEMPTS = 10
_NO_FLOCK = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_VALUE_CHARACTERS = 200


def command_text(argv: Sequence[str]) -> str:
    """Returns a command as a shell takes it, with the passwords of URLs hidden: it is shown, and kept in files."""
    return shlex.join(map(without_secrets, argv))


class LockedError(UserError, RuntimeError):
    """A directory that another process holds; starting again helps once that one has ended."""

    exit_code = ExitCode.RETRY


class MovedError(LockedError):
    """The directory was moved or removed: starting again with the same flag would begin another one at step 0."""

    exit_code = ExitCode.CONFIG


def lock_path(directory: str | os.PathLike[str], name: str = "lock") -> str:
    """Returns the file that the holder of a directory's lock renews."""
    return files.join(directory, file_names(name)[1])


def file_names(name: str = "lock") -> tuple[str, str]:
    """Returns the names of a lock's files: that of the kernel's lock, and the one that its holder renews."""
    return f".{name}", f".{name}.json"


class DirectoryLock:
    """Keeps other processes, on this machine and on others, from using a directory; use it in a `with` block.

    Args:
      directory: local path or URL that exists and can be written.
      name: of the lock; locks of different names do not affect each other.
      description: what else the message for a refused process shows about this one; `command` replaces the command
        line.
      flag: by which the directory was named.
      clock: returns the time in seconds from any origin.
      sleep: waits; what it raises ends the wait, and nothing is held then.

    Size: what was seen of another holder is kept from one `try_acquire` to the next.
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
        self._directory = os.fspath(directory)
        self._flag = flag
        self._clock, self._sleep = clock, sleep
        self._path = lock_path(directory, name)
        self._description = dict(description or {})
        self._flock = _Flock(files.join(directory, file_names(name)[0]))
        self._mutex = threading.Lock()  # between the renewing thread and `release`
        self._renewing: RepeatingThread | None = None
        self._values: dict[str, Any] | None = None  # what the file holds while this object holds the lock
        self._renewed_seconds = 0.0
        self._lost_to: str | None = None
        self._has_warned = False  # of a renewal that failed
        self._seen, self._seen_seconds = b"", 0.0  # of another holder, in `try_acquire`

    @property
    def lost_to(self) -> str | None:
        """Message that says why this process may not write to the directory any more; None if it holds the lock.

        Another process has taken the lock over, or the directory was moved or removed.
        """
        return None if (loss := self._loss()) is None else str(loss)

    def check_held(self) -> None:
        """Returns if this object holds the lock.

        Raises:
          LockedError: it has lost it, see `lost_to`; a MovedError if the directory was moved.
        """
        if (loss := self._loss()) is not None:
            raise loss

    def acquire(self) -> None:
        """Takes the lock, at once if it is free or its holder died on this machine.

        Raises:
          LockedError: another process holds it. Nothing was written.
          OSError: the directory is not there or cannot be written.
        """
        is_waiting, handovers = False, 0
        while True:
            before = self._seen
            try:
                if self._take():
                    return
            except BlockingIOError:
                text, handovers = _look(self._path), handovers + 1
                if (text is not None and not _is_dead(text)) or handovers == _HANDOVER_ATTEMPTS:
                    raise self._refusal(text) from None
                # Its holder is about to write its name, or about to end; one that was killed while it started a
                # program has left the lock to that one, until this begins.
                self._sleep(_HANDOVER_SECONDS)
                continue
            if is_waiting and self._seen != before:
                raise self._refusal(self._seen)
            if not is_waiting:
                is_waiting, how_long = True, f"waiting {LEASE_SECONDS:g} seconds to see whether it still is"
                _logger.warning("%s was in use by %s: %s", self._directory, _describe(self._seen), how_long)
            self._sleep(_POLL_SECONDS)

    def try_acquire(self) -> bool:
        """Takes the lock if that needs no wait; returns whether it did.

        That a holder on another machine is gone shows in time: the lock is taken by the call that finds it as a call
        `LEASE_SECONDS` ago, on the same object, has found it.

        Raises:
          OSError: the directory is not there or cannot be written.
        """
        try:
            return self._take()
        except (BlockingIOError, LockedError):  # another process has it, or took it at the same time
            return False

    def _take(self) -> bool:
        """Takes the lock, and renews it from then on; returns False if that needs a wait for the end of a lease.

        Raises:
          BlockingIOError: a process of this machine holds it.
          LockedError: another process took it at the same time.
        """
        assert not self._is_holder(), "acquired twice"
        if not files.is_url(self._directory):
            self._flock.take()
        now = self._clock()  # before the look: this process may be stopped between the two
        seen = _look(self._path)
        is_ours = self._flock.is_held and _parse(seen).get("machine") == _machine()
        if seen is not None and not is_ours:
            if seen != self._seen:
                self._seen, self._seen_seconds = seen, self._clock()
            if now - self._seen_seconds < LEASE_SECONDS:
                self._flock.drop()
                return False
        self._lost_to, self._has_warned = None, False
        self._values = {
            "command": command_text(sys.orig_argv),
            **self._description,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": _machine(),
            "owner": uuid.uuid4().hex,
            "renewals": -1,
        }
        try:
            if self._flock.is_held:  # else a temporary file may be that of another process that writes now
                files.remove_temporaries(self._directory, os.path.basename(self._path))
            self._write()
            if _owner(text := _look(self._path)) not in (None, self._values["owner"]):
                raise self._refusal(text)
            self._renewing = RepeatingThread("directory-lock", self._renew_or_warn, RENEW_SECONDS)
            self._renewing.start()
        except BaseException:
            self.release()
            raise
        return True

    def renew(self) -> None:
        """Renews the lease, and checks that this object still holds it; a thread does it while it is held.

        Raises:
          OSError: it could not be read or written. The lock is still held, unless a later call finds it lost.
        """
        if not self._is_holder():
            return
        with self._mutex:
            if self._values is None or self.lost_to is not None:
                return
            text = _read_if_there(self._path)
            owner = _owner(text)
            was_silent = self._clock() - self._renewed_seconds > LEASE_SECONDS
            # Another holder may have come and gone while this process was stopped: silence without the file is a loss.
            if owner != self._values["owner"] and (owner is not None or was_silent):
                self._lost_to = (
                    f"{self._flag}={self._directory} was taken over by {_describe(text)}, because this process did not "
                    f"renew its lock for {LEASE_SECONDS:g} seconds, or because both started at the same time. Start "
                    f"it again after the other process has ended, or name another {self._flag}."
                )
                return
            self._write()

    def release(self, *, leaves_file: bool = True) -> None:
        """Gives the lock back; what is not held, or belongs to the process this one was forked from, stays as it is.

        Args:
          leaves_file: whether the file of the kernel's lock stays, as it does for the next holder.
        """
        if not self._is_holder():
            return
        if self._renewing is not None:
            self._renewing.stop()
        with self._mutex:
            assert self._values is not None
            owner, self._values = self._values["owner"], None
            try:
                if not self._flock.was_moved() and _owner(_read_if_there(self._path)) == owner:
                    files.remove(self._path)
            except Exception as error:  # of any file system; an error here would hide the one that ended the run
                _logger.warning("%s could not be removed: %s", self._path, error)
            finally:
                self._flock.drop(removes_file=not leaves_file)

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loss = self._loss() if isinstance(error, Exception) else None
        self.release()
        if loss is not None and not isinstance(error, LockedError):
            raise loss from error  # which explains the error of a file that is not there

    def _is_holder(self) -> bool:
        return self._values is not None and self._values["pid"] == os.getpid()  # not in a fork of the holder

    def _loss(self) -> LockedError | None:
        """Returns why this object does not hold the lock any more."""
        if self._lost_to is not None:
            return LockedError(self._lost_to)
        if not self._flock.was_moved():
            return None
        place = self._flock.directory()
        there = f"now at {place}" if place else "removed, or now elsewhere"
        return MovedError(
            f"{self._flag}={self._directory} was moved while this process wrote to it, or this process has left its "
            f"folder, such as by os.chdir in your code: the directory is {there}. What was saved is there. Start it "
            f"again with {self._flag}={place or 'its new place'}, and remove what may be at the old place by now."
        )

    def _write(self) -> None:
        assert self._values is not None
        self._values["renewals"] += 1
        files.write_text_atomically(self._path, json.dumps(self._values, indent=2) + "\n", durable=False)
        self._renewed_seconds = self._clock()

    def _renew_or_warn(self) -> None:
        try:
            self.renew()
        except Exception as error:  # the next renewal may succeed; if not, the lease ends
            if not self._has_warned:
                _logger.warning("%s could not be renewed: %s", self._path, error)
            self._has_warned = True

    def _refusal(self, text: bytes | None) -> LockedError:
        holder = _parse(text)
        stop = f", stop it with `kill {holder['pid']}`" if "pid" in holder else ""
        if stop and holder.get("host") != socket.gethostname():
            stop += f" on {holder.get('host')}"
        return LockedError(
            f"{self._flag}={self._directory} is in use by {_describe(text)}. Wait until it has ended{stop}, or name "
            f"another {self._flag}."
        )


@contextlib.contextmanager
def own_folder(directory: str, prefix: str) -> Iterator[str]:
    """Yields a new folder in a directory that processes share, of this process alone, and removes it at the end.

    Its name is `prefix` and random digits. This process holds the lock of the folder, so that `remove_abandoned` knows
    whether it lives.
    """
    for attempts_left in reversed(range(_HANDOVER_ATTEMPTS)):
        folder = files.join(directory, f"{prefix}{secrets.token_hex(4)}")
        files.make_dirs(folder)
        lock = DirectoryLock(folder)
        try:
            lock.acquire()
            break
        except (LockedError, FileNotFoundError):  # before it was locked, another process took it for an abandoned one
            if not attempts_left:
                raise
        except BaseException:  # such as that of a full disk
            files.remove(folder)
            raise
    try:
        yield folder
    finally:
        try:
            files.remove(folder)
        finally:
            lock.release()
        files.remove(folder)  # on a URL, the lock may have been renewed meanwhile


def remove_abandoned(directory: str, pattern: str, lock_of: Callable[[str], DirectoryLock] = DirectoryLock) -> None:
    """Removes the folders of `own_folder` whose processes were killed; that of one that lives stays.

    Where the kernel's lock does not tell (another machine, this one before a restart, a URL), it waits until the owner
    shows that it lives, for `LEASE_SECONDS` at most.

    Args:
      directory: in which they are.
      pattern: of their whole names; it has to fit those of early versions, which had no lock.
      lock_of: returns the lock of a folder.
    """
    for name in files.list_dir(directory):
        folder = files.join(directory, name)
        if re.fullmatch(pattern, name) and files.is_dir(folder) and not os.path.islink(folder):
            with contextlib.suppress(Exception):  # another process removes it, too, or only its own user can
                with lock_of(folder):
                    files.remove(folder)
                files.remove(folder)  # as above


class _Flock:
    """The kernel's lock on a file, which ends with its holder; it knows the directory of the file again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None  # of the directory

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def take(self) -> None:
        """Takes the lock; does nothing where the file system has no such lock.

        Raises:
          BlockingIOError: another process holds it.
        """
        with files.open_file(self._path, "ab") as file:
            descriptor = os.dup(file.fileno())
        self._identity = _identity(os.path.dirname(self._path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in _NO_FLOCK:
                return
            raise
        try:
            is_there = os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            is_there = False
        if not is_there:  # the holder before has removed it: another one may be held by now
            os.close(descriptor)
            raise BlockingIOError(errno.EWOULDBLOCK, "was removed", self._path)
        self._descriptor = descriptor
        _held_descriptors().add(descriptor)

    def was_moved(self) -> bool:
        """Whether the directory of the file is not the one in which it was opened."""
        try:
            return self._identity not in (None, _identity(os.path.dirname(self._path)))
        except OSError:  # the storage fails, so it is unknown
            return False

    def directory(self) -> str | None:
        """Returns where the directory of the file is now, where the system tells."""
        try:
            place = os.path.dirname(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        except OSError:
            return None
        return place if os.path.isdir(place) else None

    def drop(self, *, removes_file: bool = False) -> None:
        """Gives the lock back, if it is held."""
        if removes_file:
            self._identity = None  # the directory may be removed too
            with contextlib.suppress(OSError):
                files.remove(self._path)
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        _held_descriptors().discard(descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a child forked by native code shares it
        os.close(descriptor)


def _identity(directory: str) -> tuple[int, int] | None:
    """Returns what a directory keeps when it is moved; None if there is none."""
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read_if_there(path: str) -> bytes | None:
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return None


def _look(path: str) -> bytes | None:
    """Reads the lock file of any process: what cannot be read is not free either."""
    try:
        return _read_if_there(path)
    except Exception:  # TensorFlow's errors of URLs are no OSErrors
        return b""


def _parse(text: bytes | None) -> dict[str, Any]:
    """Returns what a lock file holds; nothing if this module did not write it."""
    try:
        values = files.parse_json(text or b"")
    except ValueError:
        return {}
    return values if isinstance(values, dict) and isinstance(values.get("owner"), str) else {}


def _owner(text: bytes | None) -> str | None:
    return _parse(text).get("owner")


def _is_dead(text: bytes) -> bool:
    """Whether a lock file names a process of this machine that has ended."""
    values = _parse(text)
    if values.get("machine") != _machine() or not isinstance(pid := values.get("pid"), int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _describe(text: bytes | None) -> str:
    """Returns in one line which process wrote a lock file."""
    values = _parse(text)
    if not values:
        return "a process that left no readable name"
    parts = [f"pid {values.pop('pid', '?')} on {values.pop('host', '?')}", f"since {values.pop('since', '?')}"]
    parts += [f"{key}: {value}" for key, value in values.items() if key not in ("owner", "machine", "renewals")]
    return ", ".join(textwrap.shorten(part, _VALUE_CHARACTERS, placeholder=" …") for part in parts)


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
