"""The pages `docs/reference/api/*.md`: what each package of `official_trainer` offers, for Sphinx to describe.

Owns: which names are on which page, under which heading.
Does not own: the names (the `__init__.pyi` of a package, or its `__all__`), their descriptions (docstrings).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.generators.config import anchor

ENGINE = Path(__file__).resolve().parents[2] / "official_trainer"

_INTRO = """\
# Python API

An experiment imports `official_trainer`, `config`, `inputs`, `tasks` and `lazy`; a program of your own may use the
other packages too. Each name is imported when it is first used, so that importing a package takes milliseconds.
`official_trainer.lazy` has `tf` (TensorFlow) and `keras` (tf_keras), which are imported at their first use as well.

| package | what it has |
|---|---|"""

_ROOT = """
## Names of `official_trainer`

| name | what it is |
|---|---|"""

_WHOLE = "official_trainer"
_ORDER = (
    "tasks",
    "config",
    "inputs",
    "actions",
    "tracking",
    "reports",
    "program",
    "engine",
    "checkpoints",
    "distributed",
)
_OPTIMIZATION = "Optimizers and learning rates"

GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "config": {
        "Sections of an experiment": ["schema", "multitask", "components", "when"],
        _OPTIMIZATION: ["optimization"],
        "Classes of your own": ["declaration"],
        "Reading and writing": ["layers", "overrides", "provenance", "explain", "dump", "text"],
        "Errors": ["errors"],
    },
    "engine": {"Trainer": ["trainer"]},
    "program": {
        "Program": ["program"],
        "Loop": ["loop"],
        "Checkpoints": ["checkpoint"],
        "Errors": ["compiled_model", "data"],
    },
    "inputs": {"Pipelines": ["arrays", "records", "tfds"], "Tools for your own pipelines": ["context", "order"]},
    "tasks": {"Tasks": ["task", "multi_task"], "Experiments": ["registry"]},
}
"""Headings of a page, with their modules; names of other modules follow without one."""

MODULES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "config": {"opt": ["sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars"]},
    "distributed": {
        "trees": [
            "paths",
            "gather",
            "assert_replica_integrity",
            "to_json",
            "from_json",
            "write",
            "read",
            "TreeError",
            "AloneError",
        ],
    },
    "tasks": {
        "publish": ["scalar", "histogram", "image", "PublishError"],
        "random_streams": ["seed", "seeds", "enable", "temporary_seed", "RandomStreamError"],
        "registry": ["named", "get_config", "get_task_cls", "find_workspace"],
        "results": ["Results", "Mean", "SampledSet"],
    },
}
"""Modules that are used by their own names, and what users need of them."""


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
      name: as it is imported from the package.
      module: where it is defined, after `official_trainer.`, such as `tasks.task`.
    """

    name: str
    module: str

    @property
    def definition(self) -> ast.stmt | None:
        """The statement that defines it; None for a module."""
        for statement in _tree(self.module).body:
            if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == self.name:
                return statement
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == self.name for target in targets):
                return statement
        return None


def pages() -> dict[str, str]:
    """Returns the text of each page by its path in `docs/reference`."""
    packages = {package: public_names(package) for package in packages_with_names()}
    texts = {f"api/{name}.md": "\n\n".join(_page(name, names)) + "\n" for name, names in packages.items()}
    return {"api/index.md": "\n".join(_index(packages)) + "\n", **texts}


def packages_with_names() -> list[str]:
    """Returns the packages that offer names, what users need first before the others."""
    packages = {path.parent.name for path in ENGINE.glob("*/__init__.py")} - {"cli"}  # which has a page of its own
    found = [package for package in packages if public_names(package)]
    return sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def public_names(package: str) -> list[Name]:
    """Returns the names that a package offers: those of its stub, or of its `__all__`; `""` is the whole package."""
    folder = ENGINE / package
    if (stub := folder / "__init__.pyi").exists():
        imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
        found = [Name(each.name, _joined(package, node.module)) for node in imports for each in node.names]
        return found if package else [_of_package(each) for each in found]
    body = _tree(package).body
    origin = {each.name: node.module for node in body if isinstance(node, ast.ImportFrom) for each in node.names}
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            modules = {name: str(origin.get(name) or _joined(_WHOLE, package)) for name in ast.literal_eval(node.value)}
            return [Name(name, module.removeprefix(f"{_WHOLE}.")) for name, module in modules.items()]
    return []


def _of_package(name: Name) -> Name:
    """Returns a name where it is defined, if another package offers it too."""
    if "." in name.module or not (ENGINE / name.module).is_dir():
        return name
    return next((each for each in public_names(name.module) if each.name == name.name), name)


def _joined(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


@functools.cache
def _tree(module: str) -> ast.Module:
    """Parses a module or a package, named after `official_trainer.`."""
    path = ENGINE / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def _summary(node: ast.AST | None) -> str:
    """Returns the first paragraph of a docstring."""
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split()) if documented else ""


def _index(packages: Mapping[str, Sequence[Name]]) -> Iterator[str]:
    yield _INTRO
    for package in packages:
        yield f"| [`{package}`]({package}.md) | {_summary(_tree(package))} |"
    yield _ROOT
    root = public_names("")
    for each in root:
        link = _link(each, [name for names in packages.values() for name in names])
        yield f"| {link} | {_summary(each.definition or _tree(_joined(each.module, each.name)))} |"
    yield ""
    described = {_joined(_WHOLE, each.name): each for each in root if each.module.partition(".")[0] not in packages}
    yield _described(described)
    yield "\n".join(["", "```{toctree}", ":hidden:", *packages, "```"])


def _link(name: Name, offered: Sequence[Name]) -> str:
    """Returns a link to what a page says about a name of the whole package."""
    package, _, _ = name.module.partition(".")
    if name.definition is None:
        heading = f"{package}.{name.name}"
        return f"[`{name.name}`]({package}.md#{anchor(heading)})"
    place = _joined(_WHOLE, package if name in offered else "")
    return f"{{py:obj}}`{name.name} <{place}.{name.name}>`"


def _page(package: str, names: Sequence[Name]) -> Iterator[str]:
    """Yields the blocks of a package's page."""
    yield f"# {package}"
    yield _summary(_tree(package))
    left = {_joined(_WHOLE, package, each.name): each for each in names if each.definition}
    offered = [(each.name, each.module) for each in names]
    for each in public_names(""):
        if each.module.startswith(f"{package}.") and (each.name, each.module) not in offered and each.definition:
            left[_joined(_WHOLE, each.name)] = each
    for heading, modules in GROUPS.get(package, {}).items():
        starts = [f"{package}.{module}." for module in modules]
        chosen = {path: each for start in starts for path, each in left.items() if f"{each.module}.".startswith(start)}
        left = {path: each for path, each in left.items() if path not in chosen}
        yield f"## {heading}"
        yield _described(chosen)
        if heading == _OPTIMIZATION:
            yield _optimization()
    if left:
        yield _described(left)
    for module, used in MODULES.get(package, {}).items():
        yield f"## `{package}.{module}`"
        yield _summary(_tree(_joined(package, module)))
        path = _joined(package, module)
        yield _described({_joined(_WHOLE, path, name): Name(name, path) for name in used})


def _described(names: Mapping[str, Name]) -> str:
    """Returns the directives with which Sphinx describes names, each by the path that it is imported from."""
    directives = [f".. {_directive(name)}:: {path}" for path, name in names.items()]
    directives.sort(key=lambda directive: "autoexception" in directive)  # these come last
    return "\n".join(["```{eval-rst}", *directives, "```"])


def _directive(name: Name) -> str:
    match name.definition:
        case ast.ClassDef():
            return "autoexception" if name.name.endswith("Error") else "autoclass"
        case ast.FunctionDef():
            return "autofunction"
    return "autodata"


def _optimization() -> str:
    """Returns the table of the classes of `config.optimization`, whose fields are in the reference of the config."""
    classes = [node for node in _tree("config.optimization").body if isinstance(node, ast.ClassDef)]
    rows = [f"| `{node.name}` | {_summary(node)} |" for node in classes]
    return "\n".join(
        [
            "`from official_trainer.config import optimization` has a class for each section of "
            "[`trainer.optimizer_config`](../config/optimizers.md):",
            "",
            "| class | what it is |",
            "|---|---|",
            *rows,
        ]
    )
