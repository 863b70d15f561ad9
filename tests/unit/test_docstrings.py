"""The public names that need no TensorFlow: each has a docstring with an example, and the example is right."""

import ast
import itertools
import typing
from pathlib import Path

import pytest

from official_trainer.config import declaration
from tests.support import docstrings

FACES = ("official_trainer.actions", "official_trainer.config", "official_trainer.tracking")
MORE = {
    "official_trainer.config.optimization": {"EMAConfig", "LrConfig", "OptimizerConfig", "WarmupConfig"},
    "official_trainer.tasks.registry": {"", "find_workspace", "get_config", "get_task_cls", "named"},
    "official_trainer.tasks.results": {"Mean", "Results", "SampledSet"},
}
"""Public names of modules without a stub."""

FOR_OTHER_PACKAGES = {
    "official_trainer.config": {"digest", "flow", "format_override"},
    "official_trainer.tracking": {"Trackers", "closing", "flatten"},
}
"""What these offer to other packages of ours: no user calls it, so it needs no example."""

PUBLIC = docstrings.public(FACES, MORE, FOR_OTHER_PACKAGES)


def test_the_examples_of_public_names_are_right(tmp_path, monkeypatch):
    """In an empty working directory; a name without an example fails too."""
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for name, value in PUBLIC.items():
        try:
            docstrings.check(value, name, monkeypatch)
        except BaseException as error:  # pytest's own failures are no Exceptions
            wrong[name] = str(error)
    assert not wrong


def test_types_of_numbers_are_explained():
    """In a line below each, because such a name has no docstring of its own."""
    nodes = ast.parse(Path(declaration.__file__).read_text(encoding="utf-8")).body
    explained = {
        node.targets[0].id
        for node, after in itertools.pairwise(nodes)
        if isinstance(node, ast.Assign) and isinstance(getattr(after, "value", None), ast.Constant)
    }
    types = {name for name, value in vars(declaration).items() if typing.get_origin(value) is typing.Annotated}
    assert types and types <= explained


# The tests above can fail.


def undocumented():
    pass


def without_example():
    """Does nothing."""


def wrong():
    """Adds.

    Example:
      >>> 1 + 1
      3
    """


class Documented:
    """A class with an example only in its method."""

    def twice(self):
        """Doubles.

        Example:
          >>> twice = 2
          >>> twice
          2
        """


def with_a_colon():
    """Counts.

    Returns:
      The counts: one for each word.

    Example:
      >>> with_a_colon = 1
    """


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (undocumented, "no docstring"),
        (without_example, "no example"),
        (with_a_colon, "as a type: The counts"),
        (wrong, None),
        (Documented, None),
    ],
)
def test_a_docstring_that_lacks_something_is_found(value, problem):
    found = docstrings.problem_of(value, "name")
    assert found is None if problem is None else problem in found


def test_a_wrong_example_is_reported(monkeypatch):
    assert "Expected:\n    3\nGot:\n    2\n" in docstrings.failures_of(wrong, "wrong", monkeypatch)
    assert docstrings.failures_of(Documented, "Documented", monkeypatch) == ""
