"""The public names that packages offer."""

import ast
import importlib

import pytest

from tests import ROOT

FACES = sorted((ROOT / "official_trainer").rglob("__init__.pyi"))
"""The public names of packages: type checkers read them here, and the packages import them from here at first use."""


def dotted(path):
    return ".".join(path.parent.relative_to(ROOT).parts)


@pytest.mark.parametrize("path", FACES, ids=dotted)
def test_a_package_offers_names_of_its_own_modules(path):
    """Each name is there, is the package's own, and importing the package alone imports no module for it."""
    package = importlib.import_module(dotted(path))
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    assert all(isinstance(node, ast.ImportFrom) and node.level == 1 for node in nodes)
    offered = [alias.name for node in nodes for alias in node.names]
    assert sorted(offered) == package.__all__
    assert all(getattr(package, name) is not None for name in offered)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing
