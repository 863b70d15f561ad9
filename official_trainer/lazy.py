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
import gc
import glob
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
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
    """Imports `name` (a module of TensorFlow or Keras) after selecting Keras 2.

    TensorFlow creates half a million objects that live as long as the process. The cycle collector rests meanwhile, and
    does not look at them later: visiting them again and again is a fifth of the import.
    """
    select()
    if name not in sys.modules:
        began, was_enabled = time.monotonic(), gc.isenabled()
        gc.disable()
        try:
            with _deferred():
                importlib.import_module(name)
        finally:
            gc.freeze()
            if was_enabled:
                gc.enable()
        if name in _TENSORFLOW:
            _imports.append((began, time.monotonic()))
    return importlib.import_module(name)  # another thread may still be importing it


_TENSORFLOW = "tensorflow", "tf_keras"
_imports: list[tuple[float, float]] = []  # from when to when TensorFlow and Keras were imported


def import_seconds(*, since_seconds: float) -> float:
    """Returns how long `load` has imported TensorFlow and Keras since a time on the scale of `time.monotonic`."""
    return sum(max(0.0, ended - max(began, since_seconds)) for began, ended in _imports)


def select() -> None:
    """Sets what TensorFlow reads from the environment while it is imported, which a module of a user's may do."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # TensorFlow's banner is not about the user's run; without a GPU driver it adds an error about that.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/dev/nvidiactl") else "3")
    if not tpu_devices() or os.environ.get("TPU_NAME") not in (None, "", "local"):
        # TensorFlow with TPU support searches for a TPU of this machine while it is imported: without one, for more
        # than a minute. Where the TPU has several hosts, it would reserve a part of it.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")


def tpu_devices() -> list[str]:
    """Returns the device files of the TPU chips of this machine."""
    return sorted(glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*"))


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Has Python's cycle collector look at new objects rarely in a `with` block that imports much.

    With the usual threshold it takes a tenth of the time of such an import. Memory that only cycles hold is freed all
    the same.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_RARELY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


_RARELY = 50_000  # new objects, instead of 700


RARELY_USED = "pandas", "scipy.linalg", "scipy.ndimage"
"""Packages that TensorFlow and Keras try to import, and need in few functions: a fifth of their import."""


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Has those packages imported when they are first used; what is imported after the block is the package itself."""
    if not _deferring.acquire(blocking=False):  # the import that is under way does it already
        yield
        return
    placed = {}
    try:
        for name in RARELY_USED:
            if name not in sys.modules and (spec := _found(name)) is not None:
                placed[name] = sys.modules[name] = _DeferredModule(name)
                placed[name].__spec__ = spec
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        _deferring.release()


_deferring = threading.Lock()


class _DeferredModule(types.ModuleType):
    """What TensorFlow gets when it imports a package that it may never use."""

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks every module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def _found(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:  # the package around it
        return None


if TYPE_CHECKING:
    import tensorflow as tf
    import tf_keras as keras
else:
    tf = LazyModule("tensorflow")
    keras = LazyModule("tf_keras")
