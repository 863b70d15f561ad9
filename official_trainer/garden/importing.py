"""Modules of the installed release of Model Garden, imported; also those that Python 3.11 and newer refuse.

Owns: `import_module`, and what makes a section possible as the default of a dataclass's field while it imports.
Does not own: which modules are needed (`index.py`, `to_garden.py`), the message where one is missing (`index.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Iterator


def import_module(name: str) -> types.ModuleType:
    """Returns a module of Model Garden, imported as `importlib` does.

    Two of its projects, RoFormer and TEAMS, have sections of an optimizer as defaults of fields. Since 3.11, Python
    refuses a default that has no hash, to keep instances from sharing what one of them changes. They are imported with
    the behaviour of 3.10.
    """
    try:
        return importlib.import_module(name)
    except ValueError as error:
        if not str(error).startswith("mutable default"):
            raise
    with _hashable():
        return importlib.import_module(name)


@contextlib.contextmanager
def _hashable() -> Iterator[None]:
    """Gives the sections of an optimizer, in a `with` block, the hash of an object; a field's default needs one."""
    from official.modeling import optimization

    sections = (optimization.OptimizerConfig, optimization.LrConfig, optimization.WarmupConfig)
    for section in sections:
        section.__hash__ = object.__hash__
    try:
        yield
    finally:
        for section in sections:
            section.__hash__ = None
