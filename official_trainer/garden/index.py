"""The experiments of the installed Model Garden, found without importing it.

Owns: the index (name, module, file, line, summary), read from decorators in the source, and the cache between commands.
Does not own: the content of an experiment (`snapshot.py`).
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.garden.spec import FORMAT

PACKAGE = "official"
DECORATOR = "register_config_factory"


@dataclasses.dataclass(frozen=True)
class Entry:
    """An experiment of Model Garden.

    Attributes:
      name: the name for `--experiment`.
      module: the module that registers it.
      path: its file.
      line: line of the factory.
      summary: first line of the factory's docstring.
    """

    name: str
    module: str
    path: str
    line: int
    summary: str


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Returns Model Garden's experiments by name; none if it is not installed."""
    root = package_dir()
    if root is None:
        return {}
    cached = Cache("index")
    try:
        return {row["name"]: Entry(**row) for row in cached.read()["entries"]}
    except (OSError, ValueError, KeyError, TypeError):
        found = dict(sorted((entry.name, entry) for entry in _scan(root)))
    cached.write({"entries": [dataclasses.asdict(entry) for entry in found.values()]})
    return found


def package_dir() -> Path | None:
    """Returns the folder of the package `official` without importing it, or None if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places and (Path(places[0]) / "core" / "exp_factory.py").is_file() else None


def release() -> str:
    """Returns the installed release, or `a checkout` if no package manager has installed it."""
    place = package_dir()
    assert place is not None, "Model Garden is not installed"
    # Not by `importlib.metadata`: importing it takes as long as all the rest of `show`.
    found = [folder.stem.split("-")[1] for folder in place.parent.glob("tf_models_*.dist-info")]
    return found[0] if found else CHECKOUT


CHECKOUT = "a checkout"


class Cache:
    """A file with what was read from an installed release. For a checkout, which may change, nothing is cached.

    The folder is `official-trainer/garden` in `$XDG_CACHE_HOME`, or in `~/.cache` if that is not set.
    """

    def __init__(self, name: str) -> None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        version, place = release(), hashlib.sha256(str(package_dir()).encode()).hexdigest()[:8]
        folder = Path(home, "official-trainer", "garden", f"{version}-{FORMAT}-{place}")
        self.path = None if version == CHECKOUT else folder / f"{name.replace('/', '%2F')}.json"

    def read(self) -> dict[str, Any]:
        """Returns the content of the file.

        Raises:
          OSError: there is no such file.
          ValueError: it is damaged.
        """
        if self.path is None:
            raise FileNotFoundError("a checkout is not cached")
        return dict(json.loads(self.path.read_bytes()))

    def write(self, content: Mapping[str, Any]) -> None:
        """Writes `content`, if the cache can be written."""
        if self.path is None:
            return
        with contextlib.suppress(OSError, files.StorageError):  # without a cache, commands only take longer
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text_atomically(str(self.path), json.dumps(content), durable=False)


def _scan(root: Path) -> Iterator[Entry]:
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if DECORATOR.encode() not in source or path.name.endswith("_test.py"):
            continue
        for function, name in registered_factories(ast.parse(source)):
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                module = ".".join((PACKAGE, *path.relative_to(root).with_suffix("").parts))
                yield Entry(name.value, module, str(path), function.lineno, first_line(function))


def registered_factories(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, ast.expr | None]]:
    """Yields the functions that `register_config_factory` decorates, each with the expression of its name."""
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            called = decorator.func if isinstance(decorator, ast.Call) else None
            if getattr(called, "attr", getattr(called, "id", "")) == DECORATOR:
                assert isinstance(node, ast.FunctionDef)
                assert isinstance(decorator, ast.Call)
                arguments = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
                yield node, arguments[0] if arguments else None


def first_line(function: ast.FunctionDef) -> str:
    """Returns the first line of a function's docstring."""
    return (ast.get_docstring(function) or "").partition("\n")[0]
