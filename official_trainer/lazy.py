"""TensorFlow and Keras, imported at their first use; the only place that selects Keras 2.

Owns: the names `tf` and `keras` for modules that must stay importable in milliseconds (configs, tasks, inputs).
Does not own: any setting of the runtime; `engine/process.py` does that.

`keras` is tf_keras: TPUStrategy, ParameterServerStrategy, orbit and every Model Garden model need Keras 2. With
`TF_USE_LEGACY_KERAS` set before the first import, TensorFlow does not load Keras 3 too, which saves seconds.

Example:
  >>> from official_trainer.lazy import keras, tf
  >>> model = keras.Sequential([keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(10)])
  >>> model(tf.zeros([2, 8, 8, 1])).shape
  TensorShape([2, 10])
"""

from __future__ import annotations

import contextlib
import functools
import gc
import glob
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any


class LazyModule(types.ModuleType):
    """A module that is imported at the first access of one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(load(self.__name__), name)
        setattr(self, name, value)  # later accesses do not call this method
        return value

    def __dir__(self) -> list[str]:
        return dir(load(self.__name__))


def load(name: str) -> types.ModuleType:
    """Imports `name` (a module of TensorFlow or Keras) after selecting Keras 2."""
    select()
    if name not in sys.modules:
        with _without_collector(), _deferred():
            importlib.import_module(name)
    if "tensorflow" in sys.modules:
        _apply_log_level()
    return importlib.import_module(name)  # another thread may still be importing it


def select() -> None:
    """Sets what TensorFlow reads from the environment when it is imported, which may happen in a module of a user's."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # TensorFlow's banner is not about the user's run; without a GPU driver it adds an error about that.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/dev/nvidiactl") else "3")
    if not tpu_devices() or os.environ.get("TPU_NAME") not in (None, "", "local"):
        # TensorFlow with TPU support searches for a TPU of this machine while it is imported: without one, for more
        # than a minute. Where the TPU has several hosts, it would reserve a part of it.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")


@functools.cache
def _apply_log_level() -> None:
    """Applies `TF_CPP_MIN_LOG_LEVEL` to all of TensorFlow's C++ code.

    Much of it logs with Abseil, which ignores that variable: pages of a server's settings, for example, when it starts.
    There is no public way; if the library lacks the symbol of this release, nothing changes.
    """
    import ctypes  # takes milliseconds, which commands without TensorFlow need not spend

    module = sys.modules["tensorflow"].__file__ or ""
    path = os.path.join(os.path.dirname(module), "libtensorflow_framework.so.2")
    with contextlib.suppress(OSError, AttributeError, ValueError):
        level = int(os.environ["TF_CPP_MIN_LOG_LEVEL"])
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        set_level = library._ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE
        set_level.argtypes, set_level.restype = [ctypes.c_int], None
        set_level(max(0, min(level, _FATAL)))


_FATAL = 3


def tpu_devices() -> list[str]:
    """Returns the device files of the TPU chips of this machine."""
    return sorted(glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*"))


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Excludes the objects that are created in a `with` block from Python's cycle collector.

    TensorFlow creates half a million objects that live as long as the process. Visiting them repeatedly, during the
    import and later, takes more than a second of a short run.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class _DeferredModule(LazyModule):
    """What TensorFlow gets when it imports a package that it may never use."""

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # which `inspect` asks of every module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Defers packages that TensorFlow and Keras import in a `with` block, but need in few functions only.

    Importing them takes a seventh of the whole import, and 100 MB. Each is imported when it is first used. What is
    imported after the block is the package itself.
    """
    deferred = {}
    for name in RARELY_USED:
        if name not in sys.modules and (spec := _find_spec(name)):
            deferred[name] = _DeferredModule(name)
            deferred[name].__spec__ = spec
    sys.modules.update(deferred)
    try:
        yield
    finally:
        for name, module in deferred.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


RARELY_USED = ("googleapiclient.discovery", "h5py", "pandas", "requests", "scipy.linalg", "scipy.ndimage")
"""Modules that are imported when they are first used; those that are absent stay absent."""


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:  # of its package
        return None


if TYPE_CHECKING:
    import tensorflow as tf
    import tf_keras as keras
else:
    tf = LazyModule("tensorflow")
    keras = LazyModule("tf_keras")
