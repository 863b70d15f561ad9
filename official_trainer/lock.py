"""The lock on a directory: one process holds it, and everybody else is told who.

Owns: taking the lock, showing that its holder lives, taking over from a dead one, noticing that it was taken over.
Does not own: which directory may be a run's (`tracking/record.py`), or what becomes of a run whose lock is lost.

Two files, both hidden, so that a directory with nothing else in it still counts as empty. `.lock` is empty and stays:
the kernel's `flock` on it ends with its holder, so on one machine it is the truth. `.lock.json` says who the holder is
and is replaced at each renewal. Where `flock` does not reach (another machine, a URL) a newcomer watches that file:
while it changes, its holder lives. Only the newcomer's own clock is read; clocks of two machines are never compared.

Such places have no compare-and-swap, so two newcomers may both write. The last one holds the lock; the other one finds
out at once or at its next renewal (`lost_to`).
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
import shlex
import socket
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError

_logger = logging.getLogger(__name__)

RENEW_SECONDS = 5.0
"""How often a holder shows that it lives."""

LEASE_SECONDS = 20.0
"""How long a holder that `flock` cannot vouch for may be silent before its lock is taken over."""

_POLL_SECONDS = 1.0
_HANDOVER_SECONDS = 0.1
_HANDOVER_ATTEMPTS = 10
_NO_FLOCK = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_VALUE_CHARACTERS = 200


class LockedError(UserError, RuntimeError):
    """A directory that another process holds; starting again helps once that one has ended."""

    exit_code = ExitCode.RETRY


def lock_path(directory: str | os.PathLike[str], name: str = "lock") -> str:
    """Returns the file that the holder of a directory's lock renews."""
    return files.join(directory, f".{name}.json")


class DirectoryLock:
    """Keeps other processes, on this machine and on others, from using a directory; use it in a `with` block.

    Args:
      directory: local path or URL that exists and can be written.
      name: of the lock; locks of different names do not know each other.
      description: what else a process that is refused is told about this one; `command` replaces the command line.
      flag: by which the directory was named.
      clock: tells the time in seconds from any origin.
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
        self._directory = os.fspath(directory)
        self._path = lock_path(directory, name)
        self._flock_path = files.join(directory, f".{name}")
        self._description = dict(description or {})
        self._flag = flag
        self._clock = clock
        self._sleep = sleep
        self._mutex = threading.Lock()  # between the renewing thread and `release`
        self._ended = threading.Event()
        self._descriptor: int | None = None
        self._values: dict[str, Any] | None = None  # what the file says while this object holds the lock
        self._pid: int | None = None
        self._renewed_seconds = 0.0
        self._lost_to: str | None = None

    @property
    def lost_to(self) -> str | None:
        """Message that says who has taken over the lock that this object thought it held; None if nobody has."""
        return self._lost_to

    def acquire(self) -> None:
        """Takes the lock, at once if it is free or its holder died on this machine.

        Raises:
          LockedError: another process holds it. Nothing was written.
          OSError: the directory is not there or cannot be written.
        """
        assert not self._is_holder(), "acquired twice"
        self._descriptor = None if files.is_url(self._directory) else self._take_flock()
        self._values = self._own_values()
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._lost_to = None
        try:
            self._await_lease()
            self._remove_debris()
            self._write()
            if _owner(text := self._look()) not in (None, self._values["owner"]):
                raise self._refusal(text)
            renewing = functools.partial(self._keep_renewing, self._ended)
            threading.Thread(target=renewing, name="directory-lock", daemon=True).start()
        except BaseException:
            self.release()
            raise

    def renew(self) -> None:
        """Shows that the holder lives, and looks whether it still is the holder; a thread does it while it is held.

        Raises:
          OSError: it could not be read or written. The lock is held all the same, unless a later call says otherwise.
        """
        if not self._is_holder():
            return
        with self._mutex:
            if self._values is None or self._lost_to is not None:
                return
            text = self._read()
            owner = _owner(text)
            was_silent = self._clock() - self._renewed_seconds > LEASE_SECONDS
            # Somebody may have come and gone while this process was stopped, so silence without its file is a loss.
            if owner != self._values["owner"] and (owner is not None or was_silent):
                self._lost_to = (
                    f"{self._flag}={self._directory} was taken over by {_described(text)}, because this process showed "
                    f"no life for {LEASE_SECONDS:g} seconds or both started at once. Start it again when the other one "
                    f"has ended, or name another {self._flag}."
                )
                return
            self._write()

    def release(self) -> None:
        """Gives the lock back; what is not held, or belongs to the process this one was forked from, stays as it is."""
        if not self._is_holder():
            return
        self._ended.set()
        with self._mutex:
            assert self._values is not None
            owner, self._values = self._values["owner"], None
            try:
                if _owner(self._read()) == owner:
                    files.remove(self._path)
            except Exception as error:  # of any file system; an error here would hide the one that ended the run
                _logger.warning("%s could not be removed: %s", self._path, error)
            finally:
                self._drop_flock()

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _is_holder(self) -> bool:
        return self._values is not None and self._pid == os.getpid()

    def _own_values(self) -> dict[str, Any]:
        return {
            "command": shlex.join(sys.orig_argv),
            **self._description,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": _machine(),
            "owner": uuid.uuid4().hex,
            "renewals": -1,
        }

    def _take_flock(self) -> int | None:
        """Returns the descriptor that holds the kernel's lock, or None where there is no such lock."""
        descriptor = os.open(self._flock_path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._flock(descriptor)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in _NO_FLOCK:
                return None
            raise
        _close_when_forked(descriptor)
        return descriptor

    def _flock(self, descriptor: int) -> None:
        for attempts_left in reversed(range(_HANDOVER_ATTEMPTS)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                text = self._look()
                if text is not None or not attempts_left:
                    raise self._refusal(text) from None
                self._sleep(_HANDOVER_SECONDS)  # its holder is about to say who it is, or about to end

    def _drop_flock(self) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        _descriptors.discard(descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing does not do if a child forked by native code shares it
        os.close(descriptor)

    def _await_lease(self) -> None:
        """Returns as soon as nobody holds the lease; a holder that lives is a LockedError."""
        seen = self._look()
        if seen is None or (self._descriptor is not None and _parse(seen).get("machine") == _machine()):
            return
        _logger.warning(
            "%s was in use by %s: waiting %g seconds to see whether it still is",
            self._directory,
            _described(seen),
            LEASE_SECONDS,
        )
        end_seconds = self._clock() + LEASE_SECONDS
        is_over = False
        while not is_over:
            self._sleep(_POLL_SECONDS)
            is_over = self._clock() >= end_seconds  # before the look: this process may be stopped between the two
            text = self._look()
            if text is None:
                return
            if text != seen:
                raise self._refusal(text)

    def _remove_debris(self) -> None:
        """Removes what holders left that were killed in the middle of a renewal."""
        if self._descriptor is None:
            return  # it may be a newcomer's that is writing just now
        files.remove_temporaries(self._directory, os.path.basename(self._path))

    def _read(self) -> bytes | None:
        try:
            return files.read_bytes(self._path)
        except FileNotFoundError:
            return None

    def _look(self) -> bytes | None:
        """Reads the file as one of which nothing is known: what cannot be read is not free either."""
        try:
            return self._read()
        except Exception:  # TensorFlow's errors of URLs are no OSErrors
            return b""

    def _write(self) -> None:
        assert self._values is not None
        self._values["renewals"] += 1
        files.write_text_atomically(self._path, json.dumps(self._values, indent=2) + "\n", durable=False)
        self._renewed_seconds = self._clock()

    def _keep_renewing(self, ended: threading.Event) -> None:
        has_said = False
        while not ended.wait(RENEW_SECONDS) and self._lost_to is None:
            try:
                self.renew()
            except Exception as error:  # the next renewal may do; if not, the lease says what happens
                if not has_said:
                    _logger.warning("%s could not be renewed: %s", self._path, error)
                has_said = True

    def _refusal(self, text: bytes | None) -> LockedError:
        holder = _parse(text)
        stop = f"stop it with `kill {holder['pid']}`" if "pid" in holder else ""
        if stop and holder.get("host") != socket.gethostname():
            stop += f" on {holder.get('host')}"
        fixes = ", ".join(["Wait until it has ended", *filter(None, [stop])])
        return LockedError(
            f"{self._flag}={self._directory} is in use by {_described(text)}. {fixes}, or name another {self._flag}."
        )


def _parse(text: bytes | None) -> dict[str, Any]:
    """Returns what a lock file says; nothing if it is not what this module writes."""
    try:
        values = json.loads(text or b"")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and isinstance(values.get("owner"), str) else {}


def _owner(text: bytes | None) -> str | None:
    return _parse(text).get("owner")


def _described(text: bytes | None) -> str:
    """Says in one line who wrote a lock file."""
    values = _parse(text)
    if not values:
        return "a process that left no readable name"
    parts = [f"pid {values.pop('pid', '?')} on {values.pop('host', '?')}", f"since {values.pop('since', '?')}"]
    parts += [f"{key}: {value}" for key, value in values.items() if key not in ("owner", "machine", "renewals")]
    return ", ".join(textwrap.shorten(part, _VALUE_CHARACTERS, placeholder=" …") for part in parts)


def _machine() -> str:
    """Returns an identity of the running kernel, within which `flock` is the truth: names of hosts are given twice."""
    try:
        return files.read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return socket.gethostname()


_descriptors: set[int] = set()


def _close_when_forked(descriptor: int) -> None:
    """Makes sure that a forked child that outlives the holder does not keep its lock."""
    _descriptors.add(descriptor)
    _hook_fork()


@functools.cache
def _hook_fork() -> None:
    os.register_at_fork(after_in_child=_close_descriptors)


def _close_descriptors() -> None:
    while _descriptors:
        os.close(_descriptors.pop())
