"""What the user's modules hold, so that a command notices what another one before it, in the same process, has changed.

Owns: the content of each module at its import, and the first difference since.
Does not own: what follows from one (`kept.py`), which files are the user's (`user_code.py`).

Names that are bound anew are seen, and what is put into lists, dicts, sets, NumPy arrays, closures, and into classes
and objects of the user's. What objects of other packages hold is not.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib.machinery
import os
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.user_code import is_users

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_MOST_VALUES = 100_000  # in a module; with more it counts as changed, because nothing of it may stay unseen


class _Identity:
    """An object, equal to itself alone; it stays alive, so that no other object gets its address."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


_Content = dict[str, list[Any]]


class ModuleState:
    """The content of the user's modules that are imported from here on, and of their files."""

    def __init__(self) -> None:
        self._contents: dict[str, _Content] = {}
        self._times: dict[str, int] = {}
        self._importing: list[types.ModuleType] = []
        self._depth = 0
        loader = importlib.machinery.SourceFileLoader
        original, state = loader.exec_module, self

        @functools.wraps(original)
        def exec_module(self: Any, module: types.ModuleType) -> None:
            with state._noted(module):
                original(self, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _noted(self, module: types.ModuleType) -> Iterator[None]:
        """Notes what modules hold once the outermost import is done: one may add to another while it is imported."""
        self._depth += 1
        self._importing.append(module)
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                modules, self._importing = self._importing, []
                for each in modules:
                    self._note(each)

    def _note(self, module: types.ModuleType) -> None:
        path = getattr(module, "__file__", None) or ""
        if is_users(os.path.abspath(path)) and sys.modules.get(module.__name__) is module:
            self._contents[module.__name__] = _content(module)
            self._times[path] = _time_of(path)

    def difference(self) -> str:
        """Returns what is not as it was when it was imported, `experiments.digits.count`; empty if all is."""
        for path, time in self._times.items():
            if _time_of(path) != time:
                return path
        for name, before in self._contents.items():
            now = _content(sys.modules.get(name) or types.ModuleType(name))
            for key in before.keys() | now.keys():
                if before.get(key) != now.get(key):
                    return f"{name}.{key}"
        return ""


def _time_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _content(module: types.ModuleType) -> _Content:
    """Returns a list of plain values and identities for each name of a module."""
    seen: set[int] = set()
    return {
        name: _values_in(value, seen)
        for name, value in list(vars(module).items())
        if not name.startswith("__") and not isinstance(value, types.ModuleType)
    }


def _values_in(value: Any, seen: set[int]) -> list[Any]:
    found: list[Any] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PLAIN):
            found.append((type(value), repr(value) if isinstance(value, float | complex) else value))
            continue
        found.append(_Identity(value))
        if id(value) in seen:
            continue
        seen.add(id(value))
        waiting += _parts(value)
        if len(found) + len(waiting) > _MOST_VALUES:
            return [object()]  # which differs from all others
    return found


def _parts(value: Any) -> list[Any]:
    """Returns what a value holds, as far as it can be seen."""
    if isinstance(value, dict):
        return _items(value)
    if isinstance(value, _CONTAINERS):
        return list(value)
    if isinstance(value, types.FunctionType):  # a tuple or dict that is made here would have an identity of its own
        if not is_users(value.__code__.co_filename):
            return []
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return [value.__defaults__, value.__kwdefaults__, *_items(vars(value)), *cells]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if type(value).__name__ == "ndarray" and hasattr(value, "tobytes") and not value.dtype.hasobject:
        return [zlib.crc32(value.tobytes()), str(value.shape)]
    owner = value if isinstance(value, type) else type(value)
    if _is_of_user(owner):
        return _items(vars(value)) if hasattr(value, "__dict__") else []
    return []


def _items(mapping: Mapping[Any, Any]) -> list[Any]:
    return [each for item in list(mapping.items()) for each in item]


def _is_of_user(cls: type) -> bool:
    path = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return bool(path) and is_users(os.path.abspath(path))
