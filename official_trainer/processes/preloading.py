"""What a process imports so that those which are forked from it find it imported, TensorFlow above all.

Owns: the first imports; hearing from forked processes which installed packages they import, and importing those too,
for the next ones, after a trial in a process of its own.
Does not own: forking (`starter.py`).

A package is imported early only if a process that does not use it cannot notice: it starts no thread and not
TensorFlow's runtime, with which no process could be forked, and it uses neither TensorFlow nor gin, which it could add
something to.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import os
import sys
import threading
import time
import types
from collections.abc import Iterable, Sequence
from typing import Any

from official_trainer.processes import commands
from official_trainer.user_code import INSTALLED

_READ_BYTES = 1 << 16
_MOST_DESCRIPTORS = 1 << 12
_NOT_EARLY = ("gin", "keras", "tensorflow", "tf_keras")


def preload(names: Sequence[str]) -> None:
    """Imports modules, of which those of TensorFlow and Keras must not be loaded in another way."""
    from official_trainer.lazy import load

    for name in names:
        load(name) if "." not in name else importlib.import_module(name)


def runtime_has_started() -> bool:
    """Returns whether TensorFlow's runtime, or that of a device, has started in this process."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = None if module is None else module.context()
    return context is not None and (context._context_handle is not None or context._physical_devices is not None)


class Imports:
    """What forked processes import from installed packages.

    Attributes:
      packages: those that this process has imported for them.
    """

    def __init__(self, quiet_seconds: float = 3.0) -> None:
        """Takes how long nothing further is imported before a package is tried: a start of others has ended then."""
        self.packages: list[str] = []
        self._quiet_seconds = quiet_seconds
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._unread = b""
        self._modules: dict[str, list[str]] = {}  # by package, which waits to be tried
        self._seen: set[str] = set()
        self._heard_seconds = 0.0
        self._trial: tuple[int, str] | None = None

    def fileno(self) -> int:
        """Returns the descriptor to wait for before `hear`."""
        return self._reading

    def tell(self, above: int = 3) -> None:
        """In a forked process: tells the one that it was forked from what is imported from here on.

        Args:
          above: the least number for a descriptor; those below it are needed for others.
        """
        writing = fcntl.fcntl(self._writing, fcntl.F_DUPFD_CLOEXEC, above)
        for end in (self._reading, self._writing):
            os.close(end)
        sys.meta_path.insert(0, _Teller(writing))

    def hear(self) -> None:
        """Takes what forked processes have told."""
        with contextlib.suppress(BlockingIOError):
            *names, self._unread = (self._unread + os.read(self._reading, _READ_BYTES)).split(b"\n")
            for name in [name.decode() for name in names]:
                package = name.partition(".")[0]
                if name in sys.modules or package in self._seen or name in self._modules.get(package, ()):
                    continue
                if package not in self._modules and not _is_installed(package):
                    self._seen.add(package)
                else:
                    self._modules.setdefault(package, []).append(name)
                    self._heard_seconds = time.monotonic()

    @property
    def is_trying(self) -> bool:
        """Whether a package is being tried, whose end `look` notices."""
        return self._trial is not None

    def wait_seconds(self) -> float | None:
        """Returns how long to wait before `advance` has something to do; None if nothing waits for it."""
        if not self._modules or self.is_trying:
            return None
        return max(0.0, self._heard_seconds + self._quiet_seconds - time.monotonic())

    def advance(self) -> None:
        """Starts to try out a package, in a process whose end `look` notices."""
        if self.wait_seconds() != 0.0:
            return
        package = next(iter(self._modules))
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        if pid := os.fork():
            self._trial = pid, package
        else:
            _end_after_trial(self._modules[package], parent)

    def look(self) -> bool:
        """Imports a package whose trial has ended well; returns whether it has."""
        if self._trial is None or not (found := os.waitpid(self._trial[0], os.WNOHANG))[0]:
            return False
        package, self._trial = self._trial[1], None
        modules = self._modules.pop(package)
        self._seen.add(package)
        if found[1]:
            return False
        _import(modules)
        gc.freeze()  # forked processes need not look through it for garbage
        self.packages.append(package)
        return True


class _Teller:
    """Is asked first for each module that is imported, and finds none."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Tells the module's name."""
        with contextlib.suppress(OSError):  # what does not fit is imported as late as ever
            os.write(self._descriptor, f"{name}\n".encode())


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and any(f"{os.sep}{name}{os.sep}" in (spec.origin or "") for name in INSTALLED)


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception):  # as where it was imported: one that is not there may not be needed
            importlib.import_module(name)


def _end_after_trial(modules: Iterable[str], parent: int) -> None:
    """Ends this process with 0 if modules can be imported early."""
    try:
        commands.die_with(parent)
        os.closerange(0, _MOST_DESCRIPTORS)  # no reader waits for an end of a pipe that this process has
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        before = set(sys.modules)
        _import(modules)
        new = [module for name, module in list(sys.modules.items()) if name not in before]
        is_bad = runtime_has_started() or threading.active_count() > 1 or any(map(_uses_others, new))
        os._exit(int(is_bad))
    finally:
        os._exit(1)


def _uses_others(module: types.ModuleType) -> bool:
    """Whether a module holds something of a package that it could add something to."""
    for value in [module, *vars(module).values()]:
        is_module = isinstance(value, types.ModuleType)
        name = vars(value).get("__name__") if is_module else getattr(value, "__module__", None)
        if str(name).partition(".")[0] in _NOT_EARLY:
            return True
    return False
