"""Imports at first use: TensorFlow, Keras, and the names that a package offers; the one place that chooses Keras 2.

Owns: the names `tf` and `keras` for modules that must stay importable in milliseconds (configs, tasks, inputs); `face`.
Does not own: any setting of the runtime; `engine/process.py` does that.

`keras` is tf_keras: TPUStrategy, ParameterServerStrategy, orbit and every Model Garden model need Keras 2. With
`TF_USE_LEGACY_KERAS` set before the first import, TensorFlow does not load Keras 3 beside it, which saves seconds.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import glob
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any


class LazyModule(types.ModuleType):
    """A module that is imported at the first access of one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(load(self.__name__), name)
        setattr(self, name, value)  # the next access does not come here
        return value

    def __dir__(self) -> list[str]:
        return dir(load(self.__name__))


def face(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns `__getattr__` of a package that offers names of its modules, each imported at first use.

    Args:
      package: its `__name__`.
      names: each name with the module that defines it; a module offers itself under its own name.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(names[name])
        value = module if names[name].endswith(f".{name}") else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def load(name: str) -> types.ModuleType:
    """Imports `name` (a TensorFlow-family module) with Keras 2 chosen first."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # TensorFlow's banner is not about the user's run; without a GPU driver it adds an error that there is none.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/dev/nvidiactl") else "3")
    if not tpu_devices() or os.environ.get("TPU_NAME") not in (None, "", "local"):
        # TensorFlow with TPU support would look for a TPU of this machine while it is imported: where there is none,
        # for more than a minute. Where the TPU is one of several hosts, it would take a part of it for itself.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
    if name not in sys.modules:
        with _collector_at_rest():
            importlib.import_module(name)
    if "tensorflow" in sys.modules:
        _heed_log_level()
    return importlib.import_module(name)  # it is there, but another thread may not have imported all of it yet


@functools.cache
def _heed_log_level() -> None:
    """Has all of TensorFlow's C++ heed `TF_CPP_MIN_LOG_LEVEL`.

    Much of it logs by Abseil, which does not know of that variable: pages of a server's settings, for example, when it
    starts. There is no public way; without the symbol of this release, nothing changes.
    """
    import ctypes  # costs milliseconds, which commands without TensorFlow save

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
def _collector_at_rest() -> Iterator[None]:
    """Keeps Python's cycle collector from what is imported meanwhile.

    TensorFlow brings half a million objects that live as long as the process. Walking them again and again, while they
    are imported and later, takes more than a second of a short run.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


if TYPE_CHECKING:
    import tensorflow as tf
    import tf_keras as keras
else:
    tf = LazyModule("tensorflow")
    keras = LazyModule("tf_keras")
