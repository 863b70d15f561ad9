"""What Python source says of the experiments that it registers, without an import.

Owns: the names that are literals in calls of `register_config_factory`, Model Garden's or ours, in the files of a
package; which files compute theirs.
Does not own: which packages are read (`index.py`, `tasks/sources.py`), importing them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from pathlib import Path
from typing import Any

from official_trainer.config import Origin

FOLDER = "experiments"
"""The folder of a workspace with its experiments, and the package that its modules belong to."""
DECORATOR = "register_config_factory"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment of a workspace, of an importable package, or of Model Garden.

    Attributes:
      name: the name for `--experiment`.
      module: the module that registers it, such as `experiments.digits`.
      path: its file.
      line: line of the factory.
      summary: first line of the factory's docstring.
    """

    name: str
    module: str
    path: Path
    line: int
    summary: str

    @property
    def origin(self) -> Origin:
        """The place of the factory; one of a workspace as seen from there."""
        package, *inner = self.module.split(".")
        up = len(inner) + (self.path.name == "__init__.py")
        shown = self.path.relative_to(self.path.parents[up]) if package == FOLDER else self.path
        return Origin("file", str(shown), self.line)


@dataclasses.dataclass
class Scanned:
    """What the files of a package say.

    Attributes:
      named: experiments whose names are literals.
      computed: the modules that compute names, each with a place and no name.
      broken: those that Python cannot read, each with the line, no name, and the reason as its summary.
    """

    named: list[Experiment] = dataclasses.field(default_factory=list)
    computed: list[Experiment] = dataclasses.field(default_factory=list)
    broken: list[Experiment] = dataclasses.field(default_factory=list)

    def add(self, other: Scanned) -> None:
        """Adds what other files say."""
        self.named += other.named
        self.computed += other.computed
        self.broken += other.broken


def scan(root: Path, package: str) -> Scanned:
    """Returns what the files of a package say, without hidden ones, and outside of a workspace without tests.

    Args:
      root: its folder, or the file of a module at the top.
      package: its name.
    """
    scanned = Scanned()
    for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
        inner = path.relative_to(root).with_suffix("").parts if path != root else ()
        is_test = package != FOLDER and (path.name.startswith("test_") or path.name.endswith("_test.py"))
        if is_test or any(part.startswith(".") for part in inner):
            continue
        source = path.read_bytes()
        if DECORATOR.encode() not in source:
            continue
        module = ".".join((package, *inner)).removesuffix(".__init__")
        try:
            said = _said(source)
        except SyntaxError as error:
            scanned.broken.append(Experiment("", module, path, error.lineno or 1, error.msg))
            continue
        for name, line, summary in said:
            (scanned.named if name else scanned.computed).append(Experiment(name, module, path, line, summary))
    scanned.named.sort(key=lambda experiment: experiment.name)
    return scanned


@functools.lru_cache(maxsize=4096)
def _said(source: bytes) -> list[tuple[str, int, str]]:
    """Returns name, line and summary of each experiment of a file; once an empty name if it computes some.

    It is asked several times in a command, and for each trial of a sweep.

    Raises:
      SyntaxError: Python cannot read it.
    """
    nodes = list(ast.walk(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    factories = {decorator: function for function in functions for decorator in function.decorator_list}
    named = {function.name: function for function in functions}
    for node in nodes:  # `register_config_factory("name")(factory)`
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in named:
            factories.setdefault(node.func, named[node.args[0].id])
    without_call = [function for decorator, function in factories.items() if _is_ours(decorator)]
    experiments = [_row(function.name, function) for function in without_call]
    computed = 0
    for node in nodes:
        if isinstance(node, ast.Call) and _is_ours(node.func):
            name = next(iter([*node.args, *(word.value for word in node.keywords)]), None)
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                experiments.append(_row(name.value, factories.get(node, node)))
            else:
                computed = computed or node.lineno
    return [*experiments, *([("", computed, "")] if computed else [])]


def _row(name: str, factory: ast.FunctionDef | ast.Call) -> tuple[str, int, str]:
    summary = (ast.get_docstring(factory) or "").partition("\n")[0] if isinstance(factory, ast.FunctionDef) else ""
    return name, factory.lineno, summary


def _is_ours(function: Any) -> bool:
    return getattr(function, "attr", getattr(function, "id", "")) == DECORATOR
