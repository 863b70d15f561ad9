"""The source of the package, for tests that read it; each file is parsed, and its tree walked, once in a process."""

import ast
import functools

from tests import ROOT

ENGINE = ROOT / "official_trainer"
TEMPLATE = ENGINE / "cli" / "template"
PATHS = sorted(path for path in ENGINE.rglob("*.py") if TEMPLATE not in path.parents)
"""The modules of the package, without those that `init` copies into a workspace."""


@functools.cache
def tree_of(path):
    """Returns the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path):
    """Returns all nodes of the syntax tree of a file, as `ast.walk` yields them."""
    return [*ast.walk(tree_of(path))]
