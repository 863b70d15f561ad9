"""TensorFlow and Keras, imported at their first use; the only module that selects what `tf.keras` is.

Owns: the names `tf` and `keras` for modules that must stay importable in milliseconds (configs, tasks, inputs), and
which Keras the process uses. Does not own: any setting of the runtime; `engine/process.py` does that.

`keras` here is tf_keras: TPUStrategy, ParameterServerStrategy, orbit and every Model Garden model need Keras 2. Keras 3
is `import keras`. With `TF_USE_LEGACY_KERAS` set before the first import, TensorFlow loads the one that is used, and
`tf.keras` is it, too.

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
import logging
import os
import re
import sys
import time
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

RARELY_USED = "pandas", "scipy.linalg", "scipy.ndimage"
"""Packages that TensorFlow and Keras try to import, and need in few functions: a fifth of their import."""
_IMPORTS_KERAS_3 = re.compile(rb"^\s*(import|from)\s+keras(_hub)?\b", re.MULTILINE)
_KERAS_3 = "keras", "keras_hub"
_CHOSEN: dict[str, str | None] = {"TF_USE_LEGACY_KERAS": None, "KERAS_BACKEND": None}
"""What `select` has put into the environment; for the backend, whatever ~/.keras/keras.json says."""

_users_of_3: set[str] = set()  # modules of the user's that import Keras 3
_import_times: list[tuple[float, float]] = []  # from when to when TensorFlow and tf_keras were imported


class LazyModule(types.ModuleType):
    """A module that is imported at the first access of one of its attributes; also in `sys.modules`, by `deferred`."""

    def __getattr__(self, name: str) -> Any:
        is_deferred = sys.modules.get(self.__name__) is self
        if name == "__isabstractmethod__" or (name == "__file__" and is_deferred):  # `abc` and `inspect` ask for them
            raise AttributeError(name)
        if is_deferred:
            del sys.modules[self.__name__]
        value = getattr(load(self.__name__), name)
        setattr(self, name, value)  # later accesses do not call this method
        return value

    def __dir__(self) -> list[str]:
        return dir(load(self.__name__))


def load(name: str) -> types.ModuleType:
    """Imports `name`, a module of TensorFlow or Keras, after selecting the Keras that is used.

    TensorFlow creates half a million objects that live as long as the process. The cycle collector rests meanwhile, and
    does not look at them later: visiting them again and again is two fifths of the import.
    """
    if name in _KERAS_3:
        _users_of_3.add(name)
        drop_needless_warnings()
    select()
    if name not in sys.modules:
        began_seconds, was_enabled = time.monotonic(), gc.isenabled()
        gc.disable()
        try:
            with deferred(*RARELY_USED):
                importlib.import_module(name)
        finally:
            gc.freeze()
            if was_enabled:
                gc.enable()
        if name in ("tensorflow", "tf_keras"):
            _import_times.append((began_seconds, time.monotonic()))
    return importlib.import_module(name)  # another thread may still be importing it


def import_seconds(*, since_seconds: float) -> float:
    """Returns how long `load` has imported TensorFlow and Keras since a time on the scale of `time.monotonic`."""
    return sum(max(0.0, ended - max(began, since_seconds)) for began, ended in _import_times)


def drop_needless_warnings() -> None:
    """Drops what Grain, which KerasHub imports, says about JAX, which nothing here uses."""
    from absl import logging as absl_logging

    absl_logging.get_absl_logger().addFilter(_is_needed)


def _is_needed(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Failed to load jax profiler")


def message(name: str) -> Any:
    """Returns the class of a protocol buffer in TensorFlow's files, such as `SavedModel`, by its name in the format.

    The modules of these classes have no public names; TensorFlow has registered what it uses itself.
    """
    load("tensorflow")
    from google.protobuf import descriptor_pool, message_factory

    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(f"tensorflow.{name}"))


def select() -> None:
    """Sets what TensorFlow reads from the environment while it is imported, which a module of a user's may do."""
    for key, value in {"TF_USE_LEGACY_KERAS": "0" if _users_of_3 else "1", "KERAS_BACKEND": "tensorflow"}.items():
        if os.environ.get(key) in (None, _CHOSEN[key]):  # else it is the user's choice
            os.environ[key] = _CHOSEN[key] = value
    # TensorFlow's banner is not about the user's run; without a GPU driver it adds an error about that.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/dev/nvidiactl") else "3")
    if not tpu_devices() or os.environ.get("TPU_NAME") not in (None, "", "local"):
        # TensorFlow with TPU support searches for a TPU of this machine while it is imported: without one, for more
        # than a minute. Where the TPU has several hosts, it would reserve a part of it.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")


def uses_keras(version: int) -> bool:
    """Whether this process uses Keras 3, or Keras 2; the latter also where nothing tells: Model Garden needs it."""
    uses_3 = bool(_users_of_3) or _is_loaded("keras")
    return uses_3 if version == 3 else not uses_3 or _is_loaded("tf_keras")


def imports_keras_3(module: str) -> bool:
    """Whether a module of the user's, such as that of a Task, names Keras 3; to be asked once it is imported."""
    return module in _users_of_3


def _is_loaded(name: str) -> bool:
    return name in sys.modules and not isinstance(sys.modules[name], LazyModule)


@contextlib.contextmanager
def importing_users_module(name: str) -> Iterator[None]:
    """For a block that imports a user's module: there `import keras`, or `keras_hub`, imports nothing until it is used.

    So an experiment is listed, shown and checked without TensorFlow. Keras 3 counts as used if the module, or another
    one of its package that it imports, names it.

    Args:
      name: of the module.
    """
    before = {key: os.environ.get(key) for key in _CHOSEN}
    spec = spec_of(name)
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        with contextlib.suppress(OSError), open(spec.origin, "rb") as file:
            if _IMPORTS_KERAS_3.search(file.read()):
                _users_of_3.add(name)
    select()
    with deferred(*_KERAS_3):
        yield
    package = name.partition(".")[0]
    for other, module in list(sys.modules.items()):
        if other.partition(".")[0] == package and any(
            isinstance(value, LazyModule) and value.__name__ in _KERAS_3 for value in vars(module).values()
        ):
            _users_of_3.add(other)
    if "tensorflow" not in sys.modules:  # what was chosen for it is chosen again when it is imported
        for key, text in before.items():
            if text is None:
                os.environ.pop(key, None)


def tpu_devices() -> list[str]:
    """Returns the device files of the TPU chips of this machine."""
    return sorted(glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*"))


@contextlib.contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Has packages imported when they are first used; what is imported after the block is the package itself."""
    modules = {}
    for name in names:
        if name not in sys.modules and (spec := spec_of(name)) is not None:
            modules[name] = sys.modules[name] = LazyModule(name)
            modules[name].__spec__ = spec
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def deferring_idle_keras() -> contextlib.AbstractContextManager[None]:
    """Returns a context for importing orbit, which hardly uses tf_keras: deferred, if nothing else uses it."""
    return deferred() if uses_keras(2) else deferred("tf_keras")


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns where a module is, or None if it is not installed; it is not imported."""
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
