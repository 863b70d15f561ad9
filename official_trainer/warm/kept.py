"""A process that is kept for further commands, each of which finds what it would find in a process of its own.

Owns: what is put back after a command, and what ends the process instead because it cannot be put back.
Does not own: the commands (`commands.py`), what the user's modules hold (`module_state.py`).
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from typing import Any

from official_trainer.warm.module_state import ModuleState

_KERAS, _EAGER = "tf_keras.src", "tensorflow.python.eager"
_SETTINGS = (
    (f"{_KERAS}.backend", "_USE_GENERATOR_FOR_RNG"),
    (f"{_KERAS}.backend_config", "_FLOATX"),
    (f"{_KERAS}.backend_config", "_EPSILON"),
    (f"{_KERAS}.backend_config", "_IMAGE_DATA_FORMAT"),
    (f"{_KERAS}.mixed_precision.policy", "_global_policy"),
    (f"{_EAGER}.polymorphic_function.eager_function_run", "RUN_FUNCTIONS_EAGERLY"),
)
"""What commands may set for all that comes after them."""

_UNCHANGED = (
    "_default_is_async",
    "_device_policy",
    "_jit_compile_rewrite",
    "_log_device_placement",
    "_optimizer_experimental_options",
    "_optimizer_jit",
    "_soft_device_placement",
)
"""Settings of TensorFlow's runtime."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD)
_THREAD_SECONDS = 1.0  # for one that was told to end
_TOKENIZERS = "tensorflow_text"  # beside it, kernels that draw go on where they were, see `random_streams.enable`


class KeptProcess:
    """This process, from before its first command."""

    def __init__(self) -> None:
        self._modules = ModuleState()
        self._settings = [
            (name, key, getattr(sys.modules[name], key)) for name, key in _SETTINGS if name in sys.modules
        ]
        self._signals = {number: signal.getsignal(number) for number in _SIGNALS}
        self._place, self._path = os.getcwd(), list(sys.path)
        self._threads = set(threading.enumerate())
        self._tensorflow = _tensorflow_settings()
        self._is_cleared = False

    def why_not_again(self) -> str:
        """Returns why this process may not take another command; empty if it may."""
        if _TOKENIZERS in sys.modules:
            return f"{_TOKENIZERS} is imported"
        for thread in [each for each in threading.enumerate() if each not in self._threads]:
            thread.join(_THREAD_SECONDS)
            if thread.is_alive():
                return f"the thread {thread.name!r} still runs"
        if _has_children():
            return "a process that it started still runs"
        if (settings := _tensorflow_settings()) != self._tensorflow:
            changed = next(name for name, value in settings.items() if self._tensorflow.get(name) != value)
            return f"TensorFlow's setting {changed.strip('_')} has changed"
        if changed := self._modules.difference():
            return f"{changed} has changed since it was imported"
        return ""

    def clear(self) -> None:
        """Puts back what commands change."""
        os.chdir(self._place)
        sys.path[:] = self._path
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for number, handler in self._signals.items():
            if handler is not None:  # of native code
                signal.signal(number, handler)
        for name, key, value in self._settings:
            setattr(sys.modules[name], key, value)
        if "tf_keras" in sys.modules:
            backend = sys.modules[f"{_KERAS}.backend"]
            backend.clear_session()  # the names of layers count from 1 again
            vars(backend._SEED_GENERATOR).pop("generator", None)
            sys.modules[f"{_EAGER}.context"].set_global_seed(None)
        random.seed()
        gc.collect()
        if not self._is_cleared:  # modules and caches, which stay, need not be visited after each command
            self._is_cleared = True
            gc.freeze()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _tensorflow_settings() -> dict[str, Any]:
    """Returns TensorFlow's settings that nothing puts back, without starting its runtime."""
    module = sys.modules.get(f"{_EAGER}.context")
    found = {} if module is None else vars(module.context())
    return {name: repr(found.get(name)) for name in _UNCHANGED}
