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

import collections
import contextlib
import functools
import gc
import glob
import importlib
import importlib.machinery
import inspect
import os
import sys
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
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
        began = time.monotonic()
        with _without_collector(), _deferred(RARELY_USED), _remembered():
            importlib.import_module(name)
        if name in _TENSORFLOW:
            _imports.append((began, time.monotonic()))
    if "tensorflow" in sys.modules:
        _apply_log_level()
    return importlib.import_module(name)  # another thread may still be importing it


_TENSORFLOW = "tensorflow", "tf_keras"
_imports: list[tuple[float, float]] = []  # from when to when TensorFlow and Keras were imported


def import_seconds(*, since_seconds: float) -> float:
    """Returns how long `load` has imported TensorFlow and Keras since a time on the scale of `time.monotonic`."""
    return sum(max(0.0, ended - max(began, since_seconds)) for began, ended in _imports)


def select() -> None:
    """Prepares the import of TensorFlow and scikit-learn, which may happen in a module of a user's.

    It sets what TensorFlow reads from the environment, and has scikit-learn's import defer pandas.
    """
    if _SklearnFinder not in sys.meta_path:
        sys.meta_path.insert(0, _SklearnFinder)
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


class _DeferredModule(LazyModule):
    """What TensorFlow gets when it imports a package that it may never use."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for `__file__`, `from … import …` asks for `__path__`, which packages alone have.
        is_package = self.__spec__ is not None and self.__spec__.submodule_search_locations is not None
        if name == "__file__" or (name == "__path__" and not is_package):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


@contextlib.contextmanager
def _deferred(names: Sequence[str]) -> Iterator[None]:
    """Defers packages that are imported in a `with` block, but needed in few functions only.

    Importing those of TensorFlow takes a seventh of the whole import, and 100 MB; pandas takes a third of
    scikit-learn's. Each is imported when it is first used. What is imported after the block is the package itself.
    """
    with _deferring_lock:
        for name in names:
            _deferring[name] += 1
            if name not in sys.modules and (spec := _find_spec(name)):
                sys.modules[name] = _deferred_module(spec)
    try:
        yield
    finally:
        with _deferring_lock:
            for name in names:
                _deferring[name] -= 1  # another thread may import something that defers it as well
                if not _deferring[name] and isinstance(sys.modules.get(name), _DeferredModule):
                    del sys.modules[name]


_deferring: collections.Counter[str] = collections.Counter()  # in how many blocks a module is deferred
_deferring_lock = threading.Lock()


def _deferred_module(spec: importlib.machinery.ModuleSpec) -> _DeferredModule:
    module = _DeferredModule(spec.name)
    module.__spec__ = spec
    if spec.name == _CREDENTIALS[0]:
        setattr(module, _CREDENTIALS[1], _DeferredName(*_CREDENTIALS))
    return module


class _DeferredName:
    """What TensorFlow gets when it imports a name from a module that it may never use."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(importlib.import_module(self._module), self._name), name)


_CREDENTIALS = "oauth2client.client", "GoogleCredentials"
"""A class, of which TensorFlow calls a method where a cluster is found by Google's API; its module imports many."""

RARELY_USED = (
    *("fsspec", "googleapiclient.discovery", "h5py", "pandas", "requests", "scipy.linalg", "scipy.ndimage"),
    _CREDENTIALS[0],
)
"""Modules that are imported when they are first used; those that are absent stay absent."""


class _SklearnFinder(importlib.machinery.PathFinder):
    """Finds scikit-learn, and defers pandas while it is imported: it only asks whether there is one."""

    @classmethod
    def find_spec(cls, fullname: str, *args: Any) -> importlib.machinery.ModuleSpec | None:
        spec = super().find_spec(fullname, *args) if fullname == "sklearn" else None
        if spec is not None and spec.loader is not None:
            usual = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                with _deferred(["pandas"]):
                    usual(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this package's own loader
        return spec


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    package = name.rpartition(".")[0]
    try:
        path = importlib.import_module(package).__path__ if package else None
    except ModuleNotFoundError:
        return None
    return importlib.machinery.PathFinder.find_spec(name, path)


class _Memory:
    """Remembers answers until it is closed."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._is_open = True

    def answer(self, question: Any, compute: Callable[..., Any], *args: Any) -> Any:
        """Returns `compute(*args)`, or what it returned for this question before."""
        if not self._is_open:
            return compute(*args)
        if question not in self._known:
            self._known[question] = compute(*args)
        return self._known[question]

    def close(self) -> None:
        """Forgets all answers, and remembers no more."""
        self._is_open = False
        self._known.clear()


@contextlib.contextmanager
def _remembered() -> Iterator[None]:
    """Has Python answer at once what TensorFlow asks thousands of times while it is imported in a `with` block.

    TensorFlow decorates each of its functions several times, and asks for the signature every time. Its type variables
    name the same thirty types 17,000 times, and Python compiles each name. Together that is a fifth of the import. The
    answers are the same. What a module has kept of these functions answers as usual after the block.
    """
    if not _remembering.acquire(blocking=False):  # an import in another thread does it already
        yield
        return
    memory = _Memory()
    answers = (
        (inspect, "signature", _signatures),
        (inspect, "getfullargspec", _argument_specs),
        (typing, "_type_check", _checked_types),  # not public: where it is missing, nothing is lost
    )
    usual = [(module, name, getattr(module, name)) for module, name, _ in answers if hasattr(module, name)]
    for module, name, answering in answers:
        if hasattr(module, name):
            setattr(module, name, answering(getattr(module, name), memory))
    try:
        yield
    finally:
        for module, name, function in usual:
            setattr(module, name, function)
        memory.close()
        _remembering.release()


_remembering = threading.Lock()


def _signatures(usual: Callable[..., Any], memory: _Memory) -> Callable[..., Any]:
    """Returns `inspect.signature`, which remembers those of plain functions."""

    @functools.wraps(usual)
    def signature(obj: Any, **options: Any) -> Any:
        if options.keys() - {"follow_wrapped"} or not _is_plain(obj):
            return usual(obj, **options)
        return memory.answer(obj, usual, obj)

    return signature


def _argument_specs(usual: Callable[..., Any], memory: _Memory) -> Callable[..., Any]:
    """Returns `inspect.getfullargspec`, which reads those of plain functions without making a signature first."""

    @functools.wraps(usual)
    def getfullargspec(func: Any) -> Any:
        if not _is_plain(func) or func.__annotations__:
            return usual(func)
        args, varargs, varkw = inspect.getargs(func.__code__)
        num_args, defaults = func.__code__.co_argcount, func.__defaults__ or None
        kwonly, kwonly_defaults = args[num_args:], dict(func.__kwdefaults__ or {}) or None
        return inspect.FullArgSpec(args[:num_args], varargs, varkw, defaults, kwonly, kwonly_defaults, {})

    return getfullargspec


def _checked_types(usual: Callable[..., Any], memory: _Memory) -> Callable[..., Any]:
    """Returns `typing._type_check`, which remembers the types that TensorFlow's generated modules name."""

    @functools.wraps(usual)
    def check(arg: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 1 or type(arg) is not str or not arg.startswith("_atypes."):
            return usual(arg, *args, **kwargs)
        return memory.answer(arg, usual, arg, *args)

    return check


def _is_plain(obj: Any) -> bool:
    """Whether the signature of an object is that of its code."""
    return type(obj) is types.FunctionType and not ("__wrapped__" in vars(obj) or "__signature__" in vars(obj))


if TYPE_CHECKING:
    import tensorflow as tf
    import tf_keras as keras
else:
    tf = LazyModule("tensorflow")
    keras = LazyModule("tf_keras")
