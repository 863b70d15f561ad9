"""The page of names of other systems: each line names a test that exists, or says why there is nothing here."""

import ast
import functools
import re

import pytest

from tests import ROOT
from tests.support.source import tree_of

PAGE = ROOT / "docs" / "project" / "parity.md"
TEST = re.compile(r"`((?:unit|integration|system)/[\w/]+\.py)::(test_\w+)`")


def lines():
    """Yields the cells of each line of the page's tables, heads aside."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| there |"):
            yield tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])


@functools.cache
def functions(file):
    return {node.name for node in ast.walk(tree_of(ROOT / "tests" / file)) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("cells", list(lines()), ids=lambda cells: cells[0])
def test_a_line_names_its_tests_or_why_there_are_none(cells):
    _, here, tests = cells
    found = TEST.findall(tests)
    assert bool(found) != here.startswith("not here: "), cells
    assert not TEST.sub("", tests).strip(), f"is no test: {tests}"
    for file, name in found:
        assert name in functions(file), f"{file} has no {name}"


def test_no_name_stands_twice():
    """Within one table; another system may have the same name."""
    for table in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        names = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| `")]
        assert len(names) == len(set(names))
