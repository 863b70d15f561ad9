"""What the source of a workspace's experiments says, without an import.

Owns: the names that are literals in `experiments/`, and which files have to be imported to know theirs.
Does not own: importing them (`listings.py`), Model Garden's experiments (`garden/index.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from official_trainer.config import Origin, Problem, components
from official_trainer.garden import index as garden
from official_trainer.tasks.sources import Experiment, Source

FOLDER = "experiments"
_WITHOUT = {
    *("official_trainer", garden.PACKAGE, FOLDER, *components.FOLDERS),
    *("tensorflow", "tf_keras", "keras", "orbit", "gin", "numpy", "scipy", "sklearn", "tensorflow_datasets"),
}
"""Packages that register no experiment of a user's when a file of `experiments/` imports them."""


@dataclasses.dataclass
class Scanned:
    """What the files of `experiments/` say without an import.

    Attributes:
      found: experiments whose names are literals.
      problems: why some may be missing.
      computed: files with names that are no literals.
      broken: files that Python cannot read, each with its path and its text.
      importing: files without names, which import a package that may register some.
    """

    found: list[Experiment] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    computed: list[Source] = dataclasses.field(default_factory=list)
    importing: list[Source] = dataclasses.field(default_factory=list)
    broken: list[tuple[Source, Path, str]] = dataclasses.field(default_factory=list)

    @property
    def all_computed(self) -> list[Source]:
        """Files that have to be imported to know their names."""
        return [*self.computed, *self.importing]


def scan(workspace: Path) -> Scanned:
    """Returns what the files of `experiments/` of a workspace say."""
    scanned = Scanned()
    for path in sorted((workspace / FOLDER).rglob("*.py")):
        place = str(path.relative_to(workspace))
        if "/." in place:
            continue
        parts = path.relative_to(workspace).with_suffix("").parts
        source, module = path.read_bytes(), ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            said = _said(source)
        except SyntaxError as error:
            where = Origin("file", place, error.lineno or 1)
            if _registers(source):
                scanned.problems.append(Problem(f"its experiments are not listed: {error.msg}", origin=where))
                scanned.broken.append((Source(module, where), path, source.decode(errors="replace")))
            continue
        imports_garden = garden.PACKAGE in said.imported
        scanned.found += [
            Experiment(name, module, path, line, summary, imports_garden) for name, line, summary in said.literals
        ]
        to_import = Source(module, Origin("file", place))
        if said.num_computed > 0:
            scanned.computed.append(to_import)
        elif not _registers(source) and said.imported - _WITHOUT - sys.stdlib_module_names:
            scanned.importing.append(to_import)
    return scanned


class _Said(NamedTuple):
    """What the source of a file says.

    Attributes:
      literals: name, line and summary of each experiment whose name is a literal.
      num_computed: how many names are none.
      imported: the packages that it imports.
    """

    literals: Sequence[tuple[str, int, str]]
    num_computed: int
    imported: frozenset[str]


@functools.lru_cache(maxsize=4096)
def _said(source: bytes) -> _Said:
    """Returns what a file says, which is asked several times in a command, and for each trial of a sweep.

    Raises:
      SyntaxError: Python cannot read it.
    """
    tree = ast.parse(source)
    nodes = list(ast.walk(tree)) if _registers(source) else []
    factories = list(garden.registered_factories(nodes))
    literals = [
        (name.value, function.lineno, garden.first_line(function))
        for function, name in [*factories, *_without_parentheses(nodes)]
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    ]
    imported = frozenset(name.partition(".")[0] for name in _imported(tree, [function for function, _ in factories]))
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    num_calls = sum(getattr(each, "attr", getattr(each, "id", "")) == garden.DECORATOR for each in called)
    return _Said(literals, num_calls - len(literals), imported)


def _registers(source: bytes) -> bool:
    return garden.DECORATOR.encode() in source


def _without_parentheses(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.FunctionDef, ast.expr]]:
    """Yields the functions below a bare `@register_config_factory`, with their names: importing them tells the fix."""
    for node in nodes:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if getattr(decorator, "attr", getattr(decorator, "id", "")) == garden.DECORATOR:
                assert isinstance(node, ast.FunctionDef)
                yield node, ast.Constant(node.name)


def _imported(tree: ast.Module, factories: Iterable[ast.FunctionDef]) -> Iterator[str]:
    """Yields what a module imports until its factories have returned; building a model may import more."""
    waiting: list[ast.AST] = [*tree.body, *(node for factory in factories for node in factory.body)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
